"""A bus that says what is no D-Bus message: the connection ends, and the next call makes another."""

from __future__ import annotations

import random
import struct
from functools import partial
from pathlib import Path

import pytest
import trio
from jeepney import DBusAddress, HeaderFields, Message, new_signal

from tests.dbus.test_bus import INTERFACE, PATH, TICK, method, world
from trio_kubelet.dbus import connection
from trio_kubelet.dbus.bus import MessageBus
from trio_kubelet.dbus.values import BusError, BusUnavailable


def signal(signature: str = "isas", body: tuple[object, ...] = (7, "noon", ["a", "b"])) -> Message:
    message = new_signal(DBusAddress(PATH, interface=INTERFACE), "Tick", signature, body)
    message.header.fields[HeaderFields.sender] = ":1.7"
    return message


def owner_changed() -> Message:
    """Without what it should say."""
    bus = DBusAddress("/org/freedesktop/DBus", interface="org.freedesktop.DBus")
    message = new_signal(bus, "NameOwnerChanged", "s", ("org.example.Clock",))
    message.header.fields[HeaderFields.sender] = "org.freedesktop.DBus"
    return message


GOOD = signal().serialise(serial=1)
GARBAGE = {
    "no byte order": b"?" * 64,
    "no such type of message": GOOD[:1] + b"\x63" + GOOD[2:],
    "four gigabytes to come": GOOD[:4] + struct.pack("<I", 2**32 - 1) + GOOD[8:],
    "a rest that never comes": GOOD[:-4],
    "a text without its end": GOOD.replace(b"noon\0", b"noonx"),
    "a text that is none": GOOD.replace(b"noon", b"no\xff\xfe"),
    "a signature that is none": GOOD.replace(b"isas\0", b"zzzz\0"),
    "a signature that breaks off": GOOD.replace(b"isas\0", b"i(aa\0"),
    "a descriptor that was not sent": signal("u", (3,)).serialise(serial=1).replace(b"\x01u\0", b"\x01h\0"),
    "an owner that is none": owner_changed().serialise(serial=1),
}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MESSAGE_SECONDS", 0.1)


async def adds(bus: MessageBus) -> bool:
    """Whether a call comes to its answer, at the third try at most: the first may be made on a connection
    that only waits for the rest of a message.
    """
    for _ in range(3):
        try:
            if await bus.call(method("Add", "ii"), 40, 2, seconds=2) == (42,):
                return True
        except BusError:
            await trio.sleep(0.01)
    return False


@pytest.mark.parametrize("what", GARBAGE)
async def test_what_is_no_message_ends_its_connection_and_nothing_else(what: str, tmp_path: Path) -> None:
    async with world(tmp_path) as (fake, bus, _), bus.subscribe(TICK) as ticks:
        assert await adds(bus)
        await fake.say(GARBAGE[what])
        assert await ticks.next() is None, "something may have been missed"
        assert await adds(bus)
        await fake.signal(PATH, INTERFACE, "Tick", "i", (1,))
        while (body := await ticks.next()) is None:
            pass
        assert body == (1,)


@pytest.mark.parametrize("seed", range(2))
async def test_messages_with_wrong_bytes_in_them(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    async with world(tmp_path) as (fake, bus, _), bus.subscribe(TICK):
        for _ in range(60):
            assert await adds(bus)
            data = bytearray(GOOD)
            for _ in range(rng.randrange(1, 5)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            await fake.say(bytes(data[: rng.choice((len(data), rng.randrange(len(data))))]))
        assert await adds(bus)


LOGINS = (
    b"",
    b"\r\n",
    b"\xff" * 20_000,
    b"REJECTED EXTERNAL\r\n",
    b"OK 01\r\nOK 01\r\n",
    b"OK 01\r\nERROR\r\n",
)


async def say_once(data: bytes, stream: trio.SocketStream) -> None:
    async with stream:
        await stream.receive_some()
        await stream.send_all(data)
        await stream.send_eof()


@pytest.mark.parametrize("said", LOGINS)
async def test_a_log_in_that_is_none(said: bytes, tmp_path: Path) -> None:
    socket = trio.socket.socket(trio.socket.AF_UNIX)
    await socket.bind(str(tmp_path / "bus"))
    socket.listen()
    bus = MessageBus(str(tmp_path / "bus"))
    async with trio.open_nursery() as nursery:
        serve = partial(trio.serve_listeners, partial(say_once, said), [trio.SocketListener(socket)])
        await nursery.start(serve)
        await nursery.start(bus.run)
        with pytest.raises(BusUnavailable):
            await bus.call(method("Add", "ii"), 1, 2, seconds=5)
        nursery.cancel_scope.cancel()
