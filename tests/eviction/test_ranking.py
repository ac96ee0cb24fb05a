"""Random nodes against a plain oracle: pairwise comparisons, as the kubelet's documentation words them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import cmp_to_key
from typing import Any

import pytest

from tests.eviction.build import pod_stats
from trio_kubelet.api import v1
from trio_kubelet.eviction.decision import reclaims, victim
from trio_kubelet.eviction.ranking import are_measured_since, rank
from trio_kubelet.eviction.thresholds import CONDITIONS, Layout, Signal, Threshold
from trio_kubelet.podinfo.amounts import UNIT
from trio_kubelet.podinfo.qos import is_critical_pod
from trio_kubelet.podinfo.updates import CONFIG_SOURCE_ANNOTATION
from trio_kubelet.stats.summary_types import ContainerStats, FsStats, MemoryStats, PodStats, VolumeStats

NODES_AT_ONCE = 500
AMOUNTS = (0, 1, 10, 10, 20, 50, 1000)
Use = dict[str, Any]


def a_node(rng: random.Random) -> tuple[list[v1.Pod], dict[str, Use]]:
    """Some pods, and what was measured of most of them."""
    pods, uses = [], {}
    for number in range(rng.randint(1, 12)):
        uid = f"uid-{number}"
        requests: dict[str, str] = {}
        if rng.random() < 0.5:
            requests["memory"] = str(rng.choice(AMOUNTS))
        if rng.random() < 0.5:
            requests["ephemeral-storage"] = str(rng.choice(AMOUNTS))
        container = v1.Container(name="c", resources=v1.ResourceRequirements(requests=requests or None))
        volumes = [v1.Volume(name="e", empty_dir=v1.EmptyDirVolumeSource())] if rng.random() < 0.5 else None
        spec = v1.PodSpec(containers=[container], volumes=volumes)
        if rng.random() < 0.7:
            spec.priority = rng.choice((-1, 0, 0, 1, 5, 2_000_000_000))
        pods.append(v1.Pod(metadata=v1.ObjectMeta(name=uid, namespace="default", uid=uid), spec=spec))
        if rng.random() < 0.9:
            disks = {key: [rng.choice(AMOUNTS), rng.choice(AMOUNTS)] for key in ("root", "logs")}
            uses[uid] = {
                "mem": rng.choice(AMOUNTS),
                "procs": rng.choice(AMOUNTS),
                "c": [{"n": "c", "mem": 1, **disks}],
                "v": {"e": (rng.choice(AMOUNTS), rng.choice(AMOUNTS))},
            }
    return pods, uses


def first_of(*comparisons: Callable[[v1.Pod, v1.Pod], int]) -> Callable[[v1.Pod, v1.Pod], int]:
    def compare(one: v1.Pod, other: v1.Pod) -> int:
        return next((answer for each in comparisons if (answer := each(one, other))), 0)

    return compare


def asked(pod: v1.Pod, resource: str) -> int:
    return int(((pod.spec.containers or [])[0].resources.requests or {}).get(resource, "0"))


def on_disk(pod: v1.Pod, use: Use, parts: str, index: int) -> int:
    [container] = use["c"]
    total = 0
    if "layers" in parts:
        total += container["root"][index]
    if "logs" in parts:
        total += container["logs"][index]
    if "volumes" in parts and pod.spec.volumes:
        total += use["v"]["e"][index]
    return total


EVERY = "layers logs volumes"
PARTS = {
    Layout.ONE: {"nodefs": EVERY, "imagefs": EVERY, "containerfs": EVERY},
    Layout.IMAGES_APART: {"nodefs": "logs volumes", "imagefs": "layers", "containerfs": "layers"},
    Layout.SPLIT: {"nodefs": EVERY, "imagefs": "", "containerfs": EVERY},
}


def oracle(signal: str, layout: Layout, pods: list[v1.Pod], uses: Mapping[str, Use]) -> list[str]:
    """The order of eviction: a plain sort by comparing two pods at a time."""

    def unknown_first(one: v1.Pod, other: v1.Pod) -> int:
        return (one.metadata.uid in uses) - (other.metadata.uid in uses)

    def by_priority(one: v1.Pod, other: v1.Pod) -> int:
        return (one.spec.priority or 0) - (other.spec.priority or 0)

    def both(compare: Callable[[v1.Pod], int]) -> Callable[[v1.Pod, v1.Pod], int]:
        def of_known(one: v1.Pod, other: v1.Pod) -> int:
            known = one.metadata.uid in uses and other.metadata.uid in uses
            return compare(other) - compare(one) if known else unknown_first(one, other)

        return of_known

    if signal == "pid.available":
        more = both(lambda pod: int(uses[pod.metadata.uid]["procs"]))
        compare = first_of(by_priority, more)
    elif "emory" in signal:
        exceeds = both(lambda pod: int(uses[pod.metadata.uid]["mem"] > asked(pod, "memory")))
        more = both(lambda pod: int(uses[pod.metadata.uid]["mem"]) - asked(pod, "memory"))
        compare = first_of(exceeds, by_priority, more)
    else:
        filesystem, _, what = signal.partition(".")
        parts, inodes = PARTS[layout][filesystem], what == "inodesFree"

        def used(pod: v1.Pod) -> int:
            return on_disk(pod, uses[pod.metadata.uid], parts, int(inodes))

        request = 0 if inodes else None
        exceeds = both(
            lambda pod: int(used(pod) > (asked(pod, "ephemeral-storage") if request is None else request))
        )
        more = both(lambda pod: used(pod) - asked(pod, "ephemeral-storage"))
        compare = first_of(exceeds, by_priority, more)
    return [pod.metadata.uid for pod in sorted(pods, key=cmp_to_key(compare))]


def check_nodes(seed: int, nodes: int) -> None:
    rng = random.Random(seed)
    for _ in range(nodes):
        pods, uses = a_node(rng)
        stats: dict[str, PodStats] = {uid: pod_stats(uid, use) for uid, use in uses.items()}
        signal, layout = rng.choice(list(CONDITIONS)), rng.choice(list(Layout))
        expected = oracle(signal, layout, pods, uses)
        found = [each.pod.metadata.uid for each in rank(signal, layout, pods, stats)]
        assert found == expected, (seed, signal, layout)
        met = (Threshold(signal, "10"),)
        chosen = victim(met, {signal: Signal(5, 100)}, layout, pods, stats, 30)
        critical = {pod.metadata.uid for pod in pods if is_critical_pod(pod)}
        spared = [uid for uid in expected if uid not in critical]
        assert (chosen.pod.metadata.uid if chosen else None) == (spared[0] if spared else None)
        if chosen is not None:
            assert f"number {expected.index(chosen.pod.metadata.uid) + 1} of {len(pods)}" in chosen.why


@pytest.mark.parametrize("seed", range(4))
def test_random_nodes_rank_as_the_oracle_does(seed: int) -> None:
    check_nodes(seed, NODES_AT_ONCE)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1000, 1200))
def test_a_hundred_thousand_random_nodes(seed: int) -> None:
    check_nodes(seed, NODES_AT_ONCE)


def of(name: str) -> v1.Pod:
    containers = [v1.Container(name="c")]
    return v1.Pod(
        metadata=v1.ObjectMeta(name=name, uid=name, namespace="d"), spec=v1.PodSpec(containers=containers)
    )


def figures(signal: str, figure: int) -> dict[str, Any]:
    """What a pod uses of what the signal is short of."""
    if signal == "pid.available":
        return {"procs": figure}
    if "emory" in signal:
        return {"mem": figure, "c": [{"n": "c", "mem": figure}]}
    return {"c": [{"n": "c", "root": [figure, figure], "logs": [0, 0]}]}


@pytest.mark.parametrize("signal", CONDITIONS)
def test_a_pod_whose_figures_are_missing_or_negative(signal: str) -> None:
    """What wrapped below 0 is not large, what is missing of a pod that is known is nothing; a pod of which
    nothing at all was measured goes first, as the kubelet has it.
    """
    pods = [of(name) for name in ("wrapped", "nothing", "honest", "unknown")]
    stats = {
        "wrapped": pod_stats("wrapped", figures(signal, 2**64 - 1)),
        "honest": pod_stats("honest", figures(signal, 1)),
        "nothing": pod_stats("nothing", {}),
    }
    stats["nothing"].volume = None
    stats["nothing"].memory = empty = MemoryStats(time="")
    stats["nothing"].containers = [
        ContainerStats(name="c", start_time="", memory=empty, rootfs=FsStats(time=""))
    ]
    order = [each.pod.metadata.name for each in rank(signal, Layout.ONE, pods, stats)]
    assert order == ["unknown", "honest", "nothing", "wrapped"]
    named = signal.endswith(".available") and signal != "pid.available"  # of others nobody can ask for some
    for name in ("wrapped", "honest", "nothing"):
        chosen = victim(
            (Threshold(signal, "10"),), {signal: Signal(5, 100)}, Layout.ONE, [of(name)], stats, 30
        )
        assert chosen is not None
        assert ("Container c was using 1," in chosen.message) == (name == "honest" and named)


@pytest.mark.parametrize(
    ("container", "whole", "expected"),
    [
        ({"memory": "10"}, None, 15),
        ({}, None, 0),
        ({"memory": "10"}, {"memory": "30"}, 35),
        ({"memory": "10"}, {"cpu": "1"}, 0),
    ],
)
def test_overhead_counts_for_who_asked_and_containers_do_not_where_the_pod_asks(
    container: dict[str, str], whole: dict[str, str] | None, expected: int
) -> None:
    pod = of("pod")
    pod.spec.containers = [v1.Container(name="c", resources=v1.ResourceRequirements(requests=container))]
    pod.spec.overhead = {"memory": "5"}
    pod.spec.resources = v1.ResourceRequirements(requests=whole) if whole else None
    [ranked] = rank("memory.available", Layout.ONE, [pod], {})
    assert ranked.request == expected * UNIT


@pytest.mark.parametrize(
    ("layer", "logs"), [(7, None), (None, 7)], ids=["logs are not known", "the layer is not known"]
)
def test_a_container_of_which_not_all_is_known_is_not_blamed(layer: int | None, logs: int | None) -> None:
    use = pod_stats("pod", {"c": [{"n": "c", "root": [layer], "logs": [logs]}]})
    met, signals = (Threshold("nodefs.available", "10"),), {"nodefs.available": Signal(5, 100)}
    chosen = victim(met, signals, Layout.ONE, [of("pod")], {"pod": use}, 30)
    assert chosen is not None
    assert chosen.annotations["offending_containers"] == ""
    assert "uses 7, more than its request" in chosen.why


@pytest.mark.parametrize("signal", ["memory.available", "nodefs.available"])
def test_a_container_that_is_gone_is_not_blamed(signal: str) -> None:
    """The runtime still tells what it used; what it left on the disk is the pod's."""
    use = figures(signal, 7)
    use["c"] = [*use["c"], {"n": "gone", "mem": 5000, "root": [5000, 5000], "logs": [1, 1]}]
    chosen = victim(
        (Threshold(signal, "10"),),
        {signal: Signal(5, 100)},
        Layout.ONE,
        [of("pod")],
        {"pod": pod_stats("pod", use)},
        30,
    )
    assert chosen is not None
    assert "Container c was using 7," in chosen.message
    assert "gone" not in chosen.message
    assert chosen.annotations["offending_containers"] == "c"


