"""Calls, signals and a bus that goes away, with a bus played by the test."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.dbus.fake_bus import FakeBus, Refused
from trio_kubelet.dbus.bus import MessageBus, match_rule
from trio_kubelet.dbus.values import BusUnavailable, CallTimeout, ErrorReply, Method, Signals

SERVICE, PATH, INTERFACE = "org.example.Clock", "/org/example/clock", "org.example.Clock"
TICK = Signals(SERVICE, PATH, INTERFACE, "Tick")


def method(name: str, signature: str = "") -> Method:
    return Method(SERVICE, PATH, INTERFACE, name, signature)


async def answer(name: str, arguments: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]] | None:
    if name == "Add":
        return "i", (sum(arguments),)
    if name == "Refuse":
        raise Refused("org.example.No", "not today")
    if name == "Inhibit":
        reader, writer = os.pipe()
        os.write(writer, b"held")
        os.close(writer)
        return "h", (reader,)
    return None  # "Hang"


@asynccontextmanager
async def world(
    tmp_path: Path, *, running: bool = True
) -> AsyncIterator[tuple[FakeBus, MessageBus, trio.Nursery]]:
    async with trio.open_nursery() as nursery:
        fake = FakeBus(tmp_path / "bus", answer=answer)
        if running:
            await nursery.start(fake.run)
        bus = MessageBus(str(fake.path))
        await nursery.start(bus.run)
        with trio.fail_after(20):
            yield fake, bus, nursery
        nursery.cancel_scope.cancel()


async def test_calls_return_values_and_errors_have_names(tmp_path: Path) -> None:
    async with world(tmp_path) as (_, bus, _):
        assert await bus.call(method("Add", "ii"), 40, 2, seconds=5) == (42,)
        with pytest.raises(ErrorReply, match=r"org\.example\.No: not today") as caught:
            await bus.call(method("Refuse"), seconds=5)
        assert caught.value.name == "org.example.No"


async def test_a_call_that_nobody_answers_ends_and_others_go_on(tmp_path: Path) -> None:
    async with world(tmp_path) as (fake, bus, nursery):

        async def hang() -> None:
            with pytest.raises(CallTimeout, match=r"Hang: no answer within 1 s"):
                await bus.call(method("Hang"), seconds=1)
            ended.set()

        ended = trio.Event()
        nursery.start_soon(hang)
        await fake.heard("Hang")
        assert await bus.call(method("Add", "ii"), 1, 1, seconds=5) == (2,)
        await ended.wait()
        assert await bus.call(method("Add", "ii"), 1, 2, seconds=5) == (3,)


async def test_a_file_descriptor_of_an_answer_is_the_callers(tmp_path: Path) -> None:
    async with world(tmp_path) as (_, bus, _):
        (number,) = await bus.call(method("Inhibit"), seconds=5)
        with os.fdopen(number, "rb") as file:
            assert file.read() == b"held"


async def test_without_a_bus_calls_fail_at_once_and_later_calls_connect(tmp_path: Path) -> None:
    async with world(tmp_path, running=False) as (fake, bus, nursery):
        with pytest.raises(BusUnavailable, match="no such file"):
            await bus.call(method("Add", "ii"), 1, 2, seconds=5)
        await nursery.start(fake.run)
        assert await bus.call(method("Add", "ii"), 1, 2, seconds=5) == (3,)


async def test_a_bus_that_ends_fails_the_calls_that_wait(tmp_path: Path) -> None:
    async with world(tmp_path) as (fake, bus, nursery):

        async def hang() -> None:
            with pytest.raises(BusUnavailable):
                await bus.call(method("Hang"), seconds=60)
            ended.set()

        ended = trio.Event()
        nursery.start_soon(hang)
        await fake.heard("Hang")
        await fake.drop()
        await ended.wait()
        assert await bus.call(method("Add", "ii"), 1, 2, seconds=5) == (3,)


async def test_signals_arrive_in_order_from_their_service_only(tmp_path: Path) -> None:
    async with world(tmp_path) as (fake, bus, _), bus.subscribe(TICK) as ticks:
        assert match_rule(TICK) in fake.rules
        await fake.signal(PATH, INTERFACE, "Tick", "i", (666,), sender=":1.666")
        await fake.signal("/elsewhere", INTERFACE, "Tick", "i", (5,))
        await fake.signal(PATH, INTERFACE, "Tock", "i", (6,))
        for number in (1, 2):
            await fake.signal(PATH, INTERFACE, "Tick", "i", (number,))
        assert [await ticks.next(), await ticks.next()] == [(1,), (2,)]


async def test_signals_that_anyone_may_send_arrive_whoever_does(tmp_path: Path) -> None:
    tick = Signals(SERVICE, PATH, INTERFACE, "Tick", by_anyone=True)
    async with world(tmp_path) as (fake, bus, _), bus.subscribe(tick) as ticks:
        assert match_rule(tick) in fake.rules
        assert "sender=" not in match_rule(tick)
        await fake.signal(PATH, INTERFACE, "Tick", "i", (1,), sender=":1.666")
        await fake.signal(PATH, INTERFACE, "Tick", "i", (2,))
        assert [await ticks.next(), await ticks.next()] == [(1,), (2,)]


async def test_a_subscriber_hears_when_it_may_have_missed_something(tmp_path: Path) -> None:
    async with world(tmp_path) as (fake, bus, _), bus.subscribe(TICK) as ticks:
        for number in range(300):  # more than a box holds
            await fake.signal(PATH, INTERFACE, "Tick", "i", (number,))
        await bus.call(method("Add", "ii"), 1, 1, seconds=5)
        assert await ticks.next() is None
        await fake.owner_changed(SERVICE, ":1.8")
        while await ticks.next() is not None:
            pass
        await fake.signal(PATH, INTERFACE, "Tick", "i", (7,))
        assert await ticks.next() == (7,)


async def test_a_subscription_outlives_the_connection(tmp_path: Path) -> None:
    async with world(tmp_path) as (fake, bus, _), bus.subscribe(TICK) as ticks:
        await fake.drop()
        assert await ticks.next() is None
        await fake.heard("AddMatch")
        assert match_rule(TICK) in fake.rules
        await fake.signal(PATH, INTERFACE, "Tick", "i", (9,))
        while (body := await ticks.next()) is None:
            pass
        assert body == (9,)


async def test_a_subscription_may_begin_before_the_bus(tmp_path: Path) -> None:
    async with world(tmp_path, running=False) as (fake, bus, nursery), bus.subscribe(TICK) as ticks:
        assert await ticks.next() is None
        await nursery.start(fake.run)
        assert await ticks.next() is None
        await fake.signal(PATH, INTERFACE, "Tick", "i", (1,))
        assert await ticks.next() == (1,)
