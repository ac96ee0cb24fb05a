"""What a static pod may have under feature gates, both ways."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trio_kubelet.api.errors import ManifestError
from trio_kubelet.api.v1 import Pod
from trio_kubelet.config.gates import resolve_gates
from trio_kubelet.sources.manifest import Origin, static_pod
from trio_kubelet.sources.start import pod_rules

RESTART = {"action": "Restart", "exitCodes": {"operator": "In", "values": [3]}}
RESTART_ALL = {**RESTART, "action": "RestartAllContainers"}
NO_RULES = {"ContainerRestartRules": False, "RestartAllContainersOnContainerExits": False}
NO_ALL = {"RestartAllContainersOnContainerExits": False}
NOT_PREVENTED = {"PreventStaticPodAPIReferences": False}
COMPARING = {"TaintTolerationComparisonOperators": True}
NOT_MERGED = {"MatchLabelKeysInPodTopologySpreadSelectorMerge": False}
NOT_SPREAD = {**NOT_MERGED, "MatchLabelKeysInPodTopologySpread": False}
SPREAD = "spec.topologySpreadConstraints[0]"
LOOSE_ADDRESSES = {"StrictIPCIDRValidation": False}
BY_MOUNTING = {"securityContext": {"seLinuxChangePolicy": "MountOption"}}


def make(gates: dict[str, bool], spec: dict[str, Any], annotations: dict[str, str] | None = None) -> Pod:
    containers = spec.pop("containers", [{"name": "c", "image": "b"}])
    metadata = {"name": "a", "annotations": annotations or {}}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": containers, **spec},
    }
    origin = Origin("n", "file", "/x", pod_rules(resolve_gates(gates)))
    return static_pod(json.dumps(body).encode(), origin)


def container(**fields: Any) -> dict[str, Any]:
    return {"name": "c", "image": "b", **fields}


def toleration(value: str) -> dict[str, Any]:
    return {"tolerations": [{"key": "k", "operator": "Gt", "value": value, "effect": "NoSchedule"}]}


def spread(**selector: Any) -> dict[str, Any]:
    constraint = {
        "maxSkew": 1,
        "topologyKey": "zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": selector,
        "matchLabelKeys": ["app"],
    }
    return {"topologySpreadConstraints": [constraint]}


def alias(address: str) -> dict[str, Any]:
    return {"hostAliases": [{"ip": address, "hostnames": ["h"]}]}


def init(**fields: Any) -> dict[str, Any]:
    return {"initContainers": [{"name": "i", "image": "b", **fields}]}


@pytest.mark.parametrize(
    ("gates", "spec", "field"),
    [
        ({}, toleration("5"), "spec.tolerations[0].operator"),
        (COMPARING, toleration("5"), ""),
        (COMPARING, toleration("05"), "spec.tolerations[0].value"),
        ({}, {"containers": [container(restartPolicy="Never", restartPolicyRules=[RESTART])]}, ""),
        (NO_RULES, {"containers": [container(restartPolicy="Never")]}, "spec.containers[0].restartPolicy"),
        (NO_RULES, init(restartPolicy="Never"), "spec.initContainers[0].restartPolicy"),
        (NO_RULES, init(restartPolicyRules=[RESTART]), "spec.initContainers[0].restartPolicy"),
        (NO_RULES, init(restartPolicy="Always"), ""),
        (
            NO_ALL,
            {"containers": [container(restartPolicy="Never", restartPolicyRules=[RESTART_ALL])]},
            "spec.containers[0].restartPolicyRules[0].action",
        ),
        (
            NO_ALL,
            init(restartPolicy="Always", restartPolicyRules=[RESTART]),
            "spec.initContainers[0].restartPolicyRules",
        ),
        (NO_ALL, init(restartPolicy="Never", restartPolicyRules=[RESTART]), ""),
        ({}, spread(matchLabels={"app": "a"}), ""),
        (NOT_MERGED, spread(matchLabels={"other": "a"}), ""),
        (NOT_MERGED, spread(matchLabels={"app": "a"}), f"{SPREAD}.matchLabelKeys[0]"),
        (
            NOT_SPREAD,
            spread(matchExpressions=[{"key": "app", "operator": "Exists"}]),
            f"{SPREAD}.matchLabelKeys[0]",
        ),
        ({}, alias("010.0.0.1"), "spec.hostAliases[0].ip"),
        ({}, alias("::ffff:10.0.0.1"), "spec.hostAliases[0].ip"),
        (LOOSE_ADDRESSES, alias("010.0.0.1"), ""),
        (LOOSE_ADDRESSES, alias("::ffff:10.000.0.01"), ""),
        (LOOSE_ADDRESSES, alias("0000001::100"), ""),
        (LOOSE_ADDRESSES, alias("fe80::1%eth0"), "spec.hostAliases[0].ip"),
        (LOOSE_ADDRESSES, alias("256.0.0.1"), "spec.hostAliases[0].ip"),
        ({}, BY_MOUNTING, "spec.securityContext.seLinuxChangePolicy"),
        ({"SELinuxMount": True}, BY_MOUNTING, ""),
        ({}, {"serviceAccountName": "sa"}, "spec.serviceAccountName"),
        (NOT_PREVENTED, {"serviceAccountName": "sa", "imagePullSecrets": [{"name": "s"}]}, ""),
        (
            NOT_PREVENTED,
            {"resourceClaims": [{"name": "r", "resourceClaimName": "x"}]},
            "spec.resourceClaims",
        ),
    ],
)
def test_gates_decide_what_a_static_pod_may_have(
    gates: dict[str, bool], spec: dict[str, Any], field: str
) -> None:
    if not field:
        make(gates, spec)
        return
    with pytest.raises(ManifestError) as caught:
        make(gates, spec)
    assert [error.field for error in caught.value.errors] == [field]


def test_bundles_of_trust_are_for_no_static_pod() -> None:
    source = {"clusterTrustBundle": {"name": "b", "path": "p"}}
    spec = {"volumes": [{"name": "v", "projected": {"sources": [source]}}]}
    with pytest.raises(ManifestError, match="ClusterTrustBundle projected volume sources"):
        make(NOT_PREVENTED, spec)


def test_resources_of_a_whole_pod_are_not_looked_at_without_their_gate() -> None:
    spec = {"resources": {"limits": {"memory": "1Gi"}, "requests": {"memory": "2Gi"}}}
    with pytest.raises(ManifestError, match=r"spec\.resources"):
        make({}, dict(spec))
    gates = {"PodLevelResources": False, "InPlacePodLevelResourcesVerticalScaling": False}
    pod = make(gates, {"resources": {"limits": {"memory": "1Gi"}}})
    assert pod.spec.resources is not None
    assert not pod.spec.resources.requests
    assert make(gates, spec).spec.resources is not None


def test_the_cost_of_a_deletion_is_read_where_it_counts() -> None:
    odd = {"controller.kubernetes.io/pod-deletion-cost": "dear"}
    with pytest.raises(ManifestError, match="pod-deletion-cost"):
        make({}, {}, odd)
    make({"PodDeletionCost": False}, {}, odd)


@pytest.mark.parametrize(
    ("gates", "offered"),
    [
        ({}, "`configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"),
        ({"EnvFiles": False}, "`configMapKeyRef` or `secretKeyRef`"),
    ],
)
def test_where_a_variable_may_come_from(gates: dict[str, bool], offered: str) -> None:
    nowhere = {"containers": [container(env=[{"name": "A", "valueFrom": {}}])]}
    with pytest.raises(ManifestError) as caught:
        make(gates, nowhere)
    assert f"must specify one of: `fieldRef`, `resourceFieldRef`, {offered}]" in str(caught.value)