def test_volumes_whose_files_are_on_the_nodes_disk_count() -> None:
    pod = of("pod")
    pod.spec.volumes = [
        v1.Volume(name="1", empty_dir=v1.EmptyDirVolumeSource()),
        v1.Volume(name="2", config_map=v1.ConfigMapVolumeSource(name="c")),
        v1.Volume(name="4", host_path=v1.HostPathVolumeSource(path="/")),
        v1.Volume(name="8", git_repo=v1.GitRepoVolumeSource(repository="r")),
        v1.Volume(name="16", empty_dir=v1.EmptyDirVolumeSource(medium="Memory")),
        v1.Volume(name="32", secret=v1.SecretVolumeSource(secret_name="s")),
    ]
    use = {"c": [], "v": {each.name: (int(each.name), 0) for each in pod.spec.volumes}}
    [ranked] = rank("nodefs.available", Layout.ONE, [pod], {"pod": pod_stats("pod", use)})
    assert ranked.used == 1 + 2 + 4 + 8


def test_the_story_names_who_stands_around_the_victim() -> None:
    critical = of("critical")
    critical.metadata.annotations = {CONFIG_SOURCE_ANNOTATION: "file"}
    uses = {"critical": 9, "victim": 8, "next": 7}
    chosen = victim(
        (Threshold("memory.available", "10"),),
        {"memory.available": Signal(5, 100, cache=30, idle=20)},
        Layout.ONE,
        [of("next"), critical, of("victim")],
        {name: pod_stats(name, figures("memory.available", use)) for name, use in uses.items()},
        30,
    )
    assert chosen is not None
    assert chosen.why == (
        "memory.available is 5 of 100, less than 10 (page cache 30, of which 20 does not count as used); "
        "number 2 of 3 to go: uses 8, more than its request of 0, priority 0; spared as critical: d/critical"
        "; next: d/next (uses 7, more than its request of 0, priority 0)"
    )


