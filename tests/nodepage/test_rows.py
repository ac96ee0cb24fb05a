"""What a row says of a pod, and what it says that the pod waits for."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.nodepage.nodes import container_status, facts
from trio_kubelet.api import v1
from trio_kubelet.nodepage import rows
from trio_kubelet.nodepage.rows import Pulling, Wait, Work, pod_row

MS = 1_000_000
CRASHED = v1.ContainerState(
    waiting=v1.ContainerStateWaiting(
        reason="CrashLoopBackOff", message="back-off 20s restarting failed container=c pod=p"
    )
)


def test_a_pod_that_runs() -> None:
    resources = v1.ResourceRequirements(
        requests={"cpu": "100m", "memory": "32Mi"}, limits={"cpu": "1500m", "memory": "64Mi"}
    )
    container = v1.Container(name="c", image="busybox:1", resources=resources, liveness_probe=v1.Probe())
    pod = facts(
        "web",
        container_status("c", restarts=3),
        containers=[container],
        verdicts={"liveness": {"c-id": "success"}},
    )
    row = pod_row(pod)
    assert (row.name, row.namespace, row.state, row.health, row.ready, row.total) == (
        "web",
        "default",
        "Running",
        "good",
        1,
        1,
    )
    assert (row.restarts, row.began, row.ip, row.waits) == (3, 1767225600000, "10.0.0.9", ())
    (shown,) = row.containers
    assert (shown.cpu_request, shown.cpu_limit) == (100, 1500)
    assert (shown.memory_request, shown.memory_limit) == (32 << 20, 64 << 20)
    assert shown.probes == (("liveness", "success"),)
    assert (shown.state, shown.running, shown.since) == ("Running", True, 1767225600000)


def test_a_back_off_has_a_moment_at_which_it_ends() -> None:
    row = pod_row(facts("web", container_status("c", state=CRASHED), held={"c": 5000 * MS}))
    assert row.health == "bad"
    assert row.waits == (
        Wait(what="back-off", text="back-off 20s restarting failed", container="c", until=5000),
    )


def test_an_image_that_is_pulled() -> None:
    creating = v1.ContainerState(waiting=v1.ContainerStateWaiting(reason="ContainerCreating"))
    row = pod_row(
        facts(
            "web",
            container_status("c", state=creating),
            phase="Pending",
            pulls={"c": Pulling("big:1", 7 * MS)},
        )
    )
    assert row.health == "busy"
    assert row.waits == (Wait(what="image", text="the image big:1", container="c", since=7),)


def test_volumes_that_are_waited_for_and_what_went_wrong_with_them() -> None:
    error = "Unable to attach or mount volumes: x"
    now = pod_row(facts("web", work=Work(step="volumes", step_ns=9 * MS, error=error)))
    assert now.waits == (Wait(what="volume", text="its volumes", since=9),)
    later = pod_row(facts("web", work=Work(error=error, next_ns=11 * MS)))
    assert later.waits == (Wait(what="volume", text=error, until=11),)


def test_a_name_that_is_still_taken_a_probe_and_an_init_container() -> None:
    assert pod_row(facts("web", work=Work(holder="default/old"))).waits[0].what == "name"
    probed = v1.Container(name="c", image="i", readiness_probe=v1.Probe())
    (wait,) = pod_row(facts("web", container_status("c", ready=False), containers=[probed])).waits
    assert (wait.what, wait.text) == ("probe", "its readiness probe to succeed")
    held = v1.ContainerState(waiting=v1.ContainerStateWaiting(reason="PodInitializing"))
    row = pod_row(
        facts(
            "web",
            container_status("c", state=held),
            phase="Pending",
            init=[v1.Container(name="first", image="i")],
            init_statuses=[container_status("first", ready=False)],
        )
    )
    assert [wait.text for wait in row.waits] == ["init container first to end"]


def test_a_pod_that_is_being_ended_says_so() -> None:
    assert pod_row(facts("web", work=Work(stage="terminating"))).state == "Terminating"


def test_pods_that_are_over_wait_for_nothing() -> None:
    ended = v1.ContainerState(terminated=v1.ContainerStateTerminated(exit_code=0, reason="Completed"))
    row = pod_row(facts("job", container_status("c", state=ended), phase="Succeeded", work=Work(error="x")))
    assert (row.health, row.waits) == ("over", ())


def test_how_a_container_ended_before() -> None:
    status = container_status("c", state=CRASHED)
    last = v1.ContainerState(
        terminated=v1.ContainerStateTerminated(
            exit_code=137, reason="OOMKilled", finished_at="2026-01-01T00:00:09Z"
        )
    )
    row = pod_row(facts("web", msgspec.structs.replace(status, last_state=last)))
    assert (row.containers[0].last, row.containers[0].last_at) == ("OOMKilled", 1767225609000)


@given(st.text(), st.text(), st.text(max_size=3000))
def test_what_a_pod_chooses_is_bounded_and_can_be_sent(name: str, image: str, message: str) -> None:
    waiting = v1.ContainerState(waiting=v1.ContainerStateWaiting(reason=name, message=message))
    pod = facts(
        name,
        container_status("c", state=waiting),
        phase="Pending",
        containers=[v1.Container(name="c", image=image)],
    )
    sent = msgspec.json.encode(pod_row(pod))
    assert len(sent) < 40 * rows.TEXT


@given(st.text(alphabet=st.characters(min_codepoint=0xD7F0, max_codepoint=0xE010), max_size=20))
def test_halves_of_characters_are_replaced(text: str) -> None:
    rows.cut(text).encode()


def test_a_text_turns_nothing_beside_it() -> None:
    assert rows.cut("Err\u202egnitrevni \u2067too\u2069") == "Err\ufffdgnitrevni \ufffdtoo\ufffd"
    for text in ("שלום", "Err: مرحبا", "\u200f"):
        assert rows.cut(text) == f"\u2068{text}\u2069"
    assert rows.cut("ш" * 700) == "ш" * 599 + "…"


def test_a_pod_with_very_many_containers_shows_some_and_says_how_many_more() -> None:
    pod = facts("web", *(container_status(f"c{number}", state=CRASHED) for number in range(1000)))
    row = pod_row(pod)
    assert (len(row.containers), row.more_containers) == (rows.CONTAINERS, 1000 - rows.CONTAINERS)
    assert (len(row.waits), row.more_waits) == (rows.WAITS, 1000 - rows.WAITS)
