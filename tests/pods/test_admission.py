"""Admission: the recorded refusals word for word, and each rule by itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.pods.build import SOURCE, api_pod, make_pod
from trio_kubelet.api import v1
from trio_kubelet.api.sysctls import normal_sysctl
from trio_kubelet.api.tolerations import tolerates
from trio_kubelet.node.profile import default_labels
from trio_kubelet.pods.admission.admitter import Admit, Decision, Preempt, Reject
from trio_kubelet.pods.admission.fit import Insufficient, NodeFacts, matches_node
from trio_kubelet.pods.admission.occupancy import Occupancy
from trio_kubelet.pods.admission.preemption import NoVictims, choose_victims, subtract
from trio_kubelet.pods.admission.rules import decide
from trio_kubelet.pods.admission.sysctls import SysctlAllowlist, safe_sysctls
from trio_kubelet.pods.status.generate import rejected_status

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "admission.json").read_text())
PREDICATES = json.loads((Path(__file__).parents[1] / "golden" / "admission-predicates.json").read_text())
# The recorded node had 2 CPUs; its allocatable memory follows from the recorded amount that was short.
NODE = NodeFacts(
    name="node1",
    labels={"kubernetes.io/os": "linux", "kubernetes.io/hostname": "node1", "zone": "3"},
    allocatable={"cpu": "2", "memory": "25171644416", "ephemeral-storage": "50Gi", "pods": "110"},
)
SYSCTLS = SysctlAllowlist([*safe_sysctls("6.1.0-18-amd64"), "net.core.*", "kernel.msg*"])


def admit(pod: v1.Pod, *others: v1.Pod, node: NodeFacts = NODE) -> Decision:
    return decide(pod, Occupancy(others).beside(pod.metadata.uid), node, SYSCTLS)


@pytest.mark.parametrize("case", PREDICATES["cases"])
def test_recorded_predicates(case: dict[str, Any]) -> None:
    """What was made up at random, as the kubelet answers it: reason, words, and who is ended for it."""
    pod, node = msgspec.convert(case["pod"], v1.Pod), msgspec.convert(case["node"], v1.Node)
    others = msgspec.convert(case["others"], list[v1.Pod])
    facts = NodeFacts(
        name=node.metadata.name,
        labels={**(node.metadata.labels or {}), "kubernetes.io/os": "linux"},
        allocatable=node.status.allocatable or {},
        taints=node.spec.taints or (),
        strict_supplemental_groups=case["node"]["status"].get("features")
        == {"supplementalGroupsPolicy": True},
    )
    decision, answer = admit(pod, *others, node=facts), case["answer"]
    if isinstance(decision, Reject):
        assert {"reason": decision.reason, "message": decision.message} == answer
    elif isinstance(decision, Preempt):
        assert {"admit": True, "victims": [victim.metadata.name for victim in decision.victims]} == answer
    else:
        assert answer == {"admit": True}


def with_requests(name: str, *, source: str = "api", priority: int | None = None, **requests: Any) -> v1.Pod:
    names = {"storage": "ephemeral-storage", "gpu": "example.com/gpu", "huge": "hugepages-2Mi"}
    wanted = {names.get(key, key): value for key, value in requests.items()}
    container = v1.Container(name="c", image="i", resources=v1.ResourceRequirements(requests=wanted or None))
    return make_pod(name, source=source, containers=[container], spec={"priority": priority})


def test_recorded_refusals() -> None:
    """The pods of the recording one after the other, as the kubelet met them."""
    active: list[v1.Pod] = []
    for case in GOLDEN["cases"]:
        pod = msgspec.convert(case["manifest"], v1.Pod)
        pod = replace(
            pod, metadata=replace(pod.metadata, uid=pod.metadata.name, annotations={SOURCE: "file"})
        )
        decision = admit(pod, *active)
        if case["phase"] == "Running":
            assert decision == Admit()
            active.append(pod)
            continue
        assert isinstance(decision, Reject)
        status = rejected_status(pod, decision.reason, decision.message)
        assert (status.phase, status.reason, status.message) == (
            case["phase"],
            case["reason"],
            case["message"],
        )


@pytest.mark.parametrize(
    ("requests", "reason", "message"),
    [
        ({"cpu": "1500m"}, "OutOfcpu", "cpu, requested: 1500, used: 1000, capacity: 2000"),
        ({"memory": "24Gi"}, "OutOfmemory", "memory, requested: 25769803776, used: 0, capacity: 25171644416"),
        (
            {"storage": "51Gi"},
            "OutOfephemeral-storage",
            "ephemeral-storage, requested: 54760833024, used: 0, capacity: 53687091200",
        ),
        ({"huge": "2Mi"}, "OutOfhugepages-2Mi", "hugepages-2Mi, requested: 2097152, used: 0, capacity: 0"),
    ],
)
def test_an_ordinary_pod_is_refused_for_want_of_resources(
    requests: dict[str, Any], reason: str, message: str
) -> None:
    decision = admit(with_requests("p", **requests), with_requests("other", cpu="1"))
    assert decision == Reject(reason, f"Node didn't have enough resource: {message}")


def test_a_resource_this_node_does_not_advertise_is_not_its_business() -> None:
    assert admit(with_requests("p", gpu="1")) == Admit()
    node = replace(NODE, allocatable={**NODE.allocatable, "example.com/gpu": "1"})
    assert admit(with_requests("p", gpu="1"), node=node) == Admit()
    decision = admit(with_requests("p", gpu="1"), with_requests("q", gpu="1"), node=node)
    assert isinstance(decision, Reject)
    assert (decision.reason, decision.metric_reason) == ("OutOfexample.com/gpu", "OutOfExtendedResources")


@pytest.mark.parametrize("resource", ["example.com/gpu", "deviceclass.resource.kubernetes.io/gpu"])
def test_what_a_claim_gives_a_container_need_not_be_free_on_the_node(resource: str) -> None:
    node = replace(NODE, allocatable={**NODE.allocatable, "example.com/gpu": "0"})
    resources = v1.ResourceRequirements(requests={resource: "1"}, limits={resource: "1"})
    container = v1.Container(name="c", image="i", resources=resources)
    pod = make_pod("p", source="api", containers=[container])
    reason = f"OutOf{resource}"

    def claiming(container: str, node: NodeFacts = node) -> Decision:
        mapping = v1.ContainerExtendedResourceRequest(container_name=container, resource_name=resource)
        claim = v1.PodExtendedResourceClaimStatus(resource_claim_name="x", request_mappings=[mapping])
        status = replace(pod.status, extended_resource_claim_status=claim)
        return admit(replace(pod, status=status), node=node)

    assert claiming("c") == Admit()
    without_the_gate = replace(node, extended_claims=False)
    for decision in (admit(pod, node=node), claiming("another"), claiming("c", without_the_gate)):
        assert isinstance(decision, Reject)
        assert decision.reason == reason


def test_too_many_pods() -> None:
    node = replace(NODE, allocatable={**NODE.allocatable, "pods": "2"})
    others = [api_pod("a"), api_pod("b")]
    assert admit(api_pod("c"), others[0], node=node) == Admit()
    message = "Node didn't have enough resource: pods, requested: 1, used: 2, capacity: 2"
    assert admit(api_pod("c"), *others, node=node) == Reject("OutOfpods", message)


def test_the_first_failure_is_the_one_that_is_told() -> None:
    pod = with_requests("p", cpu="3")
    pod = replace(pod, spec=replace(pod.spec, node_selector={"disk": "ssd"}, node_name="elsewhere"))
    decision = admit(pod)
    assert isinstance(decision, Reject)
    assert decision.reason == "OutOfcpu"


def test_node_name() -> None:
    message = "Predicate NodeName failed: node(s) didn't match the requested node name"
    assert admit(api_pod(spec={"node_name": "node2"})) == Reject("NodeName", message)
    assert admit(api_pod(spec={"node_name": "node1"})) == Admit()


def port_pod(name: str, *ports: tuple[int, str, str], sidecar: bool = False) -> v1.Pod:
    container = v1.Container(
        name="c",
        image="i",
        ports=[v1.ContainerPort(host_port=n, protocol=p, host_ip=ip, container_port=1) for n, p, ip in ports],
    )
    if sidecar:
        spec = {"init_containers": [replace(container, name="s", restart_policy="Always")]}
        return api_pod(name, spec=spec)
    return api_pod(name, containers=[container])


@pytest.mark.parametrize(
    ("mine", "its", "conflict"),
    [
        ((80, "TCP", ""), (80, "TCP", ""), True),
        ((80, "TCP", ""), (80, "UDP", ""), False),
        ((80, "TCP", ""), (81, "TCP", ""), False),
        ((80, "", "10.0.0.1"), (80, "TCP", "10.0.0.1"), True),
        ((80, "TCP", "10.0.0.1"), (80, "TCP", "10.0.0.2"), False),
        ((80, "TCP", "10.0.0.1"), (80, "TCP", ""), True),
        ((80, "TCP", "0.0.0.0"), (80, "TCP", "10.0.0.2"), True),
        ((0, "TCP", ""), (0, "TCP", ""), False),
    ],
)
def test_host_ports(mine: tuple[int, str, str], its: tuple[int, str, str], conflict: bool) -> None:
    for sidecar in (False, True):
        decision = admit(port_pod("a", mine), port_pod("b", its, sidecar=sidecar))
        assert (decision != Admit()) == conflict


def affinity(*terms: v1.NodeSelectorTerm) -> v1.Pod:
    required = v1.NodeSelector(node_selector_terms=list(terms))
    node = v1.NodeAffinity(required_during_scheduling_ignored_during_execution=required)
    return api_pod(spec={"affinity": v1.Affinity(node_affinity=node)})


def term(key: str, operator: str, *values: str, fields: bool = False) -> v1.NodeSelectorTerm:
    requirement = v1.NodeSelectorRequirement(key=key, operator=operator, values=list(values) or None)
    if fields:
        return v1.NodeSelectorTerm(match_fields=[requirement])
    return v1.NodeSelectorTerm(match_expressions=[requirement])


@pytest.mark.parametrize(
    ("terms", "matches"),
    [
        ([term("zone", "In", "1", "3")], True),
        ([term("zone", "In", "1")], False),
        ([term("zone", "In", "1"), term("zone", "Exists")], True),
        ([term("zone", "NotIn", "3")], False),
        ([term("rack", "NotIn", "3")], True),
        ([term("zone", "NotIn")], False),
        ([term("rack", "DoesNotExist")], True),
        ([term("zone", "Gt", "2")], True),
        ([term("zone", "Gt", "3")], False),
        ([term("zone", "Lt", "4")], True),
        ([term("zone", "Lt", "x")], False),
        ([term("rack", "Lt", "4")], False),
        ([term("metadata.name", "In", "node1", fields=True)], True),
        ([term("metadata.name", "NotIn", "node1", fields=True)], False),
        ([term("metadata.name", "In", "node1", "node2", fields=True)], False),
        ([term("metadata.name", "Exists", fields=True)], False),
        ([v1.NodeSelectorTerm()], False),
        ([], False),
        ([term("zone", "Like", "3")], False),
    ],
)
def test_node_affinity(terms: list[v1.NodeSelectorTerm], matches: bool) -> None:
    assert matches_node(affinity(*terms), NODE) == matches


def test_taints_concern_only_pods_of_the_api_server() -> None:
    node = replace(NODE, taints=[v1.Taint(key="k", value="v", effect="NoExecute")])
    message = "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate"
    assert admit(api_pod(), node=node) == Reject("TaintToleration", message)
    assert admit(make_pod(), node=node) == Admit()
    assert admit(api_pod(spec={"tolerations": [v1.Toleration(operator="Exists")]}), node=node) == Admit()
    only_scheduling = replace(NODE, taints=[v1.Taint(key="k", effect="NoSchedule")])
    assert admit(api_pod(), node=only_scheduling) == Admit()


@pytest.mark.parametrize(
    ("toleration", "expected"),
    [
        (v1.Toleration(key="k", operator="Exists"), True),
        (v1.Toleration(key="k", value="v"), True),
        (v1.Toleration(key="k", operator="Equal", value="w"), False),
        (v1.Toleration(key="k", operator="Exists", effect="NoSchedule"), False),
        (v1.Toleration(key="other", operator="Exists"), False),
        (v1.Toleration(key="k", operator="Odd"), False),
    ],
)
def test_tolerations(toleration: v1.Toleration, expected: bool) -> None:
    assert tolerates(toleration, v1.Taint(key="k", value="v", effect="NoExecute")) == expected


@pytest.mark.parametrize(
    ("operator", "wanted", "given", "expected"),
    [
        ("Lt", "950", "949", True),
        ("Lt", "950", "950", False),
        ("Gt", "-3", "-2", True),
        ("Gt", "10", "9", False),
        ("Gt", "010", "20", False),
        ("Gt", "1", "much", False),
        ("Gt", "1", "9223372036854775808", False),
    ],
)
def test_tolerations_that_compare_count_only_with_their_gate(
    operator: str, wanted: str, given: str, expected: bool
) -> None:
    toleration = v1.Toleration(key="k", operator=operator, value=wanted, effect="NoExecute")
    pod = api_pod(spec={"tolerations": [toleration]})
    node = replace(NODE, taints=[v1.Taint(key="k", value=given, effect="NoExecute")])
    assert admit(pod, node=node) != Admit()
    assert (admit(pod, node=replace(node, comparing_tolerations=True)) == Admit()) is expected


def sysctl_pod(name: str, **spec: Any) -> v1.Pod:
    context = v1.PodSecurityContext(sysctls=[v1.Sysctl(name=name, value="1")])
    return api_pod(spec={"security_context": context, **spec})


@pytest.mark.parametrize(
    ("pod", "message"),
    [
        (sysctl_pod("kernel.shm_rmid_forced"), None),
        (sysctl_pod("net.core.somaxconn"), None),
        (sysctl_pod("net/core/somaxconn"), None),
        (sysctl_pod("kernel.msgmax"), None),
        (sysctl_pod("kernel.hostname"), 'forbidden sysctl: "kernel.hostname" not allowlisted'),
        (
            sysctl_pod("net.core.somaxconn", host_network=True),
            'forbidden sysctl: "net.core.somaxconn" not allowed with host Net enabled',
        ),
        (
            sysctl_pod("kernel.shm_rmid_forced", host_ipc=True),
            'forbidden sysctl: "kernel.shm_rmid_forced" not allowed with host IPC enabled',
        ),
    ],
)
def test_sysctls(pod: v1.Pod, message: str | None) -> None:
    assert admit(pod) == (Admit() if message is None else Reject("SysctlForbidden", message))


def test_sysctl_patterns_and_kernels() -> None:
    with pytest.raises(ValueError, match="not known to be namespaced"):
        SysctlAllowlist(["vm.*"])
    for bad in ("net.*.forwarding", "net.ipv4.", "*.", "net.core.x" * 30):
        with pytest.raises(ValueError, match="match regex"):
            SysctlAllowlist([bad])
    assert "net.ipv4.tcp_rmem" not in safe_sysctls("4.9.0")
    assert "net.ipv4.tcp_rmem" in safe_sysctls("4.15")
    assert normal_sysctl("net/ipv4/conf/eno2.100/rp_filter") == "net.ipv4.conf.eno2/100.rp_filter"


def test_operating_system_label() -> None:
    pod = api_pod()
    other = replace(pod, metadata=replace(pod.metadata, labels={"kubernetes.io/os": "windows"}))
    decision = admit(other)
    assert isinstance(decision, Reject)
    assert decision.reason == "PodOSSelectorNodeLabelDoesNotMatch"


def test_a_runtime_class_without_an_api_server_is_refused_with_a_reason() -> None:
    pod = make_pod(spec={"runtime_class_name": "gvisor"})
    decision = admit(pod)
    assert isinstance(decision, Reject)
    assert decision.reason == "RuntimeClassNotSupported"
    assert admit(pod, node=replace(NODE, runtime_classes={"gvisor": "runsc"})) == Admit()
    assert admit(make_pod(spec={"runtime_class_name": ""})) == Admit()


def test_resources_of_a_pod_as_a_whole_need_their_gate() -> None:
    pod = with_requests("p")
    whole = v1.ResourceRequirements(requests={"cpu": "1"})
    asks = replace(pod, spec=replace(pod.spec, resources=whole))
    without = replace(NODE, pod_level_resources=False)
    assert admit(asks) == admit(pod, node=without) == Admit()
    assert admit(asks, node=without) == Reject(
        "PodLevelResourcesNotSupported", "PodLevelResources feature gate is disabled"
    )


RESTARTS_ALL, HOST_USERS = "RestartAllContainersOnContainerExits", "UserNamespacesHostNetworkSupport"


@pytest.mark.parametrize(
    ("declared", "missing"),
    [
        (None, ""),
        ([RESTARTS_ALL, HOST_USERS], ""),
        ([RESTARTS_ALL], HOST_USERS),
        ([HOST_USERS], RESTARTS_ALL),
        ([], f"{RESTARTS_ALL}, {HOST_USERS}"),
    ],
)
def test_a_pod_may_need_features_that_the_node_does_not_declare(
    declared: list[str] | None, missing: str
) -> None:
    rule = v1.ContainerRestartRule(action="RestartAllContainers")
    sidecar = v1.Container(name="s", image="i", restart_policy="Always", restart_policy_rules=[rule])
    pod = with_requests("p")
    spec = replace(pod.spec, init_containers=[sidecar], host_network=True, host_users=False)
    text = f"Pod requires node features that are not available: {missing}"
    expected = Reject("PodFeatureUnsupported", text) if missing else Admit()
    node = replace(NODE, declared=declared)
    assert admit(replace(pod, spec=spec), node=node) == expected
    for plain in (pod, replace(pod, spec=replace(pod.spec, host_network=True))):
        assert admit(plain, node=node) == Admit()


def test_apparmor_profiles_need_a_kernel_that_knows_them() -> None:
    def with_profile(kind: str, name: str | None = None) -> v1.Pod:
        profile = v1.AppArmorProfile(type=kind, localhost_profile=name)
        return make_pod(spec={"security_context": v1.PodSecurityContext(app_armor_profile=profile)})

    refused = Reject("AppArmor", "Cannot enforce AppArmor: AppArmor is not enabled on the host")
    able = replace(NODE, apparmor=True)
    assert admit(with_profile("RuntimeDefault")) == refused
    assert admit(with_profile("Unconfined")) == Admit()
    assert admit(with_profile("RuntimeDefault"), node=able) == Admit()
    for name, shown in ((" ", "* "), (None, "nil")):
        text = "Cannot enforce AppArmor: invalid empty AppArmor profile name: "
        text += f'"&AppArmorProfile{{Type:Localhost,LocalhostProfile:{shown},}}"'
        assert admit(with_profile("Localhost", name), node=able) == Reject("AppArmor", text)
    annotation = "container.apparmor.security.beta.kubernetes.io/c"
    assert admit(make_pod(annotations={annotation: "runtime/default"})) == refused
    assert admit(make_pod(annotations={annotation: "unconfined"})) == Admit()


def test_labels_every_node_has() -> None:
    labels = default_labels("n", "amd64")
    node = replace(NODE, labels=labels)
    assert admit(make_pod(spec={"node_selector": {"kubernetes.io/os": "linux"}}), node=node) == Admit()


def test_supplemental_groups_policy() -> None:
    pod = api_pod(spec={"security_context": v1.PodSecurityContext(supplemental_groups_policy="Strict")})
    message = "SupplementalGroupsPolicy=Strict is not supported in this node"
    assert admit(pod) == Reject("SupplementalGroupsPolicyNotSupported", message)
    assert admit(pod, node=replace(NODE, strict_supplemental_groups=True)) == Admit()


# Preemption


def test_a_critical_pod_ends_as_few_and_as_unimportant_pods_as_possible() -> None:
    small, big = with_requests("small", cpu="600m"), with_requests("big", cpu="1300m")
    idle = api_pod("idle")
    static = with_requests("static", source="file", cpu="400m")
    assert admit(static, small, big, idle) == Preempt((small,), "cpu")
    greedy = with_requests("greedy", source="file", cpu="1800m")
    assert admit(greedy, small, big, idle) == Preempt((big, small), "cpu")


def test_a_critical_pod_does_not_end_critical_ones() -> None:
    running = with_requests("running", source="file", cpu="1500m")
    decision = admit(with_requests("new", source="file", cpu="1"), running)
    assert isinstance(decision, Reject)
    assert decision.message.endswith(
        "no set of running pods found to reclaim resources: [(res: cpu, q: 500), ]"
    )


def test_pods_of_higher_priority_may_end_others_only_if_critical() -> None:
    low, high = with_requests("low", cpu="1500m", priority=1), with_requests("high", cpu="1", priority=5)
    assert isinstance(admit(high, low), Reject)
    critical = with_requests("critical", cpu="1", priority=2_000_000_000)
    assert admit(critical, low) == Preempt((low,), "cpu")
    equal = with_requests("equal", cpu="1500m", priority=2_000_000_000)
    assert isinstance(admit(critical, equal), Reject)


amounts = st.fixed_dictionaries({}, optional={"cpu": st.integers(1, 2000), "memory": st.integers(1, 2000)})


@given(st.lists(amounts, max_size=8), amounts)
def test_victims_free_what_is_missing(others: list[dict[str, int]], wanted: dict[str, int]) -> None:
    def pod(name: str, parts: dict[str, int], source: str) -> v1.Pod:
        units = {"cpu": "m", "memory": ""}
        wanted: dict[str, Any] = {k: f"{v}{units[k]}" for k, v in parts.items()}
        return with_requests(name, source=source, **wanted)

    node = replace(NODE, allocatable={"cpu": "2", "memory": "2000", "pods": "110"})
    running = [pod(f"p{i}", parts, "api") for i, parts in enumerate(others)]
    decision = admit(pod("new", wanted, "file"), *running, node=node)
    if isinstance(decision, Preempt):
        left = [p for p in running if p not in decision.victims]
        assert admit(pod("new", wanted, "file"), *left, node=node) == Admit()
    else:
        assert decision == Admit()


def test_missing_resources_that_nobody_has() -> None:
    short = [Insufficient("cpu", 9000, 1000, 2000)]
    with pytest.raises(NoVictims, match="res: cpu, q: 7000"):
        choose_victims(with_requests("n", source="file", cpu="9"), [with_requests("o", cpu="1")], short)
    assert subtract([("cpu", 1500)], [with_requests("o", cpu="1")]) == [("cpu", 500)]