@pytest.mark.parametrize(
    ("signal", "told"),
    [
        ("memory.available", "uses {}Gi, {} its request of 8Gi, priority 0"),
        ("nodefs.available", "uses {}Gi, {} its request of 8Gi, priority 0"),
        ("pid.available", "uses {}, priority 0"),
    ],
)
def test_the_story_names_the_victims_request_and_those_that_come_next(signal: str, told: str) -> None:
    unit = 1 if signal == "pid.available" else 1 << 30
    pods, stats = [], {}
    for use in range(4, 10):
        pod = of(f"p{use}")
        requests = {"memory": "8Gi", "ephemeral-storage": "8Gi"}
        pod.spec.containers = [v1.Container(name="c", resources=v1.ResourceRequirements(requests=requests))]
        pods.append(pod)
        stats[f"p{use}"] = pod_stats(f"p{use}", figures(signal, use * unit))
    chosen = victim((Threshold(signal, "10", 90.0),), {signal: Signal(5, 100)}, Layout.ONE, pods, stats, 30)
    assert chosen is not None

    def shown(use: int) -> str:
        return told.format(use, "more than" if use > 8 else "within")

    after = ", ".join(f"d/p{use} ({shown(use)})" for use in (8, 7, 6))
    assert chosen.why == (
        f"{signal} is 5 of 100, less than 10 for 90 s; number 1 of 6 to go: {shown(9)}; next: {after}"
    )


