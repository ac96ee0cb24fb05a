"""What makes a pod invalid, where no recorded pod shows it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trio_kubelet.api.errors import ManifestError
from trio_kubelet.sources.manifest import Origin, static_pod

CONTAINERS = [{"name": "c", "image": "b"}]


def make(spec: dict[str, Any], **metadata: Any) -> None:
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "a", **metadata},
        "spec": {"containers": CONTAINERS, **spec},
    }
    static_pod(json.dumps(body).encode(), Origin("n", "file", "/x"))


def refused(spec: dict[str, Any], **metadata: Any) -> list[str]:
    """The fields that a static pod is refused for, in order; none if it is taken."""
    try:
        make(spec, **metadata)
    except ManifestError as exc:
        return [error.field for error in exc.errors]
    return []


def windows_user(name: str) -> dict[str, Any]:
    return {"securityContext": {"windowsOptions": {"runAsUserName": name}}}


@pytest.mark.parametrize(
    ("name", "good"),
    [
        (f"{'a' * 63}.example\\user", True),
        (f"{'a' * 64}.example\\user", False),
        (".netbios\\user", False),
        ("é" * 52, True),
        ("é" * 53, False),  # counted in bytes
        (" . ", False),
        ("a\\b\\c", False),
    ],
)
def test_user_names_of_windows(name: str, good: bool) -> None:
    field = "spec.securityContext.windowsOptions.runAsUserName"
    assert refused(windows_user(name)) == ([] if good else [field])


@pytest.mark.parametrize(
    ("iqn", "good"),
    [
        ("iqn.2020-01.example:disk", True),
        ("eui.0123456789abcdef", True),
        ("naa.0123456789abcdef0123456789abcdef", True),
        ("iqn.2020-01.example:disk\n", False),
        ("eui.0123456789abcdef\n", False),
        ("naa.0123456789abcdef0123456789abcdef\n", False),
        ("eui-eui.0123456789abcdef", False),
    ],
)
def test_names_of_iscsi_targets(iqn: str, good: bool) -> None:
    source = {"targetPortal": "10.0.0.1:3260", "iqn": iqn, "lun": 0}
    problems = refused({"volumes": [{"name": "v", "iscsi": source}]})
    assert problems == ([] if good else ["spec.volumes[0].iscsi.iqn"])


def test_owners_are_told_as_manifests_name_them_in_the_order_of_the_api() -> None:
    owner = {"controller": True, "uid": "u", "name": "", "kind": "A", "apiVersion": "v1"}
    with pytest.raises(ManifestError) as caught:
        make({}, ownerReferences=[{**owner, "name": name} for name in "ab"])
    each = '{{"apiVersion":"v1","kind":"A","name":"{}","uid":"u","controller":true}}'
    assert f"Invalid value: [{each.format('a')},{each.format('b')}]: Only one" in str(caught.value)


def test_an_event_owns_nothing_however_its_version_is_written() -> None:
    owner = {"kind": "Event", "name": "e", "uid": "u"}
    for version in ("v1", "/v1"):
        assert refused({}, ownerReferences=[{**owner, "apiVersion": version}]) == ["metadata.ownerReferences"]
    assert refused({}, ownerReferences=[{**owner, "apiVersion": "events.k8s.io/v1"}]) == []


def test_a_claim_template_has_labels_and_annotations_only() -> None:
    template = {
        "metadata": {"labels": {"a": "b"}, "uid": "u", "generateName": "g"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    here = "spec.volumes[0].ephemeral.volumeClaimTemplate.metadata"
    volumes = [{"name": "v", "ephemeral": {"volumeClaimTemplate": template}}]
    assert refused({"volumes": volumes}) == [f"{here}.generateName", f"{here}.uID"]


def container(**fields: Any) -> dict[str, Any]:
    return {"containers": [{"name": "c", "image": "b", **fields}]}


def volume(**source: Any) -> dict[str, Any]:
    return {"volumes": [{"name": "v", **source}]}


def projected(*sources: dict[str, Any]) -> dict[str, Any]:
    return volume(projected={"sources": list(sources)})


C, V = "spec.containers[0]", "spec.volumes[0]"
LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
NAME = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must"
    " start and end"
    f" with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is"
    f" '{LABEL}')"
)
NAME_RULE = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric"
    f" character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '{NAME}')"
)


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (container(name="C"), [f'{C}.name: Invalid value: "C": {LABEL_RULE}']),
        (
            container(name="a." + "b" * 62),
            [
                f'{C}.name: Invalid value: "a.{"b" * 62}": {why}'
                for why in ("must be no more than 63 characters", "must not contain dots")
            ],
        ),
        (
            {"nodeSelector": {"/a": "b"}},
            ['spec.nodeSelector: Invalid value: "/a": prefix part must be non-empty'],
        ),
        (
            {"readinessGates": [{"conditionType": ""}]},
            [
                f'spec.readinessGates[0].conditionType: Invalid value: "": name part {why}'
                for why in ("must be non-empty", NAME_RULE)
            ],
        ),
        (
            container(ports=[{"containerPort": 0}, {"containerPort": 1, "name": "-2--"}]),
            [f"{C}.ports[0].containerPort: Required value"]
            + [
                f'{C}.ports[1].name: Invalid value: "-2--": {why}'
                for why in (
                    "must contain at least one letter (a-z)",
                    "must not contain consecutive hyphens",
                    "must not begin or end with a hyphen",
                )
            ],
        ),
        (
            container(ports=[{"containerPort": 1, "protocol": "IP"}]),
            [f'{C}.ports[0].protocol: Unsupported value: "IP": supported values: "SCTP", "TCP", "UDP"'],
        ),
        (
            container(env=[{"name": "a=b", "valueFrom": {}}]),
            [
                f'{C}.env[0].name: Invalid value: "a=b": a valid environment variable name must'
                f" consist only of"
                " printable ASCII characters other than '='",
                f'{C}.env[0].valueFrom: Invalid value: "": must specify one of: `fieldRef`,'
                f" `resourceFieldRef`,"
                " `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
            ],
        ),
        (
            container(env=[{"name": "a", "valueFrom": {"fieldRef": {"fieldPath": "spec.host['a']"}}}]),
            [
                f"{C}.env[0].valueFrom.fieldRef.fieldPath: Invalid value: \"spec.host['a']\": error"
                f" converting"
                " fieldPath: field label does not support subscript: spec.host['a']"
            ],
        ),
        (
            container(
                env=[
                    {
                        "name": "a",
                        "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "2"}},
                    }
                ]
            ),
            [
                f'{C}.env[0].valueFrom.resourceFieldRef.divisor: Invalid value: "limits.memory": only'
                f" divisor's"
                " values 1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei are supported with"
                " the memory"
                " resource"
            ],
        ),
        (
            container(volumeMounts=[{"name": "v", "mountPath": "/a", "subPath": "/b/../c"}]),
            [f'{C}.volumeMounts[0].name: Not found: "v"']
            + [
                f'{C}.volumeMounts.subPath: Invalid value: "/b/../c": {why}'
                for why in ("must be a relative path", "must not contain '..'")
            ],
        ),
        (
            container(resources={"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}),
            [f'{C}.resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1'],
        ),
        (
            container(resources={"limits": {"hugepages-2Mi": "3Mi"}}),
            [
                f'{C}.resources.limits[hugepages-2Mi]: Invalid value: "3Mi": 3Mi is not positive'
                f" integer multiple"
                " of hugepages-2Mi",
                f'{C}.resources.requests[hugepages-2Mi]: Invalid value: "3Mi": 3Mi is not positive integer'
                " multiple of hugepages-2Mi",
                f"{C}.resources: Forbidden: HugePages require cpu or memory",
            ],
        ),
        (
            container(livenessProbe={"periodSeconds": -1, "successThreshold": 2}),
            [
                f"{C}.livenessProbe: Required value: must specify a handler type",
                f"{C}.livenessProbe.periodSeconds: Invalid value: -1: must be greater than or equal to 0",
                f"{C}.livenessProbe.successThreshold: Invalid value: 2: must be 1",
            ],
        ),
        (
            container(lifecycle={"preStop": {"sleep": {"seconds": 31}}}),
            [
                f"{C}.lifecycle.preStop.sleep: Invalid value: 31: must be non-negative and less than"
                " terminationGracePeriodSeconds (30)"
            ],
        ),
        (
            container(
                restartPolicy="Never",
                restartPolicyRules=[
                    {"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}} for _ in range(21)
                ],
            ),
            [f"{C}.restartPolicyRules: Too many: 21: must have at most 20 items"],
        ),
        (
            container(securityContext={"runAsUser": -1, "seccompProfile": {"type": "Localhost"}}),
            [
                f"{C}.securityContext.runAsUser: Invalid value: -1: must be between 0 and 2147483647,"
                f" inclusive",
                f"{C}.securityContext.seccompProfile.localhostProfile: Required value: must be set"
                f" when seccomp"
                " type is Localhost",
            ],
        ),
        (
            volume(hostPath={"path": "/a/.."}),
            [f"{V}.hostPath.path: Invalid value: \"/a/..\": must not contain '..'"],
        ),
        (
            volume(emptyDir={}, hostPath={"path": "/"}),
            [f"{V}.hostPath: Forbidden: may not specify more than 1 volume type"],
        ),
        (
            volume(csi={"driver": "a" * 64}),
            [f"{V}.csi.driver: Too long: may not be more than 63 bytes"],
        ),
        (
            projected({"podCertificate": {"keyType": "RSA", "signerName": "one/two", "keyPath": "k"}}),
            [
                f'{V}.projected.sources[0].podCertificate.signerName: Invalid value: "one": should be'
                f" a domain"
                " with at least two segments separated by dots",
                f'{V}.projected.sources[0].podCertificate.keyType: Unsupported value: "RSA":'
                f" supported values:"
                ' "RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"',
            ],
        ),
        (
            projected({"clusterTrustBundle": {"name": "a/b:c", "path": "p"}}),
            [
                f'{V}.projected.sources[0].clusterTrustBundle.name: Invalid value: "a/b:c": not a valid'
                " clustertrustbundlename: ClusterTrustBundle for signerName a/b must be named with"
                " prefix a:b:"
            ],
        ),
        (
            {"dnsPolicy": "None"},
            ["spec.dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is None"],
        ),
        (
            {"dnsConfig": {"nameservers": ["1.1.1.1", "1.1.1.01", "x", "::ffff:1.1.1.1"]}},
            [
                "spec.dnsConfig.nameservers: Invalid value:"
                ' ["1.1.1.1","1.1.1.01","x","::ffff:1.1.1.1"]: must not'
                " have more than 3 nameservers",
                'spec.dnsConfig.nameservers[1]: Invalid value: "1.1.1.01": must not have leading 0s',
                'spec.dnsConfig.nameservers[2]: Invalid value: "x": must be a valid IP address,'
                " (e.g. 10.9.8.7 or"
                " 2001:db8::ffff)",
                'spec.dnsConfig.nameservers[3]: Invalid value: "::ffff:1.1.1.1": must not be an'
                " IPv4-mapped IPv6"
                " address",
            ],
        ),
        (
            {"tolerations": [{"operator": "Equal", "value": "-", "tolerationSeconds": 3}]},
            [
                'spec.tolerations[0].operator: Invalid value: "Equal": operator must be Exists when'
                " `key` is empty,"
                ' which means "match all values and all keys"',
                "spec.tolerations[0].effect: Invalid value: \"\": effect must be 'NoExecute' when"
                " `tolerationSeconds` is set",
                'spec.tolerations[0].operator: Invalid value: "-": a valid label must be an empty'
                " string or consist"
                " of alphanumeric characters, '-', '_' or '.', and must start and end with an"
                " alphanumeric character"
                f" (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '({NAME})?')",
            ],
        ),
        (
            {"resourceClaims": [{"name": "r"}]},
            [
                'spec.resourceClaims[0]: Invalid value: {"Name":"r","ResourceClaimName":null,'
                '"ResourceClaimTemplateName":null}: must specify one of: `resourceClaimName`,'
                " `resourceClaimTemplateName`"
            ],
        ),
        (
            {"hostnameOverride": "a" * 65, "hostNetwork": True},
            [
                "spec.hostnameOverride: Forbidden: may not be specified when hostNetwork is true",
                "spec.hostnameOverride: Too long: may not be more than 64 bytes",
            ],
        ),
        (
            {
                "containers": [
                    {
                        **CONTAINERS[0],
                        "securityContext": {
                            "privileged": True,
                            "allowPrivilegeEscalation": False,
                            "capabilities": {"drop": ["<ALL>"]},
                            "seLinuxOptions": {"level": "s0"},
                        },
                    }
                ]
            },
            [
                'spec.containers[0].securityContext: Invalid value: {"Capabilities":{"Add":null,"Drop":'
                '["\\u003cALL\\u003e"]},"Privileged":true,"SELinuxOptions":{"User":"","Role":"","Type":"",'
                '"Level":"s0"},"WindowsOptions":null,"RunAsUser":null,"RunAsGroup":null,"RunAsNonRoot":null,'
                '"ReadOnlyRootFilesystem":null,"AllowPrivilegeEscalation":false,"ProcMount":null,'
                '"SeccompProfile":null,"AppArmorProfile":null}: '
                "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"
            ],
        ),
        (
            {"os": {"name": "windows"}, "hostPID": True},
            ["spec.hostPID: Forbidden: cannot be set for a windows pod"],
        ),
        (
            {"activeDeadlineSeconds": 0},
            ["spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive"],
        ),
    ],
)
def test_a_refused_pod_is_told_in_the_words_of_kubernetes(spec: dict[str, Any], told: list[str]) -> None:
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "a"},
        "spec": {"containers": CONTAINERS, **spec},
    }
    with pytest.raises(ManifestError) as caught:
        static_pod(json.dumps(body).encode(), Origin("n", "file", "/x"))
    assert list(map(str, caught.value.errors)) == told
    assert str(caught.value) == f"invalid pod: [{' '.join(told)}]"


@pytest.mark.parametrize(
    ("spec", "fields"),
    [
        (
            {
                "containers": [
                    {
                        **CONTAINERS[0],
                        "livenessProbe": {"exec": {}, "tcpSocket": {"port": 80}},
                        "lifecycle": {"preStop": {"httpGet": {"port": 0}, "sleep": {"seconds": 1}}},
                    }
                ]
            },
            [
                "spec.containers[0].lifecycle.preStop.httpGet.port",
                "spec.containers[0].lifecycle.preStop.sleep",
                "spec.containers[0].livenessProbe.exec.command",
                "spec.containers[0].livenessProbe.tcpSocket",
            ],
        ),
        (
            {
                "securityContext": {
                    "seLinuxChangePolicy": "x",
                    "supplementalGroupsPolicy": "x",
                    "seccompProfile": {"type": "x"},
                    "fsGroupChangePolicy": "x",
                }
            },
            [
                f"spec.securityContext.{field}"
                for field in (
                    "fsGroupChangePolicy",
                    "seccompProfile.type",
                    "supplementalGroupsPolicy",
                    "seLinuxChangePolicy",
                )
            ],
        ),
        (
            {
                "os": {"name": "x"},
                "schedulingGroup": {"podGroupName": "X"},
                "overhead": {"x": "1"},
                "preemptionPolicy": "x",
                "runtimeClassName": "X",
                "priorityClassName": "X",
                "hostAliases": [{"ip": "x"}],
                "tolerations": [{"key": "a", "effect": "x"}],
                "subdomain": "X",
                "hostname": "X",
                "activeDeadlineSeconds": 0,
                "nodeName": "X",
                "serviceAccountName": "X",
                "hostnameOverride": "X",
                "securityContext": {"windowsOptions": {"hostProcess": True}},
            },
            [
                f"spec.{field}"
                for field in (
                    "hostNetwork",
                    "hostnameOverride",
                    "serviceAccountName",
                    "activeDeadlineSeconds",
                    "hostname",
                    "subdomain",
                    "tolerations[0].effect",
                    "hostAliases[0].ip",
                    "priorityClassName",
                    "runtimeClassName",
                    "preemptionPolicy",
                    "overhead.limits[x]",
                    "overhead.limits[x]",
                    "os",
                    "schedulingGroup.podGroupName",
                )
            ],
        ),
        (
            {
                "ephemeralContainers": [
                    {
                        "name": "c",
                        "image": " b",
                        "lifecycle": {},
                        "startupProbe": {"exec": {}},
                        "resizePolicy": [],
                        "resources": {"limits": {"cpu": "1"}},
                    }
                ]
            },
            [
                *(
                    f"spec.ephemeralContainers[0].{field}"
                    for field in ("image", "name", "resources", "resizePolicy", "startupProbe", "lifecycle")
                ),
                "spec.ephemeralContainers",
            ],
        ),
    ],
)
def test_errors_come_in_the_order_of_kubernetes(spec: dict[str, Any], fields: list[str]) -> None:
    assert refused(spec) == fields


def test_errors_of_metadata_come_in_the_order_of_kubernetes() -> None:
    metadata = {"managedFields": [{"operation": "x"}], "finalizers": ["x", "<y>"]}
    assert refused({}, **metadata) == [
        "metadata.finalizers",
        "metadata.managedFields[0].operation",
        "metadata.finalizers[0]",
        "metadata.finalizers[1]",
    ]
    template = {
        "metadata": {"finalizers": ["x"], "uid": "u", "resourceVersion": "1", "selfLink": "/x", "name": "n"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    volumes = [{"name": "v", "ephemeral": {"volumeClaimTemplate": template}}]
    assert refused({"volumes": volumes}) == [
        f"spec.volumes[0].ephemeral.volumeClaimTemplate.metadata.{field}"
        for field in ("name", "selfLink", "uID", "resourceVersion", "finalizers")
    ]


def test_errors_of_a_claim_come_in_the_order_of_kubernetes() -> None:
    spec = {
        "accessModes": ["x"],
        "selector": {"matchLabels": {"a": "<"}},
        "resources": {"requests": {"storage": "0"}},
        "storageClassName": "X",
        "volumeMode": "x",
        "dataSource": {"kind": "PersistentVolumeClaim", "name": ""},
        "volumeAttributesClassName": "X",
    }
    fields = refused({"volumes": [{"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": spec}}}]})
    assert [
        field.removeprefix("spec.volumes[0].ephemeral.volumeClaimTemplate.spec.") for field in fields
    ] == [
        "selector.matchLabels",
        "accessModes",
        "resources[storage]",
        "storageClassName",
        "volumeMode",
        "dataSource.name",
        "volumeAttributesClassName",
    ]


def test_the_domain_of_a_key_is_measured_in_bytes_and_so_told() -> None:
    key = f"{'a' * 254}/b"
    with pytest.raises(ManifestError) as caught:
        make({}, labels={key: ""})
    assert str(caught.value) == (
        f'invalid pod: [metadata.labels: Invalid value: "{key}": prefix part must be no more than 253 bytes]'
    )
