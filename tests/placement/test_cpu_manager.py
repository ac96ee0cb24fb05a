"""The CPU manager: its file, who is told which CPUs, what an end of the agent leaves."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing
from prometheus_client import CollectorRegistry

from tests.placement.giving import give
from tests.placement.test_cpu_policy import MACHINE, RESERVED, container, pod
from trio_kubelet.api import v1
from trio_kubelet.common.cpusets import parse_cpus
from trio_kubelet.cri.errors import DeadlineExceeded, Unavailable
from trio_kubelet.placement import manager_file
from trio_kubelet.placement.checkpoint import FILE_NAME, decode, encode
from trio_kubelet.placement.cpu_manager import CPUManager
from trio_kubelet.placement.cpu_policy import CPUPolicy
from trio_kubelet.placement.cpu_state import CPUState
from trio_kubelet.placement.doors import AllocationError, PlacementStateError, Running
from trio_kubelet.placement.metrics import AlignmentMetrics, CPUMetrics, ResourceManagerMetrics
from trio_kubelet.placement.pod_level import PodLevel
from trio_kubelet.placement.taking import CPUPolicyOptions
from trio_kubelet.podinfo.pinned import PinnedCPUs

RECORDED = b'{"policyName":"none","defaultCpuSet":"","checksum":1353318690}'
"""What every kubelet without a CPU policy writes."""


class Node:
    """The agent's pods and the runtime, as the manager sees them."""

    def __init__(self) -> None:
        self.pods: list[v1.Pod] = []
        self.complete = True
        self.containers: list[Running] = []
        self.asked: list[str] = []  # the IDs of containers
        self.cpus: dict[str, list[str]] = {}
        self.down = False
        self.hangs: frozenset[str] = frozenset()  # IDs of containers for which the runtime does not answer
        self.takes = 0.0  # seconds until it answers
        self.events: list[tuple[str, str]] = []

    def active(self) -> Collection[v1.Pod]:
        return self.pods

    def is_known(self, uid: str) -> bool:
        return self.complete

    def runs(self, uid: str) -> bool:
        return any(each.uid == uid for each in self.containers)

    def ending(self) -> Collection[str]:
        return {each.uid for each in self.containers}.difference(pod.metadata.uid for pod in self.pods)

    def record(self, pod: v1.Pod, type: str, reason: str, message: str, field_path: str = "") -> None:
        self.events.append((pod.metadata.uid, reason))

    def running(self) -> Iterable[Running]:
        return self.containers

    async def set_cpus(self, container_id: str, cpus: str) -> None:
        self.asked.append(container_id)
        if self.down:
            raise Unavailable("the runtime is away")
        if container_id in self.hangs:
            await trio.sleep(120)
            raise DeadlineExceeded("no answer")
        await trio.sleep(self.takes)
        self.cpus.setdefault(container_id, []).append(cpus)


def manager(
    node: Node,
    directory: Path,
    *,
    options: CPUPolicyOptions | None = None,
    registry: CollectorRegistry | None = None,
    pod_level: PodLevel = PodLevel.SHARED,
    pinned: PinnedCPUs | None = None,
) -> CPUManager:
    registry = registry or CollectorRegistry()
    more = None if pod_level is PodLevel.SHARED else ResourceManagerMetrics(registry)
    return CPUManager(
        policy=CPUPolicy(MACHINE, RESERVED, options or CPUPolicyOptions(), pod_level),
        root_dir=str(directory),
        period=10.0,
        pods=node,
        setter=node,
        metrics=CPUMetrics(registry, more),
        alignment=AlignmentMetrics(registry),
        pinned=pinned or PinnedCPUs(),
    )


@asynccontextmanager
async def running_manager(node: Node, directory: Path) -> AsyncIterator[CPUManager]:
    """A manager that has taken its file over and looks after the node's containers."""
    cpus = manager(node, directory)
    await cpus.load()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cpus.run)
        yield cpus
        nursery.cancel_scope.cancel()


