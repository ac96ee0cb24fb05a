"""`get` and `describe` as text."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.commands.output import escaped
from trio_kubelet.commands.pod_text import describe_pod
from trio_kubelet.commands.render import SeveralPods, aligned, find_pod, pod_rows

SECOND = 1_000_000_000
NOW = 1_700_000_000 * SECOND  # 2023-11-14T22:13:20Z

POD: dict[str, Any] = {
    "metadata": {
        "name": "web-node1",
        "namespace": "default",
        "uid": "u1",
        "labels": {"app": "web"},
    },
    "spec": {
        "nodeName": "node1",
        "containers": [
            {
                "name": "c",
                "image": "busybox:1",
                "livenessProbe": {"httpGet": {"path": "/", "port": 8080, "scheme": "HTTP"}},
            },
            {"name": "d", "image": "busybox:1"},
        ],
        "volumes": [{"name": "scratch", "emptyDir": {}}],
    },
    "status": {
        "phase": "Running",
        "startTime": "2023-11-14T22:03:20Z",
        "podIP": "10.0.0.9",
        "qosClass": "BestEffort",
        "conditions": [{"type": "Ready", "status": "False", "reason": "ContainersNotReady"}],
        "containerStatuses": [
            {
                "name": "c",
                "ready": True,
                "restartCount": 2,
                "state": {"running": {"startedAt": "2023-11-14T22:12:20Z"}},
                "lastState": {
                    "terminated": {"exitCode": 3, "reason": "Error", "finishedAt": "2023-11-14T22:12:20Z"}
                },
            },
            {
                "name": "d",
                "ready": False,
                "restartCount": 0,
                "state": {"waiting": {"reason": "ImagePullBackOff"}},
                "lastState": {},
            },
        ],
    },
}
STORY = [
    {"at_ns": NOW - 60 * SECOND, "first_ns": NOW - 60 * SECOND, "count": 1, "cause": "pleg", "text": "died"},
    {"at_ns": NOW, "first_ns": NOW - 60 * SECOND, "count": 3, "cause": "timer", "text": "looked"},
]


def aligned_pods(pods: list[dict[str, Any]], now_ns: int, *, wide: bool = False) -> list[str]:
    return aligned(pod_rows(pods, now_ns, wide=wide))


def test_the_table_reads_like_kubectls() -> None:
    assert aligned_pods([POD], NOW) == [
        "NAMESPACE   NAME        READY   STATUS             RESTARTS      AGE",
        "default     web-node1   1/2     ImagePullBackOff   2 (60s ago)   10m",
    ]
    wide = aligned_pods([POD], NOW, wide=True)
    assert wide[0].endswith("IP         NODE    NOMINATED NODE   READINESS GATES")
    assert wide[1].endswith("10.0.0.9   node1   <none>           <none>")


def test_readiness_gates_are_counted() -> None:
    pod = copy.deepcopy(POD)
    pod["spec"]["readinessGates"] = [{"conditionType": "Ready"}, {"conditionType": "x/y"}]
    pod["status"]["conditions"].append({"type": "x/y", "status": "True"})
    assert aligned_pods([pod], NOW, wide=True)[1].endswith("1/2")


def test_the_age_is_that_of_the_object_where_it_has_one() -> None:
    pod = copy.deepcopy(POD)
    pod["metadata"]["creationTimestamp"] = "2023-11-14T21:13:20Z"
    assert aligned_pods([pod], NOW)[1].endswith("60m")


def test_a_pod_without_status_is_shown() -> None:
    bare = {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c"}]}}
    assert "0/1" in aligned_pods([bare], NOW)[1]


def test_a_static_pod_is_found_without_the_nodes_name() -> None:
    assert find_pod([POD], "web") is POD
    assert find_pod([POD], "web-node1") is POD
    assert find_pod([POD], "we") is None


def test_a_name_in_several_namespaces_is_asked_about() -> None:
    def named(name: str, namespace: str) -> dict[str, Any]:
        return {"metadata": {"name": name, "namespace": namespace}, "spec": {"nodeName": "node1"}}

    pods = [named("web", "b"), named("web", "a"), named("db-node1", "b"), named("db-node1", "a")]
    for name in ("web", "db", "db-node1"):
        with pytest.raises(SeveralPods, match=f"pod '{name}' is in the namespaces a, b: choose one with -n"):
            find_pod(pods, name)
    assert find_pod([*pods, named("db", "c")], "db") == named("db", "c")  # a whole name is meant first


def test_ephemeral_containers_are_described() -> None:
    pod = copy.deepcopy(POD)
    pod["spec"]["ephemeralContainers"] = [{"name": "debugger", "image": "busybox:2"}]
    pod["status"]["ephemeralContainerStatuses"] = [
        {"name": "debugger", "state": {"terminated": {"exitCode": 7, "reason": "Error"}}}
    ]
    lines = describe_pod(pod, [], [], NOW)
    begin = lines.index("Ephemeral Containers:")
    assert lines[begin + 1] == "  debugger:"
    shown = " ".join(" ".join(lines[begin:]).split())
    assert "Image: busybox:2" in shown
    assert "Exit Code: 7" in shown
    assert lines.index("Containers:") < begin < lines.index("Conditions:")


@pytest.mark.parametrize(
    ("handler", "shown"),
    [
        ({"httpGet": {"port": 80, "host": "::1", "path": "a"}}, "http-get http://[::1]:80/a delay=0s"),
        ({"exec": {"command": ["true"]}}, "exec [true] delay=0s"),
        ({"tcpSocket": {"port": 80}}, "tcp-socket :80 delay=0s"),
        ({"grpc": {"port": 9000}}, "grpc <pod>:9000 delay=0s"),
        ({"telepathy": {"port": 9000}}, "unknown delay=0s"),
    ],
)
def test_each_kind_of_probe_is_described_as_itself(handler: dict[str, Any], shown: str) -> None:
    pod = copy.deepcopy(POD)
    pod["spec"]["containers"][0]["livenessProbe"] = handler
    assert f"Liveness:       {shown}" in "\n".join(describe_pod(pod, [], [], NOW))


def test_a_description_ends_with_the_story() -> None:
    text = "\n".join(describe_pod(POD, [], STORY, NOW))
    for expected in (
        "Name:         web-node1",
        "Labels:       app=web",
        "Annotations:  <none>",
        "Liveness:       http-get http://:8080/ delay=0s timeout=1s period=10s #success=1 #failure=3",
        "Last State:     Terminated",
        "  Exit Code:    3",
        "Restart Count:  2",
        "scratch: emptyDir",
    ):
        assert expected in text
    assert text.splitlines()[-3:] == [
        "  Time                   Age   Cause   What",
        "  2023-11-14T22:12:20Z   60s   pleg    died",
        "  2023-11-14T22:13:20Z   0s    timer   looked (x3 since 2023-11-14T22:12:20Z)",
    ]


def test_no_story_is_said() -> None:
    assert describe_pod(POD, [], [], NOW)[-1] == "Story: nothing is remembered of this pod."


def test_a_secret_value_of_the_environment_is_not_shown() -> None:
    pod = copy.deepcopy(POD)
    pod["spec"]["containers"][0]["env"] = [{"name": "PASSWORD", "value": "hunter2"}]
    applied = {"kubectl.kubernetes.io/last-applied-configuration": '{"value":"hunter2"}'}
    pod["metadata"]["annotations"] = applied
    assert "Annotations:  <none>" in describe_pod(pod, [], [], NOW)
    assert "hunter2" not in "\n".join(describe_pod(pod, [], [], NOW))


def described(
    spec: dict[str, Any], container: dict[str, Any] | None = None, status: dict[str, Any] | None = None
) -> str:
    """The description of the pod with these fields, without its events and story."""
    pod = copy.deepcopy(POD)
    pod["metadata"]["labels"]["x.io/app"] = "web"
    pod["spec"] |= spec
    pod["spec"]["containers"][0] |= container or {}
    pod["status"] |= status or {}
    lines = describe_pod(pod, ["Events:"], [], NOW)
    return "\n".join(lines[: lines.index("Events:")]) + "\n"


def test_a_container_is_described_as_kubectl_does() -> None:
    text = described(
        {},
        {
            "command": ["sh", "-c", "sleep 1\necho x"],
            "args": ["a"],
            "ports": [{"containerPort": 80, "name": "http"}, {"containerPort": 53, "protocol": "UDP"}],
            "resources": {"limits": {"memory": "5Mi", "cpu": "1"}, "requests": {"cpu": "1"}},
            "envFrom": [
                {"configMapRef": {"name": "cm"}},
                {"prefix": "P_", "secretRef": {"name": "s", "optional": True}},
            ],
            "env": [
                {"name": "A", "value": "hunter2"},
                {"name": "EMPTY"},
                {
                    "name": "NAME",
                    "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}},
                },
                {"name": "APP", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['x.io/app']"}}},
                {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
                {
                    "name": "MEM",
                    "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}},
                },
                {"name": "DISK", "valueFrom": {"resourceFieldRef": {"resource": "limits.ephemeral-storage"}}},
                {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": True}}},
                {"name": "CM", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "k"}}},
            ],
            "volumeMounts": [
                {"mountPath": "/z", "name": "scratch", "subPath": "a"},
                {"mountPath": "/a", "name": "scratch", "readOnly": True},
            ],
            "volumeDevices": [{"devicePath": "/dev/z", "name": "d"}, {"devicePath": "/dev/a", "name": "e"}],
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        },
    )
    begin = text.index("    Container ID:")
    assert (
        text[begin : text.index("  d:")]
        == """\
    Container ID:    <none>
    Image:           busybox:1
    Image ID:        <none>
    Ports:           80/TCP (http), 53/UDP
    Host Ports:      0/TCP (http), 0/UDP
    SeccompProfile:  RuntimeDefault
    Command:
      sh
      -c
      sleep 1
      echo x
    Args:
      a
    State:           Running
      Started:       2023-11-14T22:12:20Z
    Last State:      Terminated
      Reason:        Error
      Exit Code:     3
      Finished:      2023-11-14T22:12:20Z
    Ready:           True
    Restart Count:   2
    Limits:
      cpu:     1
      memory:  5Mi
    Requests:
      cpu:  1
    Liveness:        http-get http://:8080/ delay=0s timeout=1s period=10s #success=1 #failure=3
    Environment Variables from:
      cm  ConfigMap
      s  Secret with prefix 'P_'  Optional: true
    Environment:
      A:      <set>
      EMPTY:  <empty>
      NAME:   web-node1 (v1:metadata.name)
      APP:    web (v1:metadata.labels['x.io/app'])
      CPU:    1 (limits.cpu)
      MEM:    5 (limits.memory)
      DISK:   0 (limits.ephemeral-storage)
      KEY:    <key 'k' of secret 's'>  Optional: true
      CM:     <key 'k' of config map 'cm'>
    Mounts:
      /a from scratch (ro)
      /z from scratch (rw,path="a")
    Devices:
      /dev/a from e
      /dev/z from d
