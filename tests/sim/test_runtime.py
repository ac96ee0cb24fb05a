"""The simulated runtime's state machines: whatever is asked of them, in whatever order, certain things
hold.
"""

from __future__ import annotations

import contextlib

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from trio_kubelet.cri.errors import CRIError, NotFound, Unknown
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.sim.populate import IMAGE, Population, container_config, sandbox_config
from trio_kubelet.sim.records import Container
from trio_kubelet.sim.runtime import SimRuntime

SECOND = 1_000_000_000
COMMANDS = [[], ["sleep", "3"], ["false"], ["sh", "-c", "trap '' TERM; run"], ["sh", "-c", "sleep 1; exit 7"]]


class RuntimeMachine(RuleBasedStateMachine):
    """Random calls in a random order at random moments."""

    sandboxes = Bundle("sandboxes")
    containers = Bundle("containers")

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_700_000_000 * SECOND
        self.runtime = SimRuntime(seed=1)
        self.runtime.images.pull(IMAGE)
        self.events: list[cri.ContainerEventResponse] = []
        self.ended: list[str] = []
        self.runtime.listeners.append(lambda make: self.events.append(make()))
        self.runtime.on_end.append(lambda container: self.ended.append(container.id))
        self.pods = 0
        self.attempts = 0

    @rule(target=sandboxes, host=st.booleans())
    def run_sandbox(self, host: bool) -> str:
        self.pods += 1
        config = sandbox_config(self.pods, f"uid-{self.pods}")
        if host:
            config.linux.security_context.namespace_options.network = cri.NODE
        sandbox = self.runtime.run_sandbox(config, "", self.now)
        assert bool(sandbox.ip) != host
        return sandbox.id

    @rule(target=containers, sandbox_id=sandboxes, command=st.sampled_from(COMMANDS))
    def create(self, sandbox_id: str, command: list[str]) -> str:
        self.attempts += 1
        pod = sandbox_config(0, "")
        config = container_config("c", pod, self.attempts)
        config.command.extend(command)
        sandbox = self.runtime.find_sandbox(sandbox_id)
        try:
            container = self.runtime.create_container(sandbox_id, config, pod, self.now)
        except NotFound:
            assert sandbox is None
            return "gone"
        except Unknown:
            assert sandbox is not None
            assert not sandbox.ready
            return "gone"
        assert container.state == cri.CONTAINER_CREATED
        return container.id

    @rule(container_id=containers)
    def start(self, container_id: str) -> None:
        before = self.runtime.find_container(container_id)
        state = before.state if before else None
        with contextlib.suppress(CRIError):
            self.runtime.start_container(container_id, self.now)
            assert state == cri.CONTAINER_CREATED

    @rule(container_id=containers, grace=st.integers(0, 40))
    def stop(self, container_id: str, grace: int) -> None:
        waiting = self.runtime.stop_container(container_id, grace, self.now)
        if waiting is not None:
            due = self.runtime.next_due_ns()
            assert due is not None
            assert due <= self.now + grace * SECOND

    @rule(container_id=consumes(containers))
    def remove(self, container_id: str) -> None:
        self.runtime.remove_container(container_id, self.now)
        assert self.runtime.find_container(container_id) is None

    @rule(sandbox_id=sandboxes)
    def stop_sandbox(self, sandbox_id: str) -> None:
        self.runtime.stop_sandbox(sandbox_id, self.now)
        sandbox = self.runtime.find_sandbox(sandbox_id)
        if sandbox is not None:
            states = {self.runtime.containers[i].state for i in sandbox.container_ids}
            assert not sandbox.ready
            assert cri.CONTAINER_RUNNING not in states

    @rule(sandbox_id=consumes(sandboxes))
    def remove_sandbox(self, sandbox_id: str) -> None:
        self.runtime.remove_sandbox(sandbox_id, self.now)
        assert self.runtime.find_sandbox(sandbox_id) is None

    @rule(seconds=st.floats(0, 50))
    def time_passes(self, seconds: float) -> None:
        self.now += round(seconds * SECOND)
        self.runtime.advance(self.now)
        due = self.runtime.next_due_ns()
        assert due is None or due > self.now

    @invariant()
    def moments_are_in_order(self) -> None:
        for container in self.runtime.containers.values():
            self.check(container)

    def check(self, container: Container) -> None:
        state = container.state
        assert container.created_ns <= self.now
        assert container.starts <= 1
        assert bool(container.started_ns) == (state != cri.CONTAINER_CREATED)
        assert bool(container.finished_ns) == (state == cri.CONTAINER_EXITED)
        assert (container.id in self.ended) == (state == cri.CONTAINER_EXITED)
        if state == cri.CONTAINER_EXITED:
            assert container.created_ns <= container.started_ns <= container.finished_ns <= self.now
            assert (container.exit_code == 0) == (container.reason == "Completed")

    @invariant()
    def lists_say_what_is_there(self) -> None:
        listed = cri.ListContainersResponse.FromString(self.runtime.listed_containers(cri.ContainerFilter()))
        records = self.runtime.containers
        assert {(c.id, c.state) for c in listed.containers} == {(c.id, c.state) for c in records.values()}
        pods = cri.ListPodSandboxResponse.FromString(self.runtime.listed_sandboxes(cri.PodSandboxFilter()))
        assert {(s.id, s.state) for s in pods.items} == {
            (s.id, s.state) for s in self.runtime.sandboxes.values()
        }
        for container in records.values():
            assert container.id in self.runtime.sandboxes[container.sandbox_id].container_ids

    @invariant()
    def the_last_event_tells_the_state(self) -> None:
        last: dict[str, int] = {}
        for event in self.events:
            last[event.container_id] = event.container_event_type
        expected = {
            cri.CONTAINER_CREATED: cri.CONTAINER_CREATED_EVENT,
            cri.CONTAINER_RUNNING: cri.CONTAINER_STARTED_EVENT,
            cri.CONTAINER_EXITED: cri.CONTAINER_STOPPED_EVENT,
        }
        for container in self.runtime.containers.values():
            assert last[container.id] == expected[container.state]
        for sandbox in self.runtime.sandboxes.values():
            kind = cri.CONTAINER_STARTED_EVENT if sandbox.ready else cri.CONTAINER_STOPPED_EVENT
            assert last[sandbox.id] == kind
        present = {*self.runtime.containers, *self.runtime.sandboxes}
        assert all(kind == cri.CONTAINER_DELETED_EVENT for id, kind in last.items() if id not in present)


TestRuntime = RuntimeMachine.TestCase
TestRuntime.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_the_same_seed_gives_the_same_bytes() -> None:
    def life(seed: int) -> bytes:
        runtime = SimRuntime(seed)
        population = Population(runtime, seed)
        population.add_pods(5, 3, SECOND)
        population.churn(4, 2 * SECOND)
        return runtime.listed_containers(cri.ContainerFilter())

    assert life(1) == life(1)
    assert life(1) != life(2)


def test_churn_replaces_containers_by_their_next_attempt() -> None:
    runtime = SimRuntime()
    population = Population(runtime)
    population.add_pods(4, 2, SECOND)
    population.churn(3, 2 * SECOND)
    assert len(runtime.containers) == 8
    assert sorted(c.config.metadata.attempt for c in runtime.containers.values()) == [0] * 5 + [1] * 3


def test_ids_may_be_shortened_where_they_are_unique() -> None:
    runtime = SimRuntime()
    Population(runtime).add_pods(1, 20, SECOND)
    container = next(iter(runtime.containers.values()))
    assert runtime.container(container.id[:13]) is container
    assert runtime.find_container("") is None
