"""The status cache: what is newer than what, and who has to wait."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from trio_kubelet.observed.types import PodStatus
from trio_kubelet.pleg.cache import InspectionFailed, StatusCache

A = PodStatus(uid="a", name="a", namespace="n")
NEWER_A = PodStatus(uid="a", name="a", namespace="n", ips=("10.0.0.1",))


async def waits(cache: StatusCache, uid: str, moment: float) -> bool:
    """Whether nothing newer than `moment` is known now."""
    with trio.move_on_after(1) as scope:
        await cache.get_newer_than(uid, moment)
    return scope.cancelled_caught


async def test_a_newer_look_is_enough(autojump_clock: trio.testing.MockClock) -> None:
    cache = StatusCache()
    cache.set("a", A, 10)
    assert await cache.get_newer_than("a", 9) is A
    assert await waits(cache, "a", 10)


async def test_a_relist_speaks_for_all_pods_that_are_not_dirty(
    autojump_clock: trio.testing.MockClock,
) -> None:
    cache = StatusCache()
    cache.set("a", A, 10)
    cache.mark_dirty("b")
    cache.update_time(20)
    assert await cache.get_newer_than("a", 19) is A
    assert await cache.get_newer_than("nothing", 19) == PodStatus(uid="nothing", name="", namespace="")
    assert await waits(cache, "b", 19)
    cache.mark_clean("b")
    assert not await waits(cache, "b", 19)


async def test_an_older_look_never_replaces_a_newer_one() -> None:
    cache = StatusCache()
    cache.set("a", NEWER_A, 10)
    cache.set("a", A, 9)
    assert cache.get("a") is NEWER_A


async def test_who_waits_is_told_of_a_failed_look(autojump_clock: trio.testing.MockClock) -> None:
    cache = StatusCache()
    cache.set("a", A, 10)
    cache.set_error("a", OSError("no"), 11)
    with pytest.raises(InspectionFailed, match="no"):
        await cache.get_newer_than("a", 10)
    assert cache.get("a") is A
    cache.touch("a", 12)  # a list alone does not undo a failed look
    with pytest.raises(InspectionFailed):
        await cache.get_newer_than("a", 10)
    cache.set("a", NEWER_A, 12)
    assert await cache.get_newer_than("a", 11) is NEWER_A


async def test_a_deleted_pod_is_known_to_be_gone(autojump_clock: trio.testing.MockClock) -> None:
    cache = StatusCache()
    cache.set("a", A, 10)
    cache.delete("a", 11)
    assert cache.get("a") is None
    assert cache.uids() == ()
    assert (await cache.get_newer_than("a", 10)).containers == ()
    assert await waits(cache, "a", 11)
    cache.update_time(12)
    assert not await waits(cache, "a", 11)


async def test_a_waiter_is_woken(autojump_clock: trio.testing.MockClock) -> None:
    cache = StatusCache()
    got: list[PodStatus] = []

    async def wait() -> None:
        got.append(await cache.get_newer_than("a", 10))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        cache.set("a", A, 10)  # not newer
        await trio.testing.wait_all_tasks_blocked()
        assert got == []
        cache.set("a", NEWER_A, 11)
    assert got == [NEWER_A]