"""
    )


def test_a_limit_that_is_not_set_is_the_nodes() -> None:
    env = [{"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}]
    assert "CPU:  node allocatable (limits.cpu)\n" in described({}, {"env": env})


def test_the_addresses_of_a_pod_are_described_as_its_variables_have_them() -> None:
    env = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": f"status.{name}"}}}
        for name in ("podIPs", "hostIPs")
    ]
    text = described({}, {"env": env}, {"podIPs": [{"ip": "10.0.0.9"}, {"ip": "fd::9"}]})
    assert "podIPs:   10.0.0.9,fd::9 (v1:status.podIPs)\n" in text
    assert "hostIPs:  (v1:status.hostIPs)\n" in text


def test_the_rest_of_a_pod_is_described_as_kubectl_does() -> None:
    text = described(
        {
            "priority": 0,
            "priorityClassName": "low",
            "serviceAccountName": "default",
            "readinessGates": [{"conditionType": "x/y"}],
            "nodeSelector": {"b": "2", "a": "1"},
            "tolerations": [
                {"key": "k", "value": "v", "effect": "NoExecute", "tolerationSeconds": 5},
                {"operator": "Exists"},
            ],
            "topologySpreadConstraints": [
                {
                    "topologyKey": "zone",
                    "maxSkew": 2,
                    "whenUnsatisfiable": "DoNotSchedule",
                    "labelSelector": {
                        "matchLabels": {"b": "c"},
                        "matchExpressions": [
                            {"key": "d", "operator": "NotIn", "values": ["f", "e"]},
                            {"key": "a", "operator": "DoesNotExist"},
                        ],
                    },
                },
                {"topologyKey": "host", "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"},
                {
                    "topologyKey": "rack",
                    "maxSkew": 1,
                    "whenUnsatisfiable": "ScheduleAnyway",
                    "labelSelector": {},
                },
            ],
            "volumes": [
                {"name": "p", "projected": {"defaultMode": 420, "sources": [{"a": 1}, {"b": True}]}},
                {"name": "h", "hostPath": {"path": "/tmp"}},
                {"name": "bare"},
            ],
        }
    )
    assert text.startswith(
        """\