def test_the_file_is_the_kubelets() -> None:
    assert encode("none", CPUState()) == RECORDED
    assert decode(RECORDED, "none") == CPUState()


def test_the_file_says_who_has_what() -> None:
    state = CPUState(parse_cpus("0,5-15"), {"b": {"main": parse_cpus("1-2"), "aside": parse_cpus("3")}})
    assert decode(encode("static", state), "static") == state


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (RECORDED, 'configured policy "static" differs from state checkpoint policy "none"'),
        (b"{", "could not restore state"),
        (b'{"policyName":"static","defaultCpuSet":"0-3","checksum":5}', "checkpoint is corrupted"),
        (b'{"policyName":"static","defaultCpuSet":"3-0","checksum":0}', r"invalid range \"3-0\" \(3 > 0\)$"),
        (
            b'{"policyName":"static","defaultCpuSet":"1.3","checksum":0}',
            '^could not restore state from checkpoint: could not parse default cpu set "1.3": '
            'strconv.Atoi: parsing "1.3": invalid syntax$',
        ),
        (
            b'{"policyName":"static","defaultCpuSet":"1","entries":{"pod":{"c":"2-a"}},"checksum":0}',
            'could not parse cpuset "2-a" for container "c" in pod "pod": '
            'strconv.Atoi: parsing "a": invalid syntax$',
        ),
        (b'{"policyName":"none","defaultCpuSet":"1.3","checksum":0}', "differs from state checkpoint policy"),
        (b'{"policyName":"static","defaultCpuSet":"0-3","podEntries":{},"checksum":7}', "is corrupted"),
        (b'{"policyName":"static","defaultCPUs":"0-3","version":9}', "could not restore state"),
    ],
)
def test_files_that_are_refused(content: bytes, text: str) -> None:
    with pytest.raises(PlacementStateError, match=text):
        decode(content, "static")


