"""The status writer against a server that fails in every way."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from tests.kube.store import Refused
from tests.pods.desk import Desk
from trio_kubelet.api import v1
from trio_kubelet.cluster import WRITE_TIMEOUT
from trio_kubelet.kube.recovery import WAKE_WITHIN
from trio_kubelet.pods.status import writer
from trio_kubelet.pods.status.patch import status_to_write
from trio_kubelet.pods.status.writer import BREATH, PAUSES
from trio_kubelet.server.http.messages import Hijack, Request, Response

Clock = trio.testing.MockClock


def refuse(code: int, reason: str, *, name: str = "", after: int = 0) -> Callable[[Request], Refused | None]:
    def fault(request: Request) -> Refused | None:
        if request.method != "PATCH" or name not in request.path:
            return None
        return Refused(code, reason, "as the test wants", retry_after=after)

    return fault


def desk_of_one_pod() -> tuple[Desk, str]:
    desk = Desk()
    uid = desk.create("web")
    desk.look()
    return desk, uid


async def test_a_status_is_written_once(autojump_clock: Clock) -> None:
    desk, uid = desk_of_one_pod()
    async with desk.at_work():
        desk.say(uid)
        desk.say(uid)
        await trio.sleep(0.1)
        assert desk.ready("web")
        desk.look()
        await trio.sleep(60)
        assert desk.count("PATCH") == 1
        assert desk.count("GET") == 0


async def test_a_pod_that_starts_goes_before_its_status(autojump_clock: Clock) -> None:
    """That it is pending may come a little later, that it runs may not."""
    desk, uid = desk_of_one_pod()
    desk.may_run.add(uid)
    async with desk.at_work():
        await trio.testing.wait_all_tasks_blocked()  # what is there at the start is written at once
        desk.say(uid, phase="Pending", ready=False)
        await trio.sleep(BREATH / 2)
        assert desk.count("PATCH") == 0
        desk.say(uid, phase="Pending", ready=False, message="as before")
        await trio.sleep(BREATH * 0.6)
        assert desk.count("PATCH") == 1
        await trio.sleep(1)
        desk.say(uid, phase="Pending", ready=False, message="again")
        desk.say(uid, phase="Running")
        await trio.sleep(BREATH / 4)
        assert desk.ready("web")
        await trio.sleep(1)
        assert desk.count("PATCH") == 2


async def test_a_pod_that_is_over_waits_a_little_for_what_is_left_of_it(autojump_clock: Clock) -> None:
    desk, uid = desk_of_one_pod()
    desk.may_run.add(uid)
    async with desk.at_work():
        desk.say(uid)
        await trio.sleep(1)
        desk.say(uid, "Succeeded")
        await trio.sleep(BREATH / 2)
        desk.finish(uid)
        await trio.sleep(BREATH / 4)
        assert desk.status("web")["phase"] == "Succeeded"
        await trio.sleep(60)
        assert desk.count("PATCH") == 2


async def test_a_watch_that_lags_causes_no_second_write(autojump_clock: Clock) -> None:
    desk, uid = desk_of_one_pod()
    async with desk.at_work():
        desk.say(uid, ready=False)
        await trio.sleep(0.1)
        desk.look()
        desk.say(uid, ready=True)
        await trio.sleep(60)
        assert desk.ready("web")
        assert desk.count("PATCH") == 2
        desk.statuses.retell(uid)
        await trio.sleep(1)
        assert desk.count("PATCH") == 2
        desk.say(uid, ready=False)  # as the watch last told
        await trio.sleep(1)
        assert not desk.ready("web")


async def test_many_changes_of_a_pod_are_one_request_after_another(autojump_clock: Clock) -> None:
    desk, uid = desk_of_one_pod()
    desk.server.latency = 0.5
    async with desk.at_work():
        for number in range(100):
            desk.say(uid, message=str(number))
            await trio.sleep(0.01)
        await trio.sleep(2)
        assert desk.status("web")["message"] == "99"
        assert desk.count("PATCH") <= 4


async def test_500_pods_become_ready_at_once(autojump_clock: Clock) -> None:
    """With 50 ms for each answer; a bounded number is under way, so that other requests get through."""
    desk = Desk()
    uids = {f"p{number}": desk.create(f"p{number}") for number in range(500)}
    desk.look()
    desk.server.latency = 0.05
    under_way = most = 0
    request = desk.door.request

    async def counted(*args: object) -> object:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        try:
            return await request(*args)  # type: ignore[arg-type]
        finally:
            under_way -= 1

    desk.door.request = counted  # type: ignore[method-assign, assignment]
    async with desk.at_work():
        for uid in uids.values():
            desk.say(uid)
        await trio.sleep(5)
        assert all(map(desk.ready, uids))
        assert desk.count("PATCH") == 500
        assert most == 16
    measured = desk.registry.get_sample_value("kubelet_pod_status_sync_duration_seconds_count")
    assert measured == 500


async def test_a_restart_with_500_ready_pods_writes_nothing(autojump_clock: Clock) -> None:
    """kubernetes/kubernetes 100277."""
    desk = Desk()
    uids = [desk.create(f"p{number}") for number in range(500)]
    desk.look()
    async with desk.at_work():
        for uid in uids:
            desk.say(uid)
        await trio.sleep(5)
    await trio.sleep(100)
    again = Desk(desk.server)
    again.look()
    before = again.count("PATCH")
    async with again.at_work():
        for uid in uids:
            again.say(uid)
        await trio.sleep(60)
        assert again.count("PATCH") == before


async def test_what_somebody_else_changes_is_put_right(autojump_clock: Clock) -> None:
    desk, uid = desk_of_one_pod()
    async with desk.at_work():
        desk.say(uid)
        await trio.sleep(1)
        theirs = [
            {"type": "Ready", "status": "False", "reason": "Vandal"},
            {"type": "example.com/x", "status": "True"},
        ]
        desk.store.set_status("pods", "default", "web", conditions=theirs, phase="Pending")
        desk.look()
        await trio.sleep(10.5)
        assert desk.ready("web")
        assert desk.agrees(uid, "web")
        kinds = [c["type"] for c in desk.status("web")["conditions"]]
        assert "example.com/x" in kinds
        count = desk.count("PATCH")
        desk.look()
        await trio.sleep(60)
        assert desk.count("PATCH") == count


async def test_a_pod_that_somebody_else_has_ended_stays_so(autojump_clock: Clock) -> None:
    desk, uid = desk_of_one_pod()
    async with desk.at_work():
        desk.say(uid)
        await trio.sleep(1)
        desk.store.set_status("pods", "default", "web", phase="Failed")
        desk.look()
        desk.say(uid, message="of a pod that runs")
        await trio.sleep(60)
        assert desk.status("web")["phase"] == "Failed"


async def test_a_server_that_keeps_changing_what_is_written_is_not_fought(autojump_clock: Clock) -> None:
    """An admission hook that rewrites each status."""
    desk, uid = desk_of_one_pod()

    def rewrite(change: object) -> None:
        found = desk.shown("web")
        if found is not None and found["status"].get("message") == "said":
            desk.store.set_status("pods", "default", "web", message="rewritten")

    desk.store.on_change = rewrite
    async with desk.at_work():
        desk.say(uid, message="said")
        for _ in range(600):
            await trio.sleep(1)
            desk.look()
        assert desk.count("PATCH") < 70


@pytest.mark.parametrize("terminal", ["Succeeded", "Failed"])
async def test_a_terminal_phase_waits_for_the_containers(autojump_clock: Clock, terminal: str) -> None:
    desk, uid = desk_of_one_pod()
    desk.may_run.add(uid)
    async with desk.at_work():
        desk.say(uid)
        await trio.sleep(1)
        desk.say(uid, terminal)
        await trio.sleep(30)
        assert desk.status("web")["phase"] == "Running"
        assert not desk.ready("web")
        count = desk.count("PATCH")
        desk.may_run.clear()
        await trio.sleep(1.5)
        assert desk.status("web")["phase"] == terminal
        assert desk.count("PATCH") == count + 1


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (500, "InternalError"),
        (422, "Invalid"),
        (409, "Conflict"),
        (404, "NotFound"),  # of a proxy before the servers; one of those would name the pod
        (403, "Forbidden"),
        (400, "BadRequest"),
    ],
)
async def test_an_error_about_one_pod_delays_no_other(code: int, reason: str, autojump_clock: Clock) -> None:
    desk = Desk()
    bad = desk.create("bad")
    uids = {f"p{number}": desk.create(f"p{number}") for number in range(50)}
    desk.look()
    desk.server.refuse = refuse(code, reason, name="/bad/")
    async with desk.at_work():
        desk.say(bad)
        for uid in uids.values():
            desk.say(uid)
        await trio.sleep(1)
        assert all(map(desk.ready, uids))
        await trio.sleep(600)
        assert 50 + 600 / 60 < desk.count("PATCH") < 50 + 600 / 30 + 10
        desk.server.refuse = lambda request: None
        await trio.sleep(46)
        assert desk.ready("bad")
        desk.server.refuse = refuse(code, reason)
        desk.say(bad, ready=False)  # it begins anew with a short pause
        await trio.sleep(0.1)
        desk.server.refuse = lambda request: None
        await trio.sleep(1)
        assert not desk.ready("bad")


async def test_a_pod_that_the_server_fails_with_waits_however_often_it_changes(autojump_clock: Clock) -> None:
    desk, uid = desk_of_one_pod()
    desk.server.refuse = refuse(500, "InternalError")
    async with desk.at_work():
        for number in range(600):
            desk.say(uid, message=str(number))
            await trio.sleep(1)
        assert desk.count("PATCH") < 600 / 30 + 10


async def test_many_pods_that_the_server_fails_with_hold_up_no_other(autojump_clock: Clock) -> None:
    """As where a webhook of their namespace does not answer, for which the server waits each time."""
    desk = Desk()
    bad = [desk.create(f"bad-{number}") for number in range(300)]
    uid = desk.create("web")
    desk.look()
    desk.server.latency, desk.server.refuse = 5.0, refuse(500, "InternalError", name="bad")
    async with desk.at_work():
        for each in bad:
            desk.say(each)
        await trio.sleep(300)
        for ready in (True, False, True):
            desk.say(uid, ready=ready)
            await trio.sleep(6)
            assert desk.ready("web") is ready


def desk_with_bad_pods(number: int, fault: str) -> tuple[Desk, str]:
    """Besides so many that the server does not answer for there is one that it does."""
    desk = Desk()
    bad = [desk.create(f"bad-{each}") for each in range(number)]
    uid = desk.create("web")
    desk.look()
    handle = desk.server.handle

    async def handled(request: Request) -> Response | Hijack:
        if "/bad-" in request.path:
            if fault == "unavailable":
                return Response(status=503)
            await trio.sleep_forever()
        return await handle(request)

    desk.server.handle = handled  # type: ignore[method-assign]
    for each in bad:
        desk.say(each)
    return desk, uid


@pytest.mark.parametrize("fault", ["hangs", "unavailable"])
async def test_many_pods_without_an_answer_hold_up_others_for_no_longer_than_a_pause(
    autojump_clock: Clock, fault: str
) -> None:
    """They are tried one by one, as in an outage: who changes meanwhile need not wait for all of them."""
    desk, uid = desk_with_bad_pods(300, fault)
    async with desk.at_work():
        await trio.sleep(300)
        for ready in (True, False, True):
            desk.say(uid, ready=ready)
            await trio.sleep(PAUSES.after(99, 1.0) + WRITE_TIMEOUT + 1)
            assert desk.ready("web") is ready


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("fault", ["hangs", "unavailable"])
async def test_one_pod_without_an_answer_holds_up_no_other(
    autojump_clock: Clock, fault: str, seed: int
) -> None:
    """As when a webhook of its namespace does not answer: the server is there for all others."""
    random.seed(seed)
    desk = Desk()
    uids = {name: desk.create(name) for name in ("stuck", *(f"p{number}" for number in range(10)))}
    desk.look()
    handle, mended = desk.server.handle, trio.Event()

    async def handled(request: Request) -> Response | Hijack:
        if request.method == "PATCH" and "/stuck/" in request.path and not mended.is_set():
            if fault == "unavailable":
                return Response(status=503)
            await mended.wait()
        return await handle(request)

    desk.server.handle = handled  # type: ignore[method-assign]
    async with desk.at_work():
        desk.say(uids["stuck"])
        await trio.sleep(200)  # with nobody else to tell of
        for number in range(50):
            name = f"p{number % 10}"
            desk.say(uids[name], message=str(number))
            await trio.sleep(0.1)
            assert desk.status(name)["message"] == str(number)
            desk.look()
            await trio.sleep(7)
        assert desk.count("PATCH") < 50 + 50
        mended.set()
        await trio.sleep(46)
        assert desk.ready("stuck")


async def test_a_server_that_asks_for_patience_gets_it(autojump_clock: Clock) -> None:
    desk = Desk()
    uids = [desk.create(f"p{number}") for number in range(50)]
    desk.look()
    desk.server.refuse = refuse(429, "TooManyRequests", after=20)
    async with desk.at_work():
        for uid in uids:
            desk.say(uid)
        await trio.sleep(19)
        assert desk.count("PATCH") <= 16
        await trio.sleep(100)
        assert desk.count("PATCH") <= 16 + 6
        desk.server.refuse = lambda request: None
        await trio.sleep(31)
        assert all(desk.ready(f"p{number}") for number in range(50))


async def test_patience_is_asked_for_one_pod(autojump_clock: Clock) -> None:
    desk = Desk()
    bad, good = desk.create("bad"), desk.create("good")
    desk.look()
    desk.server.refuse = refuse(500, "InternalError", name="/bad/", after=120)
    async with desk.at_work():
        desk.say(bad)
        desk.say(good)
        await trio.sleep(119)
        assert desk.ready("good")
        assert desk.count("PATCH") == 2
        await trio.sleep(2)
        assert desk.count("PATCH") == 3


async def test_a_pod_that_is_gone_is_not_waited_for(autojump_clock: Clock) -> None:
    desk, uid = desk_of_one_pod()
    desk.server.refuse = refuse(500, "InternalError")
    async with desk.at_work():
        desk.say(uid)
        await trio.sleep(15)
        assert desk.writer.unwritten == 1
        desk.store.delete("pods", "default", "web", {"gracePeriodSeconds": 0})
        desk.look()
        await trio.sleep(60)
        assert desk.writer.unwritten == 0
        before = desk.count("PATCH")
        await trio.sleep(600)
        assert desk.count("PATCH") == before


@pytest.mark.parametrize("fault", ["down", "silent"])
async def test_an_outage(autojump_clock: Clock, fault: str) -> None:
    """One request now and then tries; afterwards all statuses are there, also those changed meanwhile."""
    desk = Desk()
    uids = {f"p{number}": desk.create(f"p{number}") for number in range(200)}
    desk.look()
    async with desk.at_work():
        for uid in uids.values():
            desk.say(uid, ready=False)
        await trio.sleep(5)
        setattr(desk.server, fault, True)
        attempts = len(desk.door.attempts)
        for _ in range(60):
            for uid in uids.values():
                desk.say(uid)
            await trio.sleep(30)
            for uid in uids.values():
                desk.say(uid, ready=False)
            await trio.sleep(30)
        for uid in uids.values():
            desk.say(uid)
        assert len(desk.door.attempts) - attempts < 16 + 3600 / 30 + 10
        setattr(desk.server, fault, False)
        await trio.sleep(WRITE_TIMEOUT + PAUSES.after(99, 1.0) + 1)  # a request may just have begun to wait
        assert all(map(desk.ready, uids))
        assert desk.writer.unwritten == 0


async def test_requests_that_get_no_answer_at_once_are_one_outage(autojump_clock: Clock) -> None:
    desk = Desk()
    uids = {f"p{number}": desk.create(f"p{number}") for number in range(50)}
    desk.look()
    async with desk.at_work():
        desk.server.down = True
        for uid in uids.values():
            desk.say(uid)
        await trio.sleep(0.1)
        desk.server.down = False
        await trio.sleep(PAUSES.after(1, 1.0))
        assert all(map(desk.ready, uids))


@pytest.mark.parametrize("fault", ["down", "asks all for patience", "asks one for patience"])
async def test_when_others_are_answered_again_statuses_follow_at_once(
    autojump_clock: Clock, fault: str
) -> None:
    desk = Desk()
    uids = {f"p{number}": desk.create(f"p{number}") for number in range(50)}
    desk.look()
    async with desk.at_work():
        desk.server.down = fault == "down"
        if not desk.server.down:
            name = "/p0/" if "one" in fault else ""
            desk.server.refuse = refuse(429, "TooManyRequests", name=name, after=300)
        for uid in uids.values():
            desk.say(uid)
        await trio.sleep(203)
        assert desk.writer.unwritten > 30
        desk.server.down, desk.server.refuse = False, lambda request: None
        desk.writer.hurry()
        await trio.sleep(WAKE_WITHIN + 0.1)
        assert all(map(desk.ready, uids))
        assert desk.writer.unwritten == 0


async def test_a_pod_that_is_gone_is_not_asked_about_again(autojump_clock: Clock) -> None:
    desk, uid = desk_of_one_pod()
    desk.store.delete("pods", "default", "web", {"gracePeriodSeconds": 0})
    async with desk.at_work():
        desk.say(uid)
        await trio.sleep(600)
        assert desk.count("PATCH") == 1


async def test_a_successor_of_the_same_name_gets_nothing_of_it(autojump_clock: Clock) -> None:
    desk = Desk()
    old = desk.create("web")
    desk.look()
    desk.store.delete("pods", "default", "web", {"gracePeriodSeconds": 0})
    new = desk.create("web")
    async with desk.at_work():
        desk.say(old, "Failed", message="of the old one")
        desk.finish(old)
        await trio.sleep(60)
        assert desk.status("web") == {"phase": "Pending"}
        desk.look()
        desk.say(new)
        await trio.sleep(1)
        assert desk.agrees(new, "web")
        bodies = [json.loads(r.body) for r in desk.server.requests if r.method == "PATCH"]
        assert bodies[-1]["metadata"]["uid"] == new


async def test_what_was_under_way_when_the_writer_ended_is_written_by_the_next_run(
    autojump_clock: Clock,
) -> None:
    desk, uid = desk_of_one_pod()
    async with desk.at_work():
        desk.say(uid)
        await trio.sleep(1)
        desk.server.silent = True
        desk.say(uid, message="not written")
        await trio.sleep(1)
    desk.server.silent = False
    async with desk.at_work():
        await trio.sleep(11)
        assert desk.agrees(uid, "web")


async def test_a_deletion_that_conflicts_is_tried_again_now_and_then(autojump_clock: Clock) -> None:
    desk, uid = desk_of_one_pod()

    def conflict(request: Request) -> Refused | None:
        return Refused(409, "Conflict", "as the test wants") if request.method == "DELETE" else None

    desk.store.delete("pods", "default", "web", {})
    desk.look()
    desk.server.refuse = conflict
    async with desk.at_work():
        desk.say(uid, "Succeeded")
        desk.finish(uid)
        await trio.sleep(1)
        desk.look()
        await trio.sleep(60)
        assert 6 <= desk.count("DELETE") <= 8
        desk.server.refuse = lambda request: None
        await trio.sleep(11)
        assert desk.shown("web") is None
        count = desk.count("DELETE")
        await trio.sleep(60)
        assert desk.count("DELETE") == count


@pytest.mark.parametrize("fault", ["lost", "gateway"])
async def test_a_lost_answer_is_no_lost_status(autojump_clock: Clock, fault: str) -> None:
    """The server may have taken what it did not answer: the next status is right either way."""
    desk, uid = desk_of_one_pod()
    handle = desk.server.handle

    async def through_a_gateway(request: Request) -> Response | Hijack:
        await handle(request)
        return Response(status=500)

    async with desk.at_work():
        desk.say(uid, ready=False)
        await trio.sleep(1)
        desk.look()
        if fault == "lost":
            desk.server.lose_answers = True
        else:
            desk.server.handle = through_a_gateway  # type: ignore[method-assign]
        desk.say(uid, ready=True)
        await trio.sleep(0.1)
        assert desk.ready("web")
        desk.say(uid, ready=False)  # as the source still shows it
        desk.server.lose_answers = False
        desk.server.handle = handle  # type: ignore[method-assign]
        await trio.sleep(2)
        assert not desk.ready("web")
        assert desk.count("PATCH") == 3


async def test_what_arrived_though_its_answer_was_lost_is_not_written_again(autojump_clock: Clock) -> None:
    desk, uid = desk_of_one_pod()
    async with desk.at_work():
        desk.say(uid, ready=False)
        await trio.sleep(1)
        desk.server.lose_answers = True
        for message in ("first", "second"):
            desk.say(uid, message=message)
            await trio.sleep(PAUSES.after(2, 1.0))
        desk.server.lose_answers = False
        count = desk.count("PATCH")
        assert desk.status("web")["message"] == "second"
        desk.look()
        await trio.sleep(60)
        assert desk.count("PATCH") == count


async def test_after_so_many_lost_answers_the_server_is_asked(autojump_clock: Clock) -> None:
    desk, uid = desk_of_one_pod()
    async with desk.at_work():
        desk.server.lose_answers = True
        for number in range(20):
            desk.say(uid, message=str(number))
            await trio.sleep(46)
        assert desk.count("GET") >= 1
        desk.server.lose_answers = False
        await trio.sleep(46)
        assert desk.agrees(uid, "web")


async def test_a_store_put_back_to_a_backup_is_told_again(autojump_clock: Clock) -> None:
    desk, uid = desk_of_one_pod()
    async with desk.at_work():
        saved = desk.store.backup()
        desk.say(uid)
        await trio.sleep(1)
        desk.look()
        await trio.sleep(11)
        desk.store.restore(saved)
        assert not desk.ready("web")
        desk.look()
        await trio.sleep(11)
        assert desk.agrees(uid, "web")


async def test_a_status_that_cannot_be_written_keeps_back_no_other(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk()
    bad, good = desk.create("bad"), desk.create("good")
    desk.look()
    make = status_to_write

    def fails(pod: v1.Pod, *parts: Any, **more: Any) -> Any:
        if pod.metadata.uid == bad:
            raise RecursionError("a defect")
        return make(pod, *parts, **more)

    async with desk.at_work():
        monkeypatch.setattr(writer, "status_to_write", fails)
        desk.say(bad)
        await trio.sleep(1)
        desk.say(good)
        await trio.sleep(1)
        assert desk.ready("good")
        assert not desk.ready("bad")
        monkeypatch.undo()
        await trio.sleep(60)
        assert desk.ready("bad")
