"""Which devices a container gets, and from where they could come."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.api import v1
from trio_kubelet.devices.choice import (
    Free,
    PreferredAllocation,
    choose,
    container_requests,
    device_hints,
    in_order,
    question,
    sort_free,
)
from trio_kubelet.devices.values import NO_NODE, Device, by_node, is_extended_resource
from trio_kubelet.placement.hints import Hint, mask_of

IDS = st.sampled_from([f"dev-{number}" for number in range(12)])
NODES = st.lists(st.integers(0, 3), unique=True, max_size=2).map(tuple)
DEVICES = st.dictionaries(IDS, NODES, max_size=10).map(
    lambda found: {id: Device(id, nodes=nodes) for id, nodes in found.items()}
)
AFFINITY = st.none() | st.integers(1, 15).map(lambda mask: Hint(mask, True))


@given(DEVICES, AFFINITY, st.integers(0, 6), st.sets(IDS, max_size=4), st.sets(IDS, max_size=6))
def test_a_choice_is_as_many_as_asked_for_of_what_is_free_the_nearest_first(
    devices: dict[str, Device],
    affinity: Hint | None,
    wanted: int,
    reusable: set[str],
    preferred: set[str],
) -> None:
    reusable &= devices.keys()
    free = sort_free(devices, devices.keys() - reusable, affinity)
    assert free.all == devices.keys() - reusable
    picked = choose(wanted, reusable, free, preferred)
    if wanted > len(devices):
        assert picked is None
        return
    assert picked is not None
    assert len(set(picked)) == wanted
    assert set(picked) <= devices.keys()
    assert len(reusable & set(picked)) == min(wanted, len(reusable)), "what init containers leave comes first"
    rest = wanted - min(wanted, len(reusable))
    assert len(free.aligned & set(picked)) == min(rest, len(free.aligned)), "then what is near"
    asked = question(wanted, reusable, free)
    if asked is not None:
        assert asked.must_include <= asked.available
        assert asked.must_include <= set(picked), "what the plugin is told it must include is given"
        assert wanted <= len(asked.available)


def test_a_device_is_near_if_any_of_its_nodes_was_agreed_on() -> None:
    """Where nothing was agreed on, or no device says where it is, none is nearer than others."""
    places = {"zero": (0,), "one": (1,), "both": (0, 1), "nowhere": ()}
    devices = {id: Device(id, nodes=nodes) for id, nodes in places.items()}
    every = frozenset(devices)
    near_zero = sort_free(devices, every - {"zero"}, Hint(0b01, True))
    assert near_zero == Free(frozenset({"both"}), frozenset({"one"}), frozenset({"nowhere"}))
    for affinity in (None, Hint(None, True)):
        assert sort_free(devices, every, affinity) == Free(frozenset(), frozenset(), every)


def test_the_plugin_is_asked_only_where_it_has_a_choice() -> None:
    """What is settled without it, it is told to include."""
    near, all_of_them = frozenset("abc"), frozenset("abcde")
    free = Free(near, frozenset("d"), frozenset("e"))
    assert question(2, (), free) == PreferredAllocation(near, frozenset())
    assert question(2, ("r",), free) == PreferredAllocation(near | {"r"}, frozenset("r"))
    assert question(4, (), free) == PreferredAllocation(all_of_them, near)
    assert question(5, ("r",), free) == PreferredAllocation(all_of_them | {"r"}, near | {"r"})
    for wanted, reusable in ((3, ()), (1, ("r",)), (4, ("r",)), (6, ())):
        assert question(wanted, reusable, free) is None


def test_what_the_plugin_prefers_counts_among_the_near_ones() -> None:
    free = Free(frozenset({"a", "b", "c"}), frozenset({"d"}), frozenset())
    assert choose(2, (), free, ("c", "d")) == ("c", "a")
    assert choose(3, ("r",), free, ("c",)) == ("r", "c", "a")
    assert choose(4, (), free, ()) == ("a", "b", "c", "d")
    assert choose(5, (), free) is None


def test_what_a_claim_gives_is_asked_of_no_plugin_with_the_gate() -> None:
    resources = v1.ResourceRequirements(limits={"example.com/gpu": "1", "example.com/nic": "2"})
    container = v1.Container(name="c", resources=resources)
    mapping = v1.ContainerExtendedResourceRequest(container_name="c", resource_name="example.com/gpu")
    claim = v1.PodExtendedResourceClaimStatus(resource_claim_name="x", request_mappings=[mapping])
    pod = v1.Pod(status=v1.PodStatus(extended_resource_claim_status=claim))
    assert container_requests(pod, container, claims=True) == {"example.com/nic": 2}
    assert container_requests(pod, container, claims=False) == {"example.com/gpu": 1, "example.com/nic": 2}


def test_devices_are_counted_as_people_do() -> None:
    assert in_order(["dev-10", "dev-9", "a", "dev-١"]) == ["a", "dev-١", "dev-9", "dev-10"]
    assert in_order(["10", "7", "0", "9", "07", "a9", "00"]) == ["0", "00", "07", "7", "9", "10", "a9"]
    assert in_order(["b1", "aa1"]) == ["aa1", "b1"]
    nines, more = "9" * 5000, "1" + "0" * 5000
    assert in_order([more, nines, "8"]) == ["8", nines, more], "Python reads no such number"


def oracle(
    devices: dict[str, Device], available: set[str], reusable: set[str], wanted: int, machine: list[int]
) -> dict[int, bool]:
    """Every set of nodes, as the kubelet goes through them."""
    near = {id: {node for node in each.nodes if node in machine} for id, each in devices.items()}
    nodes = sorted(set().union(*near.values())) or machine
    fits, enough = [], []
    for size in range(1, len(nodes) + 1):
        for chosen in map(set, combinations(nodes, size)):
            if sum(bool(near[id] & chosen) for id in devices) >= wanted:
                enough.append(size)
            matching = [id for id in reusable if devices[id].nodes]
            if not all(near[id] & chosen for id in matching):
                continue
            if len(matching) + sum(bool(near[id] & chosen) for id in available) >= wanted:
                fits.append(chosen)
    least = min([len(nodes), *enough])
    return {mask_of(sorted(chosen)): len(chosen) == least for chosen in fits}


@given(DEVICES, st.sets(IDS), st.sets(IDS, max_size=3), st.integers(0, 5))
def test_hints_are_those_of_going_through_every_set_of_nodes(
    devices: dict[str, Device], available: set[str], reusable: set[str], wanted: int
) -> None:
    available &= devices.keys()
    reusable &= devices.keys() - available
    machine = [0, 1, 2]  # node 3 is the plugin's invention
    found = device_hints(devices, available, reusable, wanted, machine)
    assert {hint.mask: hint.preferred for hint in found} == oracle(
        devices, available, reusable, wanted, machine
    )


def test_a_plugin_that_names_dozens_of_nodes_costs_no_more_than_a_bounded_number_of_sets() -> None:
    devices = {f"dev-{n}": Device(f"dev-{n}", nodes=(n,)) for n in range(60)}
    found = device_hints(devices, devices.keys(), (), 1, range(60))
    assert len(found) == 1 << 12
    assert sum(hint.preferred for hint in found) == 60


def test_devices_stand_under_each_of_their_nodes() -> None:
    devices = {"a": Device("a", nodes=(0, 1)), "b": Device("b")}
    assert by_node(devices, ["b", "a", "gone"]) == {NO_NODE: ["b", "gone"], 0: ["a"], 1: ["a"]}


def test_names_of_resources() -> None:
    good = ("example.com/gpu", "nvidia.com/mig-1g.5gb", "a/b")
    bad = ("cpu", "kubernetes.io/x", "x.kubernetes.io/y", "requests.example.com/gpu", "example.com/", "a/b/c")
    assert [name for name in (*good, *bad) if is_extended_resource(name)] == [*good]
