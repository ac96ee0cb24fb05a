"""`get` and `describe` as text."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from trio_kubelet.commands.render import SeveralPods, aligned, describe_pod, find_pod, pod_table

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


def test_the_table_reads_like_kubectls() -> None:
    assert pod_table([POD], NOW) == [
        "NAMESPACE   NAME        READY   STATUS             RESTARTS      AGE",
        "default     web-node1   1/2     ImagePullBackOff   2 (60s ago)   10m",
    ]
    wide = pod_table([POD], NOW, wide=True)
    assert wide[0].endswith("IP         NODE    NOMINATED NODE   READINESS GATES")
    assert wide[1].endswith("10.0.0.9   node1   <none>           <none>")


def test_readiness_gates_are_counted() -> None:
    pod = copy.deepcopy(POD)
    pod["spec"]["readinessGates"] = [{"conditionType": "Ready"}, {"conditionType": "x/y"}]
    pod["status"]["conditions"].append({"type": "x/y", "status": "True"})
    assert pod_table([pod], NOW, wide=True)[1].endswith("1/2")


def test_the_age_is_that_of_the_object_where_it_has_one() -> None:
    pod = copy.deepcopy(POD)
    pod["metadata"]["creationTimestamp"] = "2023-11-14T21:13:20Z"
    assert pod_table([pod], NOW)[1].endswith("60m")


def test_a_pod_without_status_is_shown() -> None:
    bare = {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c"}]}}
    assert "0/1" in pod_table([bare], NOW)[1]


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
        ({"exec": {"command": ["true"]}}, "exec ['true'] delay=0s"),
        ({"tcpSocket": {"port": 80}}, "tcp-socket :80 delay=0s"),
        ({"grpc": {"port": 9000}}, "grpc :9000 delay=0s"),
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
    assert "hunter2" not in "\n".join(describe_pod(pod, [], [], NOW))


def test_columns_are_aligned() -> None:
    assert aligned([["a", "bbb"], ["ccc", "d"]]) == ["a     bbb", "ccc   d"]
