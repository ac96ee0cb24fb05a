"""Pods that are given devices and the like before they start."""

from __future__ import annotations

import trio
import trio.testing

from tests.pods.build import make_pod
from trio_kubelet.api.v1 import Pod
from trio_kubelet.pods.admission.admitter import Reject
from trio_kubelet.pods.admission.allocating import Allocating


class Giver:
    """Gives when it is told to; refuses pods by name."""

    def __init__(self) -> None:
        self.may = trio.Event()
        self.asked: list[str] = []
        self.passed: list[str] = []

    def concerns(self, pod: Pod) -> bool:
        return pod.metadata.name != "plain"

    def passes(self, pod: Pod) -> None:
        self.passed.append(pod.metadata.name)

    async def allocate(self, pod: Pod) -> tuple[str, str] | None:
        self.asked.append(pod.metadata.name)
        await self.may.wait()
        return ("UnexpectedAdmissionError", "no") if pod.metadata.name == "refused" else None


async def test_a_pod_is_outstanding_until_somebody_has_tried() -> None:
    giver, told = Giver(), list[str]()
    allocating = Allocating(giver)
    one, refused, plain = (make_pod(name) for name in ("one", "refused", "plain"))
    assert allocating.outstanding(one)
    assert not allocating.outstanding(plain)
    async with trio.open_nursery() as nursery:
        await nursery.start(allocating.run, told.append)
        for pod in (one, refused, one):
            allocating.begin(pod)
        await trio.testing.wait_all_tasks_blocked()
        assert told == []
        giver.may.set()
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert sorted(giver.asked) == ["one", "refused"]
    assert sorted(told) == sorted([one.metadata.uid, refused.metadata.uid])
    assert not allocating.outstanding(one)
    assert allocating.refusal(one.metadata.uid) is None
    assert allocating.refusal(refused.metadata.uid) == Reject("UnexpectedAdmissionError", "no")


def test_a_pod_that_asks_for_nothing_passes_once() -> None:
    giver = Giver()
    allocating = Allocating(giver)
    plain = make_pod("plain")
    for _ in range(2):  # as with a pod that others make room for
        assert not allocating.outstanding(plain)
    assert giver.passed == ["plain"]
    assert allocating.refusal(plain.metadata.uid) is None
    allocating.forget(plain.metadata.uid)
    assert not allocating.outstanding(plain)
    assert giver.passed == ["plain", "plain"]


async def test_what_is_to_be_looked_at_first_is_looked_at_once() -> None:
    giver, told, looks = Giver(), list[str](), list[str]()
    allocating = Allocating(giver)
    plain = make_pod("plain")

    async def look() -> None:
        looks.append("node")

    async with trio.open_nursery() as nursery:
        await nursery.start(allocating.run, told.append)
        assert allocating.look_first(plain.metadata.uid, look)
        allocating.begin(plain)
        await trio.testing.wait_all_tasks_blocked()
        assert (told, looks, giver.asked) == ([plain.metadata.uid], ["node"], [])
        assert not allocating.look_first(plain.metadata.uid, look)
        allocating.forget(plain.metadata.uid)
        assert allocating.look_first(plain.metadata.uid, look)
        nursery.cancel_scope.cancel()


async def test_a_pod_that_goes_meanwhile_is_not_waited_for_and_not_told() -> None:
    giver, told = Giver(), list[str]()
    allocating = Allocating(giver)
    pod = make_pod("gone")
    async with trio.open_nursery() as nursery:
        await nursery.start(allocating.run, told.append)
        allocating.begin(pod)
        await trio.testing.wait_all_tasks_blocked()
        allocating.forget(pod.metadata.uid)
        await trio.testing.wait_all_tasks_blocked()
        assert told == []
        giver.may.set()
        allocating.begin(pod)
        await trio.testing.wait_all_tasks_blocked()
        assert told == [pod.metadata.uid]
        assert giver.asked == ["gone", "gone"]  # once for each of its lives
        nursery.cancel_scope.cancel()


async def test_a_defect_met_at_one_pod_refuses_that_pod() -> None:
    class Chokes(Giver):
        async def allocate(self, pod: Pod) -> tuple[str, str] | None:
            raise OverflowError("too many")

    allocating, told = Allocating(Chokes()), list[str]()
    pod = make_pod("greedy")
    async with trio.open_nursery() as nursery:
        await nursery.start(allocating.run, told.append)
        allocating.begin(pod)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert told == [pod.metadata.uid]
    refusal = allocating.refusal(pod.metadata.uid)
    assert refusal is not None
    assert refusal.reason == "UnexpectedAdmissionError"
