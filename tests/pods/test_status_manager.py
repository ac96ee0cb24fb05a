"""The status manager: moments, mirrors from before the agent, what must not change back."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from tests.pods.build import api_pod, make_pod
from tests.pods.observed import SECOND, container, exited, generate, observed, pod_of, seen
from trio_kubelet.api import v1
from trio_kubelet.api.timestamps import rfc3339
from trio_kubelet.pods.manager import PodManager
from trio_kubelet.pods.status.conditions import find
from trio_kubelet.pods.status.manager import StatusManager, illegal_transition, terminated_status


class Clock:
    now = 0

    def now_ns(self) -> int:
        return self.now


def test_moments_change_only_with_what_they_are_about() -> None:
    clock, pods = Clock(), PodManager()
    statuses, pod = StatusManager(pods, clock), pod_of()
    pods.set(pod)
    first = statuses.set(pod, generate(pod, observed()))
    clock.now = 50 * SECOND
    second = statuses.set(pod, generate(pod, observed(seen("c")), first))
    assert second.start_time == first.start_time == rfc3339(0)
    moments = {c.type: c.last_transition_time for c in second.conditions or ()}
    assert moments["PodScheduled"] == rfc3339(0)
    assert moments["Ready"] == rfc3339(50 * SECOND)
    version = statuses.versioned(pod.metadata.uid)
    statuses.set(pod, generate(pod, observed(seen("c")), second))
    assert statuses.versioned(pod.metadata.uid) is version


def test_a_new_reason_is_a_transition_of_a_resize_only() -> None:
    clock, pods = Clock(), PodManager()
    statuses, pod = StatusManager(pods, clock), pod_of()
    pods.set(pod)
    for seconds, reason in ((0, ""), (50, "Error"), (90, "Error")):
        clock.now = seconds * SECOND
        for kind in ("PodResizeInProgress", "Ready"):
            statuses.put_condition(pod, v1.PodCondition(type=kind, status="True", reason=reason))
    moments = {c.type: c.last_transition_time for c in statuses.before(pod).conditions or ()}
    assert moments == {"PodResizeInProgress": rfc3339(50 * SECOND), "Ready": rfc3339(0)}


def test_the_next_resize_is_a_transition_too() -> None:
    """It may begin while the one before is still being made."""
    clock, pods = Clock(), PodManager()
    statuses, pod = StatusManager(pods, clock), pod_of()
    pods.set(pod)
    moments = []
    for seconds, generation in ((0, 2), (50, 2), (90, 3)):
        clock.now = seconds * SECOND
        for kind in ("PodResizeInProgress", "PodResizePending"):
            resize = v1.PodCondition(type=kind, status="True", observed_generation=generation)
            statuses.put_condition(pod, resize)
        moments.append({c.type: c.last_transition_time for c in statuses.before(pod).conditions or ()})
    begun = rfc3339(0)
    assert moments[0] == moments[1] == {"PodResizePending": begun, "PodResizeInProgress": begun}
    assert moments[2] == {"PodResizePending": begun, "PodResizeInProgress": rfc3339(90 * SECOND)}


def test_conditions_of_others_keep_their_own_moments() -> None:
    clock, pods = Clock(), PodManager()
    clock.now = 50 * SECOND
    statuses = StatusManager(pods, clock)
    for status, moment in (("False", rfc3339(3 * SECOND)), ("True", rfc3339(9 * SECOND))):
        foreign = v1.PodCondition(type="lb", status=status, last_transition_time=moment)
        pod = api_pod(status=v1.PodStatus(conditions=[foreign]))
        pods.set(pod)
        found = find(
            statuses.set(pod, generate(pod, observed(seen("c")), statuses.before(pod))).conditions, "lb"
        )
        assert found == foreign


def test_a_mirror_from_before_the_agent_gives_back_the_moments() -> None:
    clock, pods = Clock(), PodManager()
    clock.now = 50 * SECOND
    statuses = StatusManager(pods, clock)
    pod = make_pod(annotations={"kubernetes.io/config.hash": "h"})
    mirror = api_pod(uid="mirror", annotations={"kubernetes.io/config.mirror": "h"})
    pods.set(pod)
    now = statuses.set(pod, generate(pod, observed(seen("c"))))
    earlier = [replace(c, last_transition_time=rfc3339(7 * SECOND)) for c in now.conditions or ()]
    unready = [replace(c, status="False") if c.type == "Ready" else c for c in earlier]
    shown = replace(now, conditions=unready, start_time=rfc3339(5 * SECOND))

    statuses.remember(pod, replace(mirror, status=replace(shown, start_time=rfc3339(60 * SECOND))))
    assert statuses.get(pod.metadata.uid) == now  # not from before
    statuses.remember(pod, replace(mirror, status=shown))
    status = statuses.get(pod.metadata.uid)
    assert status is not None
    assert status.start_time == rfc3339(5 * SECOND)
    moments = {c.type: (c.status, c.last_transition_time) for c in status.conditions or ()}
    assert moments["PodScheduled"] == ("True", rfc3339(7 * SECOND))
    assert moments["Ready"] == ("True", rfc3339(50 * SECOND))


def test_a_mirror_from_before_the_agent_tells_which_containers_are_ready() -> None:
    clock, pods = Clock(), PodManager()
    clock.now = 50 * SECOND
    statuses = StatusManager(pods, clock)
    pod = make_pod(annotations={"kubernetes.io/config.hash": "h"})
    mirror = api_pod(uid="mirror", annotations={"kubernetes.io/config.mirror": "h"})
    pods.set(pod)
    ready = replace(statuses.set(pod, generate(pod, observed(seen("c")))), start_time=rfc3339(0))
    [container] = ready.container_statuses or []
    assert container.ready
    for shown_id, is_ready in ((container.container_id, "True"), ("containerd://another", "False")):
        unready = replace(container, ready=False, started=False)
        statuses.remove(pod.metadata.uid)
        statuses.set(pod, replace(ready, container_statuses=[unready], start_time=None, conditions=None))
        shown = replace(ready, container_statuses=[replace(container, container_id=shown_id)])
        statuses.remember(pod, replace(mirror, status=shown))
        status = statuses.get(pod.metadata.uid)
        assert status is not None
        for kind in ("Ready", "ContainersReady"):
            condition = find(status.conditions, kind)
            assert condition is not None
            assert condition.status == is_ready
        assert [(c.ready, c.started) for c in status.container_statuses or ()] == [(is_ready == "True",) * 2]


def test_no_container_that_has_ended_is_ready() -> None:
    """A probe passed just before, and its answer comes after; the mirror is from before the agent."""
    clock, pods = Clock(), PodManager()
    clock.now = 50 * SECOND
    statuses = StatusManager(pods, clock)
    pod = make_pod(containers=[container("c")], annotations={"kubernetes.io/config.hash": "h"})
    pods.set(pod)
    uid, before = pod.metadata.uid, generate(pod, observed(seen("c")))
    ended = statuses.set(pod, generate(pod, observed(exited("c", 1))))
    statuses.set_startup(uid, "c1", True)
    statuses.set_readiness(uid, "c1", True)
    assert statuses.get(uid) == ended
    mirror = api_pod(uid="mirror", annotations={"kubernetes.io/config.mirror": "h"})
    statuses.remember(pod, replace(mirror, status=replace(before, start_time=rfc3339(5 * SECOND))))
    status = statuses.get(uid)
    assert status is not None
    assert [(each.ready, each.started) for each in status.container_statuses or ()] == [(False, False)]
    condition = find(status.conditions, "Ready")
    assert condition is not None
    assert condition.status == "False"


def test_long_termination_messages_are_shared_out() -> None:
    clock, pods = Clock(), PodManager()
    statuses, pod = StatusManager(pods, clock), pod_of("a", "b", "c")
    message = "ü" * 5000
    status = generate(pod, observed(*(exited(n, 1, message=message) for n in "abc")))
    shown = statuses.set(pod, status)
    lengths = [len((s.state.terminated or _none()).message.encode()) for s in shown.container_statuses or ()]
    assert lengths == [4096, 4096, 4096]


def _none() -> v1.ContainerStateTerminated:
    raise AssertionError("no terminated state")


def test_a_container_that_ended_for_good_does_not_come_back() -> None:
    pod = pod_of(restart_policy="Never")
    ended, running = generate(pod, observed(exited("c"))), generate(pod, observed(seen("c")))
    assert illegal_transition(pod, ended, running) is not None
    assert illegal_transition(pod_of(restart_policy="OnFailure"), ended, running) is not None
    failed = generate(pod, observed(exited("c", 1)))
    assert illegal_transition(pod_of(restart_policy="OnFailure"), failed, running) is None
    assert illegal_transition(pod_of(), ended, running) is None
    once = make_pod(containers=[container("c", restart_policy="Never")], restart_policy="OnFailure")
    assert illegal_transition(once, failed, running) is None  # in a new sandbox
    assert illegal_transition(once, ended, running) is not None


def test_what_never_reported_its_end_is_lost_when_the_pod_is_done() -> None:
    pod = pod_of(source="api")
    status = terminated_status(pod, generate(pod, observed(seen("c"))))
    assert status.phase == "Failed"
    [shown] = status.container_statuses or []
    assert shown.state.terminated is not None
    assert shown.state.terminated.reason == "ContainerStatusUnknown"
    initialising = pod_of(init=(container("i1"), container("i2")), source="api")
    status = terminated_status(initialising, generate(initialising, observed(seen("i1"))))
    states = [s.state.terminated is not None for s in status.init_container_statuses or ()]
    assert states == [True, False]
    assert (status.container_statuses or [])[0].state.waiting is not None


NO_TEXT = "no such file: /pods/u/volumes/\udcff\udcfe"


def test_messages_that_are_no_text_become_text() -> None:
    """A path or a value of bytes that are no UTF-8 in a message: the status could never be written."""
    clock, pods = Clock(), PodManager()
    statuses, pod = StatusManager(pods, clock), pod_of()
    pods.set(pod)
    made = generate(pod, observed(seen("c")))
    waiting = v1.ContainerState(
        waiting=v1.ContainerStateWaiting(reason="CreateContainerConfigError", message=NO_TEXT)
    )
    ended = v1.ContainerState(terminated=v1.ContainerStateTerminated(message=NO_TEXT * 200, exit_code=1))
    short = v1.ContainerState(terminated=v1.ContainerStateTerminated(message=NO_TEXT, exit_code=1))
    told = replace(
        made,
        message=NO_TEXT,
        conditions=[v1.PodCondition(type="Ready", status="False", message=NO_TEXT)],
        container_statuses=[v1.ContainerStatus(name="c", state=waiting, last_state=ended)],
        init_container_statuses=[v1.ContainerStatus(name="i", state=short)],
    )
    status = statuses.set(pod, told)
    text = NO_TEXT.replace("\udcff", "\ufffd").replace("\udcfe", "\ufffd")
    assert text in msgspec.json.encode(status).decode()
    assert status.message == text
    assert [c.message for c in status.conditions or ()] == [text]
    [container_status] = status.container_statuses or []
    assert container_status.state.waiting is not None
    assert container_status.state.waiting.message == text
    version = statuses.versioned(pod.metadata.uid)
    assert statuses.set(pod, told) == status
    assert statuses.versioned(pod.metadata.uid) is version  # it is not told again and again
