"""The memory manager: its file, what an end of the agent leaves, what containers are created with."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from tests.placement.giving import give
from tests.placement.recording import Json
from tests.placement.test_cpu_manager import Node
from tests.placement.test_memory_policy import GIB, MACHINE, container, pod, recorded
from trio_kubelet.machine.numa import NUMAMemory, numa_memory
from trio_kubelet.placement.doors import AllocationError, PlacementStateError
from trio_kubelet.placement.hints import Hint
from trio_kubelet.placement.manager_file import memory_state_file
from trio_kubelet.placement.memory_checkpoint import FILE_NAME, decode, encode
from trio_kubelet.placement.memory_manager import MemoryManager
from trio_kubelet.placement.memory_state import Block, MemoryState
from trio_kubelet.placement.metrics import MemoryMetrics
from trio_kubelet.placement.pod_level import PodLevel

RECORDED = b'{"policyName":"None","machineState":{},"checksum":4236770233}'
"""What every kubelet without a memory policy writes."""


NEWER = (
    b'{"policyName":"Static","machineState":{},"entries":{"u1":{"c0":[{"numaAffinity":[0,1],"type":"memory",'
    b'"size":5},{"numaAffinity":[0],"type":"hugepages-2Mi","size":6}],"c1":[]},"u2":{"c":[{"numaAffinity":[1],'
    b'"type":"memory","size":7}]}},"podEntries":{"u1":{"memoryBlocks":[{"numaAffinity":[0,1],"type":"memory",'
    b'"size":5}]}},"checksum":2242411028}'
)
"""Recorded from a kubelet with the gate PodLevelResourceManagers: one without it refuses it like this."""


def manager(
    node: Node,
    directory: Path,
    registry: CollectorRegistry | None = None,
    pod_level: PodLevel = PodLevel.SHARED,
) -> MemoryManager:
    metrics = MemoryMetrics(registry or CollectorRegistry())
    policy = msgspec.structs.replace(MACHINE, pod_level=pod_level)
    return MemoryManager(policy=policy, root_dir=str(directory), pods=node, metrics=metrics)


def written(directory: Path) -> Json:
    return json.loads((directory / FILE_NAME).read_text())


def files() -> list[bytes]:
    plain = (each for each in recorded()["scenarios"] if not each.get("pod_level"))
    steps = (step for scenario in plain for step in scenario["steps"])
    return [step["file"].encode() for step in steps if "file" in step]


def test_the_file_is_the_kubelets() -> None:
    assert encode("None", MemoryState()) == RECORDED
    assert decode(RECORDED, "None") == MemoryState()
    every = files()
    assert len(every) > 100
    for content in every:
        state = decode(content, "Static")
        again = json.loads(encode("Static", state))
        assert again == json.loads(content), "with its checksum"


@pytest.mark.parametrize("case", recorded()["files"], ids=lambda case: f"{case['what']} {case['pod_level']}")
def test_files_of_older_and_newer_kubelets_are_taken_as_by_the_kubelet(case: Json) -> None:
    level = PodLevel.BY_POD if case["pod_level"] else PodLevel.SHARED
    if case["error"]:
        with pytest.raises(PlacementStateError, match="could not restore state from checkpoint"):
            decode(case["file"].encode(), "Static", level)
        return
    state = decode(case["file"].encode(), "Static", level)
    assert json.loads(encode("Static", state, level)) == json.loads(case["read"])


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (RECORDED, 'configured policy "Static" differs from state checkpoint policy "None"'),
        (b'{"policyName":"Sta', "could not restore state from checkpoint"),
        (b'{"policyName":"Static","machineState":{},"checksum":5}', "checkpoint is corrupted"),
        (b'{"policyName":"Static","machineState":{"x":{}},"checksum":0}', "could not restore state"),
        (b'{"policyName":"Static","machineState":[],"checksum":0}', "could not restore state"),
        (NEWER, "checkpoint is corrupted"),
    ],
)
async def test_files_that_end_the_start(content: bytes, text: str, tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(PlacementStateError, match=text) as caught:
        await manager(Node(), tmp_path).load()
    assert "please drain this node and delete the memory manager checkpoint file" in str(caught.value)
    assert (tmp_path / FILE_NAME).read_bytes() == content, "left as it was"


async def test_a_container_has_its_memory_after_a_restart_too(tmp_path: Path) -> None:
    node = Node()
    memory = manager(node, tmp_path)
    await memory.load()
    main = container("main", "1Gi")
    node.pods = [pod(main)]
    await give(memory, node.pods[0], main, Hint(2, True))
    assert memory.nodes_of("u1", "main") == "1"
    assert written(tmp_path)["entries"] == {
        "u1": {"main": [{"numaAffinity": [1], "type": "memory", "size": GIB}]}
    }
    again = manager(node, tmp_path)
    await again.load()
    assert again.of("u1", "main") == (Block((1,), "memory", GIB),)
    await give(again, node.pods[0], main, None)
    assert again.nodes_of("u1", "main") == "1", "what a pod has it keeps when it is admitted again"
    assert again.hints(node.pods[0], main) == {"memory": [Hint(2, True)]}


async def test_memory_of_pods_that_are_over_is_free_once_all_are_known(tmp_path: Path) -> None:
    node = Node()
    memory = manager(node, tmp_path)
    await memory.load()
    main = container("main", "3Gi")
    node.pods = [pod(main)]
    await give(memory, node.pods[0], main, None)
    other = pod(container("main", "3Gi"), uid="u2")
    node.pods, node.complete = [other], False
    assert memory.hints(other, main) == {}, "from nowhere, as long as another has it"
    node.complete = True
    assert [hint.mask for hint in memory.hints(other, main)["memory"] or ()] == [2, 3]


async def test_what_init_containers_had_is_free_when_the_next_is_made(tmp_path: Path) -> None:
    node = Node()
    memory = manager(node, tmp_path)
    await memory.load()
    one, aside = container("one", "2Gi"), container("aside", "256Mi", restart="Always")
    main = container("main", "1Gi")
    own = pod(main, init=(one, aside))
    node.pods = [own]
    for each in (one, aside, main):
        await give(memory, own, each, Hint(2, True))
    await memory.starts(own, one)
    assert set(written(tmp_path)["entries"]["u1"]) == {"one", "aside", "main"}
    await memory.starts(own, main)
    state = written(tmp_path)
    assert set(state["entries"]["u1"]) == {"aside", "main"}, "a sidecar keeps its own"
    assert state["machineState"]["1"]["memoryMap"]["memory"]["reserved"] == GIB + GIB // 4


async def test_a_refusal_has_the_kubelets_words_and_is_counted(tmp_path: Path) -> None:
    node, registry = Node(), CollectorRegistry()
    memory = manager(node, tmp_path, registry)
    await memory.load()
    main = container("main", "9Gi")
    node.pods = [pod(main)]
    with pytest.raises(AllocationError, match="failed to get the default NUMA affinity") as caught:
        await give(memory, node.pods[0], main, None)
    assert caught.value.reason == "", "nobody expects it"
    assert registry.get_sample_value("kubelet_memory_manager_pinning_requests_total") == 1
    assert registry.get_sample_value("kubelet_memory_manager_pinning_errors_total") == 1
    assert memory.nodes_of("u1", "main") == ""


async def test_a_disk_that_cannot_be_written_gives_nothing(tmp_path: Path) -> None:
    node = Node()
    memory = manager(node, tmp_path)
    await memory.load()
    (tmp_path / f".{FILE_NAME}.new").mkdir()
    main = container("main", "1Gi")
    with pytest.raises(AllocationError, match="the memory manager's state cannot be written"):
        await give(memory, pod(main), main, None)
    assert memory.of("u1", "main") == ()


async def test_without_a_policy_the_file_says_so(tmp_path: Path) -> None:
    file = memory_state_file(str(tmp_path))
    await file.keep_empty(RECORDED, lambda content: decode(content, "None"))
    assert (tmp_path / FILE_NAME).read_bytes() == RECORDED
    await file.keep_empty(RECORDED, lambda content: decode(content, "None"))
    (tmp_path / FILE_NAME).write_bytes(files()[0])
    with pytest.raises(PlacementStateError, match='configured policy "None" differs'):
        await file.keep_empty(RECORDED, lambda content: decode(content, "None"))


async def test_without_a_policy_and_room_for_the_file_there_is_none(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The next agent, of whatever policy, starts as after one that wrote it."""
    file = memory_state_file(str(tmp_path))
    (tmp_path / f".{FILE_NAME}.new").mkdir()
    await file.keep_empty(RECORDED, lambda content: decode(content, "None"))
    assert not (tmp_path / FILE_NAME).exists()
    assert "Failed to save checkpoint" in capfd.readouterr().err


def test_nodes_are_read_from_sysfs(tmp_path: Path) -> None:
    for number, kib in ((0, 2_000_000), (2, 1_000_000)):
        node = tmp_path / f"node{number}"
        for size, count in ((2048, 8), (1_048_576, number)):
            pages = node / "hugepages" / f"hugepages-{size}kB"
            pages.mkdir(parents=True)
            (pages / "nr_hugepages").write_text(f"{count}\n")
        (node / "meminfo").write_text(
            f"Node {number} MemTotal:       {kib} kB\nNode {number} MemFree:        12 kB\n"
        )
    (tmp_path / "node7").mkdir()  # without memory that is told
    told = {"hugepages-2Mi": 16 << 20}
    assert numa_memory(str(tmp_path)) == (
        NUMAMemory(0, 2_000_000 * 1024, {**told, "hugepages-1Gi": 0}),
        NUMAMemory(2, 1_000_000 * 1024, {**told, "hugepages-1Gi": 2 * GIB}),
        NUMAMemory(7, 0),
    )
    (tmp_path / "node0" / "meminfo").write_text("")
    with pytest.raises(ValueError, match="no line MemTotal"):
        numa_memory(str(tmp_path))
