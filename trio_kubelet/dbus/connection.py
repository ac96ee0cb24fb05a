"""One connection to a message bus, or straight to a service: log-in, calls and their answers.

What arrives is not believed. Parsing what is no D-Bus message can raise nearly anything, may ask for memory
without end, or wait for the rest of a message that never comes; it ends the connection, and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import trio
from jeepney import DBusAddress, HeaderFields, Message, MessageType, new_method_call
from jeepney.auth import BEGIN, Authenticator
from jeepney.fds import FileDescriptor, fds_buf_size
from jeepney.io.trio import DBusConnection

from trio_kubelet.common.go_words import error_words
from trio_kubelet.dbus.values import BusUnavailable, Descriptor, Method, error_reply

_ENDED = (OSError, EOFError, trio.BrokenResourceError, trio.ClosedResourceError)

MOST_BYTES: Final = 16 << 20
"""Of a message; what is spoken here has some hundred."""
MESSAGE_SECONDS: Final = 5.0
"""For the rest of a message that has begun."""


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
                self._take(await self._receive())
        except _ENDED as error:
            self._end(f"the connection ended: {error}")
        except Exception as error:  # whatever parsing it raises
            self._end(f"the other side sent what is no D-Bus message: {error}")
        finally:
            self.close()

    async def _receive(self) -> Message:
        """The next message. Raises what a connection that ends raises, and anything where it is malformed."""
        parser = self._wire.parser
        with trio.CancelScope() as scope:
            while (message := parser.get_next_message()) is None:
                wanted = parser.bytes_desired()
                if wanted > MOST_BYTES:
                    raise ValueError(f"a message of {wanted} bytes")
                data, ancillary, flags, _ = await self._wire.socket.recvmsg(wanted, fds_buf_size())
                parser.add_data(data, FileDescriptor.from_ancdata(ancillary))
                if not data:
                    raise EOFError("closed by the other side")
                if flags & trio.socket.MSG_CTRUNC:
                    raise ValueError("more file descriptors than fit into a message")
                if scope.deadline == math.inf:
                    scope.deadline = trio.current_time() + MESSAGE_SECONDS
            return message
        raise ValueError(f"a message of which the rest did not come within {MESSAGE_SECONDS:g} s")

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
            Descriptor(value.to_raw_fd()) if isinstance(value, FileDescriptor) else value
            for value in answer.body
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
            for descriptor in self._wire.parser.fds:  # of a message whose rest did not come
                descriptor.close()
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
                raise EOFError("closed while logging in")
            login.feed(data)
        await socket.send_all(BEGIN)
    except BaseException as error:
        socket.socket.close()
        if isinstance(error, Exception):  # whatever reading what was said raises
            raise BusUnavailable(f"{path}: {error}") from error
        raise
    return Connection(socket, on_signal)
