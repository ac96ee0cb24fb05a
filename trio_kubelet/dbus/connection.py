"""One connection to a message bus, or straight to a service: log-in, calls and their answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio
from jeepney import DBusAddress, HeaderFields, Message, MessageType, new_method_call
from jeepney.auth import BEGIN, AuthenticationError, Authenticator, FDNegotiationError
from jeepney.fds import FileDescriptor
from jeepney.io.trio import DBusConnection
from jeepney.low_level import SizeLimitError

from trio_kubelet.common.go_words import error_words
from trio_kubelet.dbus.values import BusUnavailable, Method, error_reply

_ENDED = (OSError, EOFError, trio.BrokenResourceError, trio.ClosedResourceError, trio.EndOfChannel)
_MALFORMED = (ValueError, TypeError, SizeLimitError, AuthenticationError, FDNegotiationError, RuntimeError)


class Arrived:
    """A signal as it came: who sent it (a unique name, "" without a bus), what it is and its values."""

    __slots__ = ("body", "interface", "name", "path", "sender")

    def __init__(self, message: Message) -> None:
        fields = message.header.fields
        self.sender: str = fields.get(HeaderFields.sender, "")
        self.path: str = fields.get(HeaderFields.path, "")
        self.interface: str = fields.get(HeaderFields.interface, "")
        self.name: str = fields.get(HeaderFields.member, "")
        self.body: tuple[Any, ...] = message.body


class _Waiting:
    """A call that waits for its answer."""

    def __init__(self) -> None:
        self.answered = trio.Event()
        self.answer: Message | None = None  # None although answered: the connection ended


class Connection:
    """A logged-in connection. Nothing arrives unless `run` runs."""

    def __init__(self, socket: trio.SocketStream, on_signal: Callable[[Arrived], None]) -> None:
        self._wire = DBusConnection(socket.socket, enable_fds=True)
        self._on_signal = on_signal
        self._calls: dict[int, _Waiting] = {}
        self._ended = ""

    @property
    def is_open(self) -> bool:
        return not self._ended

    async def run(self) -> None:
        """Receives until the connection ends; calls that wait then fail."""
        try:
            while True:
                self._take(await self._wire.receive())
        except _ENDED as error:
            self._end(f"the connection ended: {error}")
        except _MALFORMED as error:
            self._end(f"the other side sent what is no D-Bus message: {error}")
        finally:
            self.close()

    async def call(self, method: Method, *arguments: Any) -> tuple[Any, ...]:
        """See `doors.Bus.call`; waits for ever. Raises BusUnavailable and ErrorReply."""
        if self._ended:
            raise BusUnavailable(self._ended)
        target = DBusAddress(method.path, method.service or None, method.interface)
        message = new_method_call(target, method.name, method.signature or None, arguments)
        serial = next(self._wire.outgoing_serial)
        waiting = self._calls[serial] = _Waiting()
        try:
            await self._wire.send(message, serial=serial)
            await waiting.answered.wait()
        except _ENDED as error:
            self._end(f"the connection ended: {error}")
            raise BusUnavailable(self._ended) from error
        finally:
            self._calls.pop(serial, None)
        answer = waiting.answer
        if answer is None:
            raise BusUnavailable(self._ended)
        if answer.header.message_type is MessageType.error:
            raise error_reply(answer.header.fields.get(HeaderFields.error_name), answer.body)
        return tuple(
            value.to_raw_fd() if isinstance(value, FileDescriptor) else value for value in answer.body
        )

    def _take(self, message: Message) -> None:
        header = message.header
        if header.message_type is MessageType.signal:
            self._on_signal(Arrived(message))
            return
        waiting = self._calls.get(header.fields.get(HeaderFields.reply_serial, 0))
        if waiting is not None:
            waiting.answer = message
            waiting.answered.set()
            return
        for value in message.body:  # nobody waits any more, so nobody else closes it
            if isinstance(value, FileDescriptor):
                value.close()

    def close(self) -> None:
        self._end("the connection was closed")

    def _end(self, why: str) -> None:
        if not self._ended:
            self._ended = why
            self._wire.socket.close()
            for waiting in self._calls.values():
                waiting.answered.set()


async def connect(path: str, on_signal: Callable[[Arrived], None]) -> Connection:
    """Connects to a socket and logs in as the user of this process. Raises BusUnavailable; waits for ever."""
    try:
        socket = await trio.open_unix_socket(path)
    except OSError as error:
        raise BusUnavailable(f"{path}: {error_words(error)}") from error
    try:
        login = Authenticator(enable_fds=True)
        for line in login:
            if line:
                await socket.send_all(line)
            data = await socket.receive_some()
            if not data:
                raise BusUnavailable(f"{path}: closed while logging in")
            login.feed(data)
        await socket.send_all(BEGIN)
    except BaseException as error:
        socket.socket.close()
        if isinstance(error, (*_ENDED, *_MALFORMED)):
            raise BusUnavailable(f"{path}: {error}") from error
        raise
    return Connection(socket, on_signal)
