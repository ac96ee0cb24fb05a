"""A message bus that stays usable: connected when needed, again after it was away."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import trio

from trio_kubelet.common.backoff import Pauses
from trio_kubelet.common.log import get_logger
from trio_kubelet.dbus.connection import Arrived, Connection, connect
from trio_kubelet.dbus.values import BusError, BusUnavailable, CallTimeout, ErrorReply, Method, Signals

log = get_logger(__name__)

SYSTEM_BUS: Final = "/run/dbus/system_bus_socket"
SYSTEMD: Final = "/run/systemd/private"
"""systemd's own socket: only for root, no bus in between, and there when the bus is not."""

_CONNECT_SECONDS = 5.0
_PAUSES = Pauses(0.1, 2.5, jitter=1.0)  # before connecting again
_CAPACITY = 256

_DRIVER = "org.freedesktop.DBus"
_DRIVER_PATH = "/org/freedesktop/DBus"


def _driver(name: str, signature: str) -> Method:
    return Method(_DRIVER, _DRIVER_PATH, _DRIVER, name, signature)


_HELLO = _driver("Hello", "")
_ADD_MATCH = _driver("AddMatch", "s")
_NAME_OWNER = _driver("GetNameOwner", "s")
_NO_OWNER = f"{_DRIVER}.Error.NameHasNoOwner"


def match_rule(signals: Signals) -> str:
    """What the bus is told to send (D-Bus specification, match rules)."""
    sender = "" if signals.by_anyone else f"sender='{signals.service}',"
    return (
        f"type='signal',{sender}path='{signals.path}',interface='{signals.interface}',member='{signals.name}'"
    )


def _owner_rule(service: str) -> str:
    return (
        f"type='signal',sender='{_DRIVER}',interface='{_DRIVER}',member='NameOwnerChanged',arg0='{service}'"
    )


class Mailbox:
    """Signals one subscriber has not taken yet, at most `_CAPACITY` (see `doors.Subscription`)."""

    def __init__(self, wanted: Signals) -> None:
        self.wanted = wanted
        self._waiting: deque[tuple[Any, ...]] = deque()
        self._missed = False
        self._news = trio.Event()

    def put(self, body: tuple[Any, ...]) -> None:
        if len(self._waiting) == _CAPACITY:
            self.miss()
            return
        self._waiting.append(body)
        self._news.set()

    def miss(self) -> None:
        """Something may not have arrived; what waits is no news beside that."""
        self._waiting.clear()
        self._missed = True
        self._news.set()

    async def next(self) -> tuple[Any, ...] | None:
        """See `doors.Subscription.next`."""
        while True:
            await self._news.wait()
            if self._missed:
                self._missed = False
                return None
            if self._waiting:
                return self._waiting.popleft()
            self._news = trio.Event()


class MessageBus:
    """See `doors.Bus`. `direct`: the socket is a service's own, there is no bus behind it.

    Signals count only when the service they are asked from sent them: a bus lets everybody send anything.
    """

    def __init__(self, path: str = SYSTEM_BUS, *, direct: bool = False) -> None:
        self._path = path
        self._direct = direct
        self._nursery: trio.Nursery | None = None
        self._connecting = trio.Lock()
        self._connection: Connection | None = None
        self._trying = False
        self._mailboxes: list[Mailbox] = []
        self._owners: dict[str, str] = {}  # unique names of services signals are wanted from

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Holds the connection. A bus that is away costs calls their answer, and nothing else."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            await trio.sleep_forever()

    async def call(self, method: Method, *arguments: Any, seconds: float) -> tuple[Any, ...]:
        """See `doors.Bus.call`."""
        with trio.move_on_after(seconds):
            connection = await self._connected()
            return await connection.call(method, *arguments)
        raise CallTimeout(f"{method.interface}.{method.name}: no answer within {seconds:g} s")

    @asynccontextmanager
    async def subscribe(self, signals: Signals) -> AsyncIterator[Mailbox]:
        """See `doors.Bus.subscribe`."""
        mailbox = Mailbox(signals)
        self._mailboxes.append(mailbox)
        try:
            try:
                with trio.fail_after(_CONNECT_SECONDS):
                    await self._match(await self._connected(), signals)
            except (BusError, trio.TooSlowError) as error:
                log.v(2).info("D-Bus is away, signals will come later", err=error, name=signals.name)
                mailbox.miss()
                self._keep_trying()
            yield mailbox
        finally:
            self._mailboxes.remove(mailbox)

    async def _connected(self) -> Connection:
        if self._nursery is None:
            raise BusUnavailable("D-Bus is not in use yet")
        async with self._connecting:
            if self._connection is None or not self._connection.is_open:
                self._connection = await self._open(self._nursery)
            return self._connection

    async def _open(self, nursery: trio.Nursery) -> Connection:
        with trio.move_on_after(_CONNECT_SECONDS):
            connection = await connect(self._path, self._on_signal)
            nursery.start_soon(self._hold, connection)
            try:
                if not self._direct:
                    await connection.call(_HELLO)
                for mailbox in self._mailboxes:
                    await self._match(connection, mailbox.wanted)
            except BaseException:
                connection.close()
                raise
            return connection
        raise BusUnavailable(f"{self._path}: nobody answers")

    async def _hold(self, connection: Connection) -> None:
        """Receives until the connection ends."""
        await connection.run()
        self._miss()
        if self._mailboxes:
            self._keep_trying()

    def _miss(self) -> None:
        for mailbox in self._mailboxes:
            mailbox.miss()

    def _keep_trying(self) -> None:
        if self._nursery is not None and not self._trying:
            self._trying = True
            self._nursery.start_soon(self._reconnect)

    async def _reconnect(self) -> None:
        """Connects again as long as somebody waits for signals."""
        failures = 1
        while self._mailboxes:
            await trio.sleep(_PAUSES.after(failures, random.random()))
            try:
                await self._connected()
            except BusError as error:
                log.v(4).info("D-Bus is away", err=error)
                failures += 1
            else:
                break
        self._trying = False
        self._miss()

    async def _match(self, connection: Connection, signals: Signals) -> None:
        if self._direct:
            return
        await connection.call(_ADD_MATCH, match_rule(signals))
        await connection.call(_ADD_MATCH, _owner_rule(signals.service))
        try:
            (owner,) = await connection.call(_NAME_OWNER, signals.service)
        except ErrorReply as error:
            if error.name != _NO_OWNER:
                raise
            owner = ""
        self._owners[signals.service] = owner

    def _on_signal(self, signal: Arrived) -> None:
        if signal.sender == _DRIVER:
            if signal.name == "NameOwnerChanged":
                self._note_owner(*signal.body)
            return
        for mailbox in self._mailboxes:
            wanted = mailbox.wanted
            if (signal.path, signal.interface, signal.name) != (wanted.path, wanted.interface, wanted.name):
                continue
            if self._direct or wanted.by_anyone or signal.sender == self._owners.get(wanted.service):
                mailbox.put(signal.body)

    def _note_owner(self, service: str, _: str, owner: str) -> None:
        """A service began or ended; what it told in between is not known."""
        self._owners[service] = owner
        for mailbox in self._mailboxes:
            if mailbox.wanted.service == service:
                mailbox.miss()
