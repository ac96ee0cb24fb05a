"""Who waits for a place gets one soon, whatever those who have one do."""

from __future__ import annotations

import trio
import trio.testing

from trio_kubelet.common.places import Places

LENT = 0.5


async def test_those_who_leave_soon_are_never_more_than_there_are_places(
    autojump_clock: trio.testing.MockClock,
) -> None:
    places, inside, most, order = Places(3, lent=LENT, aside=2), 0, 0, list[int]()

    async def visit(number: int) -> None:
        nonlocal inside, most
        await trio.sleep(number / 1000)
        async with places:
            order.append(number)
            inside += 1
            most = max(most, inside)
            await trio.sleep(LENT / 2)
            inside -= 1

    async with trio.open_nursery() as nursery:
        for number in range(12):
            nursery.start_soon(visit, number)
    assert most == 3
    assert order == list(range(12))


async def test_who_stays_long_steps_aside_up_to_so_many(autojump_clock: trio.testing.MockClock) -> None:
    places, entered = Places(2, lent=LENT, aside=3), list[float]()

    async def stay() -> None:
        async with places:
            entered.append(trio.current_time())
            await trio.sleep_forever()

    async def pass_by() -> None:
        async with places:
            entered.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        began = trio.current_time()
        for _ in range(8):
            nursery.start_soon(stay)
        await trio.sleep(60)
        assert [at - began for at in entered] == [0, 0, LENT, LENT, 2 * LENT]
        nursery.cancel_scope.cancel()
    # All have left, those who waited included: the places are free again.
    entered.clear()
    async with trio.open_nursery() as nursery:
        began = trio.current_time()
        for _ in range(9):
            nursery.start_soon(pass_by)
    assert [at - began for at in entered] == [0] * 9