async def test_a_container_has_its_cpus_and_the_others_leave_them(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    node = Node()
    node.containers = [Running("other", "main", "c-other")]
    async with running_manager(node, tmp_path) as cpus:
        await trio.sleep(11)
        assert node.cpus == {"c-other": ["0-15"]}
        wants = container("main", "2")
        node.pods = [pod(wants)]
        await give(cpus, pod(wants), wants, None)
        own = cpus.cpus_of("u1", "main")
        assert own == "1,9"
        written = json.loads((tmp_path / FILE_NAME).read_text())
        assert written["entries"] == {"u1": {"main": own}}
        await trio.testing.wait_all_tasks_blocked()
        assert node.cpus == {"c-other": ["0-15", "0,2-8,10-15"]}, "at once, not at the next period"
        node.pods = []
        await trio.sleep(11)
        assert node.cpus["c-other"][-1] == "0-15", "shared again when the pod is over"
        assert "entries" not in json.loads((tmp_path / FILE_NAME).read_text())


async def test_what_a_refused_pod_was_given_is_shared_by_the_next_container(tmp_path: Path) -> None:
    """Its CPUs were given before something else was refused; nobody waits for the next period."""
    node = Node()
    cpus = manager(node, tmp_path)
    await cpus.load()
    wants = container("main", "2")
    node.pods = [pod(wants)]
    await give(cpus, pod(wants), wants, None)
    node.pods = []
    cpus.hints(pod(wants), wants)  # of a pod that gets nothing: it is free, and not yet written
    await cpus.take_back()
    assert cpus.cpus_of("u2", "main") == "0-15"
    assert "entries" not in json.loads((tmp_path / FILE_NAME).read_text())


async def test_a_runtime_that_is_away_is_told_later(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    node = Node()
    node.containers, node.down = [Running("other", "main", "c-other")], True
    async with running_manager(node, tmp_path):
        await trio.sleep(15)
        node.down = False
        await trio.sleep(10)
        assert node.cpus == {"c-other": ["0-15"]}


async def test_a_container_whose_update_hangs_holds_up_no_other(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """CPUs that one gets for itself are left by all others but the one that hangs."""
    node = Node()
    node.hangs = frozenset({"c-0"})
    node.containers = [Running("other", f"k{number}", f"c-{number}") for number in range(40)]
    async with running_manager(node, tmp_path) as cpus:
        await trio.sleep(15)
        assert node.cpus == {f"c-{number}": ["0-15"] for number in range(1, 40)}
        assert node.asked.count("c-0") == 1  # not again in each round
        wants = container("main", "2")
        node.pods = [pod(wants)]
        await give(cpus, pod(wants), wants, None)
        left = cpus.cpus_of("other", "k1")
        assert left != "0-15"
        await trio.sleep(1)
        assert node.cpus == {f"c-{number}": ["0-15", left] for number in range(1, 40)}
        node.hangs = frozenset()
        await trio.sleep(130)
        assert node.cpus["c-0"] == [left]


async def test_many_containers_whose_update_hangs_hold_up_no_other(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    node = Node()
    node.hangs = frozenset(f"c-{number}" for number in range(30))
    node.containers = [Running("other", f"k{number}", f"c-{number}") for number in range(40)]
    async with running_manager(node, tmp_path):
        await trio.sleep(15)
        assert node.cpus == {f"c-{number}": ["0-15"] for number in range(30, 40)}


async def test_what_was_assigned_while_a_container_was_told_it_is_told_at_once(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    node = Node()
    node.takes, node.containers = 2.0, [Running("other", "main", "c-other")]
    async with running_manager(node, tmp_path) as cpus:
        await trio.sleep(11)
        wants = container("main", "2")
        node.pods = [pod(wants)]
        await give(cpus, pod(wants), wants, None)
        await trio.sleep(4)
        assert node.cpus["c-other"] == ["0-15", cpus.cpus_of("other", "main")]


async def test_the_next_agent_goes_on_with_it(tmp_path: Path) -> None:
    node = Node()
    wants = container("main", "4")
    node.pods = [pod(wants)]
    first = manager(node, tmp_path)
    await first.load()
    await give(first, pod(wants), wants, None)
    node.complete = False  # the next agent does not know its pods yet
    node.pods = []
    second = manager(node, tmp_path)
    await second.load()
    other = container("main", "2")
    await give(second, pod(other, uid="u2"), other, None)
    assert second.cpus_of("u1", "main") == first.cpus_of("u1", "main")
    assert not second.exclusive("u1", "main") & second.exclusive("u2", "main")


async def test_a_state_of_another_machine_is_refused(tmp_path: Path) -> None:
    state = CPUState(parse_cpus("0-63"))
    (tmp_path / FILE_NAME).write_bytes(encode("static", state))
    with pytest.raises(PlacementStateError, match="doesn't match with CPUs in state") as refused:
        await manager(Node(), tmp_path).load()
    assert "please drain this node and delete the CPU manager checkpoint file" in str(refused.value)


async def test_too_many_are_refused_and_nothing_is_taken(tmp_path: Path) -> None:
    node = Node()
    cpus = manager(node, tmp_path)
    await cpus.load()
    wants = container("main", "15")
    with pytest.raises(AllocationError, match="not enough cpus available to satisfy request: requested=15"):
        await give(cpus, pod(wants), wants, None)
    assert cpus.cpus_of("u1", "main") == "0-15"


async def test_a_state_that_cannot_be_written_gives_nothing(tmp_path: Path) -> None:
    node = Node()
    cpus = manager(node, tmp_path)
    await cpus.load()
    (tmp_path / f".{FILE_NAME}.new").mkdir()
    wants = container("main", "2")
    with pytest.raises(AllocationError, match="state cannot be written"):
        await give(cpus, pod(wants), wants, None)
    assert cpus.cpus_of("u1", "main") == "0-15"


async def test_without_room_for_its_file_it_starts_and_writes_later(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, capfd: pytest.CaptureFixture[str]
) -> None:
    """It was the end of an agent that started for the first time on a full disk, which only it can clear."""
    in_the_way = tmp_path / f".{FILE_NAME}.new"
    in_the_way.mkdir()
    async with running_manager(Node(), tmp_path) as cpus:
        assert cpus.cpus_of("u1", "main") == "0-15"
        await trio.sleep(35)
        assert not (tmp_path / FILE_NAME).exists()
        assert capfd.readouterr().err.count("Failed to save checkpoint") == 1
        in_the_way.rmdir()
        await trio.sleep(11)
        assert decode((tmp_path / FILE_NAME).read_bytes(), "static").shared == parse_cpus("0-15")
        (tmp_path / FILE_NAME).unlink()
        await trio.sleep(11)
        assert not (tmp_path / FILE_NAME).exists(), "written once"


class SlowDisk:
    """A lane whose work begins when that is let."""

    def __init__(self) -> None:
        self.may_go = trio.Event()

    async def run(self, work: Callable[..., None], *args: object) -> None:
        await self.may_go.wait()
        work(*args)


async def test_what_was_freed_by_who_was_cancelled_before_its_turn_is_written_all_the_same(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, disk, wants = Node(), SlowDisk(), container("main", "2")
    node.pods = [pod(wants, uid=uid) for uid in ("u1", "u2", "u3")]
    async with running_manager(node, tmp_path) as cpus, trio.open_nursery() as nursery:
        await give(cpus, node.pods[0], wants)
        monkeypatch.setattr(manager_file, "NODE_FILES", disk)
        nursery.start_soon(give, cpus, node.pods[1], wants)
        await trio.sleep(1)
        with trio.move_on_after(1):
            await give(cpus, node.pods[2], wants)
        assert cpus.cpus_of("u3", "main") == cpus.cpus_of("", ""), "it has none of its own"
        del node.pods[0]
        with trio.move_on_after(1):
            await cpus.take_back()
        disk.may_go.set()
        await trio.sleep(11)
        state = decode((tmp_path / FILE_NAME).read_bytes(), "static")
        assert state.assigned.keys() == {"u2"}


async def test_whole_cores_that_a_container_has_are_not_missing_to_it(tmp_path: Path) -> None:
    """kubernetes 129078: a pod that had most cores was refused after a reboot, for few were free."""
    node, wants = Node(), container("main", "10")
    node.pods = [pod(wants)]
    for _ in range(2):
        cpus = manager(node, tmp_path, options=CPUPolicyOptions(full_pcpus_only=True))
        await cpus.load()
        await give(cpus, node.pods[0], wants, None)
    with pytest.raises(AllocationError, match="available physical CPUs = 4"):
        await give(cpus, pod(wants, uid="u2"), wants, None)


def aligned(
    registry: CollectorRegistry, boundary: str, what: str = "count", scope: str = "container"
) -> float:
    name = f"kubelet_container_aligned_compute_resources_{what}"
    found = registry.get_sample_value(name, {"scope": scope, "boundary": boundary})
    assert found is not None, "there from the start"
    return found


async def test_what_comes_from_one_place_is_counted(tmp_path: Path) -> None:
    node, registry = Node(), CollectorRegistry()
    cpus = manager(node, tmp_path, options=CPUPolicyOptions(full_pcpus_only=True), registry=registry)
    await cpus.load()
    assert (aligned(registry, "physical_cpu"), aligned(registry, "uncore_cache")) == (0, 0)
    main, odd, wide = container("main", "2"), container("odd", "1"), container("wide", "6")
    node.pods = [pod(main, odd, wide)]
    await give(cpus, node.pods[0], main, None)
    with pytest.raises(AllocationError):
        await give(cpus, node.pods[0], odd, None)
    assert aligned(registry, "physical_cpu") == 1
    assert aligned(registry, "physical_cpu", "failure_count") == 1
    assert aligned(registry, "uncore_cache") == 1
    await give(cpus, node.pods[0], wide, None)
    caches = {MACHINE.cpus[cpu].cache for cpu in cpus.exclusive("u1", "wide")}
    assert aligned(registry, "uncore_cache") == (2 if len(caches) == 1 else 1)
