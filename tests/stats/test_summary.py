"""The summary: shaped as a recorded one, and whole whatever was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stats import samples
from trio_kubelet.machine.values import MAX, Interface, Network, PodSample, RuntimeUse, VolumeUse
from trio_kubelet.stats.summary import (
    container_stats,
    ephemeral_storage,
    network_stats,
    node_stats,
    pod_stats,
)
from trio_kubelet.stats.summary_types import PodStats

GOLDEN = Path(__file__).parents[1] / "golden" / "stats-summary-sample.json"


def shape(value: object, path: str = "") -> set[str]:
    """Every path in a JSON value with the type at its end."""
    if isinstance(value, dict):
        return {found for key, each in value.items() for found in shape(each, f"{path}.{key}")}
    if isinstance(value, list):
        return {f"{path}: list"}.union(*(shape(each, f"{path}[]") for each in value))
    return {f"{path}: {type(value).__name__}"}


def as_json(value: object) -> Any:
    return json.loads(msgspec.json.encode(value))


def summary(*pods: PodSample) -> Any:
    snapshot = samples.snapshot(*pods)
    found = [pod_stats(each, snapshot.node, snapshot.at_ns, True) for each in snapshot.pods]
    return as_json({"node": node_stats(snapshot.node, True), "pods": found})


def test_the_shape_of_a_recorded_summary() -> None:
    # That kubelet could not see into its runtime, so that it had container figures from CRI alone.
    recorded = json.loads(GOLDEN.read_text())
    assert shape(summary(samples.pod())) == shape(recorded)


def test_the_order_of_keys_is_the_recorded_one() -> None:
    recorded, ours = json.loads(GOLDEN.read_text()), summary(samples.pod())
    assert list(ours["node"]) == list(recorded["node"])
    assert list(ours["pods"][0]) == list(recorded["pods"][0])
    assert list(ours["pods"][0]["containers"][0]) == list(recorded["pods"][0]["containers"][0])


def test_a_container_whose_cgroup_is_known_shows_what_that_says() -> None:
    known = samples.container(
        use=samples.use(memory_limit=500_000, swap_limit=70_000, swap=30_000), nano_cores=9
    )
    found = as_json(container_stats(known, samples.node(), samples.NOW, True))
    assert found["cpu"]["usageNanoCores"] == 9
    assert found["cpu"]["psi"]["full"] == {"total": 0, "avg10": 0, "avg60": 0, "avg300": 0}
    assert found["memory"]["availableBytes"] == 500_000 - 379_232
    assert found["swap"] == {
        "time": "2026-11-21T14:16:00Z",
        "swapAvailableBytes": 40_000,
        "swapUsageBytes": 30_000,
    }
    assert found["rootfs"]["usedBytes"] == 20_480
    assert found["rootfs"]["capacityBytes"] == 100


def test_a_container_without_limits_says_nothing_of_what_is_available() -> None:
    """Whatever the runtime says: a kubelet that sees the cgroup goes by that alone."""
    unlimited = samples.use(memory_limit=(1 << 63) - 4096, swap_limit=(1 << 64) - 1, swap=30_000)
    runtime = RuntimeUse(memory_at_ns=1, memory_available=0, swap_at_ns=1, swap_available=0)
    known = samples.container(use=unlimited, runtime=runtime)
    found = as_json(container_stats(known, samples.node(), samples.NOW, True))
    assert "availableBytes" not in found["memory"]
    assert found["memory"]["workingSetBytes"] == 379_232
    assert found["swap"] == {"time": "2026-11-21T14:16:00Z", "swapUsageBytes": 30_000}


def test_a_container_the_runtime_says_nothing_of_has_its_cgroups_figures() -> None:
    found = as_json(
        container_stats(samples.container(runtime=None, use=samples.use()), samples.node(), samples.NOW, True)
    )
    assert found["cpu"]["usageCoreNanoSeconds"] == 2_392_026_661
    assert "rootfs" not in found
    assert container_stats(samples.container(runtime=None), samples.node(), samples.NOW, True) is None


def test_a_runtime_that_gives_no_figures_gives_zeros() -> None:
    found = as_json(
        container_stats(samples.container(runtime=RuntimeUse(), logs=None), samples.node(), samples.NOW, True)
    )
    assert found["cpu"] == {"time": "2026-11-21T14:16:00Z", "usageNanoCores": 0, "usageCoreNanoSeconds": 0}
    zeros = {"usageBytes": 0, "workingSetBytes": 0, "rssBytes": 0}
    assert found["memory"] == {"time": "2026-11-21T14:16:00Z", **zeros}
    assert found["swap"] == {
        "time": "2026-11-21T14:16:00Z",
        "swapAvailableBytes": 0,
        "swapUsageBytes": 0,
    }
    assert "logs" not in found


def test_a_container_that_is_over_its_limit_has_nothing_left() -> None:
    over = samples.container(use=samples.use(memory_limit=300_000, swap_limit=20_000, swap=30_000))
    found = as_json(container_stats(over, samples.node(), samples.NOW, True))
    assert found["memory"]["availableBytes"] == 0
    assert found["swap"]["swapAvailableBytes"] == 0


def test_a_container_of_whose_cgroup_nothing_is_known_yet_uses_nothing() -> None:
    unknown = samples.container(use=samples.use(cpu=None, memory=None), nano_cores=None, runtime=None)
    found = as_json(container_stats(unknown, samples.node(), samples.NOW, True))
    assert (found["cpu"]["usageNanoCores"], found["cpu"]["usageCoreNanoSeconds"]) == (0, 0)
    assert found["memory"] == {"time": "2026-11-21T14:16:00Z", "workingSetBytes": 0}
    assert "swap" not in found


def test_a_pod_without_a_cgroup_is_the_sum_of_its_containers() -> None:
    twice = samples.pod(samples.container("a"), samples.container("b"), use=None)
    found = summary(twice)["pods"][0]
    assert found["cpu"]["usageCoreNanoSeconds"] == 2 * 31_599_144
    assert found["memory"]["workingSetBytes"] == 2 * 233_472
    assert "process_stats" not in found


def test_a_pod_of_which_nothing_is_known_is_left_out() -> None:
    empty = samples.pod(samples.container(runtime=None))
    assert pod_stats(empty, samples.node(), samples.NOW, True) is None


def volume(name: str, used: int, ephemeral: bool, claim: str = "") -> VolumeUse:
    return VolumeUse(
        name=name,
        at_ns=samples.NOW + 5 * 10**9,
        available=1,
        capacity=2,
        used=used,
        inodes=3,
        inodes_free=2,
        inodes_used=7,
        ephemeral=ephemeral,
        claim=claim,
        namespace="default",
    )


def test_ephemeral_storage_is_layers_logs_local_volumes_and_etc_hosts() -> None:
    found = summary(samples.pod(volumes=(volume("e", 1000, True), volume("m", 9999, False, "data"))))["pods"][
        0
    ]
    assert found["ephemeral-storage"]["usedBytes"] == 20_480 + 4096 + 1000 + 4096
    assert found["ephemeral-storage"]["inodesUsed"] == 8 + 1 + 7 + 1
    assert found["ephemeral-storage"]["time"] == "2026-11-21T14:16:05Z"  # the latest of all
    assert [each["name"] for each in found["volume"]] == ["e", "m"]
    assert found["volume"][1]["pvcRef"] == {"name": "data", "namespace": "default"}
    assert "pvcRef" not in found["volume"][0]


def test_a_volume_says_how_its_driver_finds_it() -> None:
    sick = msgspec.structs.replace(volume("sick", 1, False, "c"), abnormal=True)
    found = summary(samples.pod(volumes=(sick, volume("silent", 1, False, "d"))))["pods"][0]["volume"]
    assert found[0]["volumeHealthStats"] == {"abnormal": True}
    assert "volumeHealthStats" not in found[1]


def test_the_default_interface_stands_first_wherever_it_is() -> None:
    interfaces = tuple(
        Interface(name=name, rx_bytes=number, rx_errors=0, tx_bytes=number, tx_errors=0)
        for number, name in enumerate(("lo", "eth0", "eth1"))
    )
    found = as_json(network_stats(Network(samples.NOW, interfaces)))
    assert (found["name"], found["rxBytes"]) == ("eth0", 1)
    assert [each["name"] for each in found["interfaces"]] == ["lo", "eth0", "eth1"]
    none = as_json(network_stats(Network(samples.NOW, interfaces[:1])))
    assert (none.get("name", ""), none.get("rxBytes")) == ("", None)


def test_without_disks_there_is_cpu_and_memory_alone() -> None:
    node = as_json(node_stats(samples.node(), False))
    assert set(node) == {"nodeName", "systemContainers", "startTime", "cpu", "memory", "swap"}
    assert set(node["systemContainers"][0]) == {"name", "startTime", "cpu", "memory", "swap"}
    pod = as_json(pod_stats(samples.pod(), samples.node(), samples.NOW, False))
    assert set(pod) == {"podRef", "startTime", "containers", "cpu", "memory", "swap"}
    assert set(pod["containers"][0]) == {"name", "startTime", "cpu", "memory", "swap"}


def test_a_node_of_which_nothing_could_be_read_is_still_a_node() -> None:
    bare = samples.node(
        root=None, system=(), network=None, filesystem=None, image_disk=None, filesystems={}, processes=None
    )
    found = as_json(node_stats(bare, True))
    assert found["nodeName"] == "node1"
    assert found["runtime"] == {}
    assert ephemeral_storage(samples.pod(), [], bare) is None


def numbers_in(value: object) -> list[int | float]:
    if isinstance(value, dict):
        return [found for each in value.values() for found in numbers_in(each)]
    if isinstance(value, list):
        return [found for each in value for found in numbers_in(each)]
    return [value] if isinstance(value, int | float) else []


@settings(max_examples=150)
@given(samples.pods, st.booleans(), st.sampled_from([samples.node(), samples.node(filesystem=None)]))
def test_whatever_was_measured_the_answer_is_whole(pod: PodSample, disks: bool, node: Any) -> None:
    found = pod_stats(pod, node, samples.NOW, disks)
    assert found is None or isinstance(found, PodStats)
    if found is not None:
        assert all(0 <= number <= MAX for number in numbers_in(as_json(found)))
        assert len(found.containers) <= len(pod.containers)