Name:                 web-node1
Namespace:            default
UID:                  u1
Priority:             0
Priority Class Name:  low
Service Account:      default
Node:                 node1
"""
    )
    assert text.endswith(
        """\
Readiness Gates:
  Type   Status
  x/y    <none>
Conditions:
  Type    Status   Reason
  Ready   False    ContainersNotReady
Volumes:
  p: projected
    DefaultMode:  0644
    Sources:      {"a":1}
                  {"b":true}
  h: hostPath
    Path:  /tmp
  bare: emptyDir
QoS Class:                    BestEffort
Node-Selectors:               a=1
                              b=2
Tolerations:                  op=Exists
                              k=v:NoExecute for 5s
Topology Spread Constraints:  host:ScheduleAnyway when max skew 1 is exceeded
                              rack:ScheduleAnyway when max skew 1 is exceeded for selector <none>
                              zone:DoNotSchedule when max skew 2 is exceeded for selector !a,b=c,d notin (e,f)
"""
    )


def test_what_a_pod_wrote_does_not_look_like_a_field() -> None:
    pod = copy.deepcopy(POD)
    forged = "bad\nReady:  True\n    Ready:          True"
    pod["metadata"]["annotations"] = {"a": forged, "long": "x" * 200}
    pod["status"]["message"] = forged
    pod["status"]["containerStatuses"][0]["lastState"]["terminated"]["message"] = forged
    pod["status"]["conditions"][0]["reason"] = forged
    pod["spec"]["containers"][0]["command"] = [forged]
    story = [{**STORY[0], "text": forged}]
    lines = describe_pod(pod, [], story, NOW)
    assert lines[lines.index("Annotations:  a:") :][:6] == [
        "Annotations:  a:",
        "                bad",
        "                Ready:  True",
        "                    Ready:          True",
        "              long:",
        "                " + "x" * 138 + "...",
    ]
    assert "      Message:      bad" in lines
    begins = [line for line in lines if line.startswith(("Ready:", "    Ready:"))]
    assert begins == ["    Ready:          True", "    Ready:          False"]  # of the two containers


def a_pod_that_says(text: str) -> dict[str, Any]:
    pod = copy.deepcopy(POD)
    pod["metadata"] |= {"annotations": {"a": text}, "labels": {"l": text}}
    pod["status"] |= {"message": text, "reason": text}
    pod["status"]["conditions"][0]["reason"] = text
    ended = pod["status"]["containerStatuses"][0]["lastState"]["terminated"]
    ended |= {"message": text, "reason": text}
    pod["spec"]["volumes"] = [
        {
            "name": "v",
            "hostPath": {"path": text},
        }
    ]
    pod["spec"]["containers"][0] |= {
        "image": text,
        "command": [text],
        "env": [{"name": text, "valueFrom": {"secretKeyRef": {"name": text, "key": text}}}],
        "volumeMounts": [{"mountPath": text, "name": "v", "subPath": text}],
        "livenessProbe": {"exec": {"command": [text]}},
    }
    return pod


LINE_ENDS = ["\n", "\r", "\x0b", "\x0c", "\x1b[2J", "\x85", "\u2028", "\u202e", "\x9b1A", "Ready:  True"]


@given(st.lists(st.sampled_from(LINE_ENDS) | st.text(max_size=5)).map("".join))
def test_whatever_a_pod_says_its_fields_are_those_of_any_other(text: str) -> None:
    def fields_of(pod: dict[str, Any]) -> list[str]:
        story = [{**STORY[0], "text": pod["status"]["message"]}]
        lines = "\n".join(describe_pod(pod, [], story, NOW)).split("\n")
        return [line.partition(":")[0] for line in lines if line[:1] != " "]

    said, calm = a_pod_that_says(text), a_pod_that_says("x")
    assert [each for each in fields_of(said) if each not in ("Reason", "Message")] == [
        each for each in fields_of(calm) if each not in ("Reason", "Message")
    ]
    assert len(aligned_pods([said], NOW)) == 2
    assert all(map(str.isprintable, aligned_pods([said], NOW, wide=True)))
    assert all(
        map(str.isprintable, escaped("\n".join(describe_pod(said, [], [], NOW)), keep="\n").split("\n"))
    )


def test_columns_are_aligned() -> None:
    assert aligned([["a", "bbb"], ["ccc", "d"]]) == ["a     bbb", "ccc   d"]


def test_a_cell_keeps_to_its_line_and_column() -> None:
    assert aligned([["a\nb\x1b[2J", "c"], ["d", "e"]]) == ["a\\nb\\x1b[2J   c", "d             e"]