def test_what_is_reclaimed_first() -> None:
    assert reclaims("memory.available", Layout.ONE) == ()
    assert [each.value for each in reclaims("nodefs.available", Layout.ONE)] == [
        "dead containers",
        "unused images",
    ]
    assert reclaims("nodefs.inodesFree", Layout.IMAGES_APART) == ()


MOMENT = "2026-01-01T00:00:05Z"


@pytest.mark.parametrize(
    ("layout", "times", "looked", "expected"),
    [
        (Layout.IMAGES_APART, ("2026-01-01T00:00:06Z", None), False, True),
        (Layout.IMAGES_APART, (MOMENT, None), False, False),
        (Layout.IMAGES_APART, (MOMENT, None), True, True),
        (Layout.IMAGES_APART, ("2026-01-01T00:00:04Z", None), True, False),
        (Layout.IMAGES_APART, (None, None), False, False),  # it came just now
        (Layout.IMAGES_APART, (None, None), True, True),
        (Layout.ONE, ("2026-01-01T00:00:06Z", None), False, False),  # the layer was not measured
        (Layout.ONE, ("2026-01-01T00:00:06Z", "2026-01-01T00:00:06Z"), False, True),
        (Layout.ONE, ("2026-01-01T00:00:06Z", None), True, True),
    ],
)
def test_figures_of_disks_are_from_after_the_crossing(
    layout: Layout, times: tuple[str | None, str | None], looked: bool, expected: bool
) -> None:
    """A claim's are its server's or driver's business, which may not answer for long."""
    volume_at, layer_at = times
    claim = v1.PersistentVolumeClaimVolumeSource(claim_name="c")
    in_memory = v1.EmptyDirVolumeSource(medium="Memory")
    pod = v1.Pod(
        metadata=v1.ObjectMeta(name="p", namespace="default", uid="p"),
        spec=v1.PodSpec(
            containers=[v1.Container(name="c")],
            volumes=[
                v1.Volume(name="data", empty_dir=v1.EmptyDirVolumeSource()),
                v1.Volume(name="claim", persistent_volume_claim=claim),
                v1.Volume(name="memory", empty_dir=in_memory),
                v1.Volume(name="host", host_path=v1.HostPathVolumeSource(path="/")),
            ],
        ),
    )
    stats = pod_stats("p", {"c": [{"n": "c"} | ({"root": [1, 1]} if layer_at else {})],
                            "v": {"data": (1, 1)} if volume_at else {}})  # fmt: skip
    for volume in stats.volume or ():
        volume.time = volume_at or ""
    stats.volume = [*(stats.volume or ()), VolumeStats(time="2000-01-01T00:00:00Z", name="claim")]
    for container in stats.containers:
        if container.rootfs is not None:
            container.rootfs.time = layer_at or ""
    found = are_measured_since(MOMENT, "nodefs.available", layout, [pod], {"p": stats}, looked=looked)
    assert found is expected
