"""A message bus on a socket, with services played by a test."""

from __future__ import annotations

import array
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import trio
from jeepney import DBusAddress, HeaderFields, Message, MessageType, new_error, new_method_return, new_signal
from jeepney.fds import fds_buf_size
from jeepney.low_level import Parser

Answer = Callable[[str, tuple[Any, ...]], Awaitable[tuple[str, tuple[Any, ...]] | None]]
"""Takes a method's name and arguments; signature and values of the answer, None for no answer at all."""


class Refused(Exception):
    """Makes an error reply."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name, self.text = name, text


class FakeBus:
    """Serves one socket. `owner` is the unique name of all services; `rules` are what clients want."""

    def __init__(self, path: Path, answer: Answer, owner: str = ":1.7") -> None:
        self.path = path
        self.owner = owner
        self.rules: list[str] = []
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self._answer = answer
        self._sending = trio.Lock()
        self._heard: dict[str, trio.Event] = {}
        self._clients: list[trio.SocketStream] = []
        self._listener: trio.SocketListener | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        socket = trio.socket.socket(trio.socket.AF_UNIX)
        self.path.unlink(missing_ok=True)
        await socket.bind(str(self.path))
        socket.listen()
        self._listener = trio.SocketListener(socket)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, self._serve, [self._listener])
            task_status.started()

    async def heard(self, name: str) -> None:
        """Waits until a method of this name was called since the start or the last `drop`."""
        await self._heard.setdefault(name, trio.Event()).wait()

    async def drop(self) -> None:
        """Ends all connections, as a bus that is restarted does."""
        for client in self._clients:
            client.socket.shutdown(trio.socket.SHUT_RDWR)
        self._clients.clear()
        self.rules.clear()
        self._heard.clear()

    async def signal(
        self, path: str, interface: str, name: str, signature: str, body: tuple[Any, ...], sender: str = ""
    ) -> None:
        message = new_signal(DBusAddress(path, interface=interface), name, signature, body)
        await self._send(message, sender or self.owner)

    async def say(self, data: bytes) -> None:
        """Anything at all, to whoever has connected last."""
        async with self._sending:
            with contextlib.suppress(trio.BrokenResourceError):
                await self._clients[-1].send_all(data)

    async def owner_changed(self, service: str, owner: str) -> None:
        target = DBusAddress("/org/freedesktop/DBus", interface="org.freedesktop.DBus")
        body = (service, self.owner, owner)
        self.owner = owner
        await self._send(new_signal(target, "NameOwnerChanged", "sss", body), "org.freedesktop.DBus")

    async def _send(self, message: Message, sender: str) -> None:
        message.header.fields[HeaderFields.sender] = sender
        async with self._sending:
            for client in [*self._clients]:
                await client.send_all(message.serialise(serial=1))

    async def _serve(self, stream: trio.SocketStream) -> None:
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            await self._talk(stream)
        if stream in self._clients:
            self._clients.remove(stream)

    async def _talk(self, stream: trio.SocketStream) -> None:
        for reply in (b"OK 0123\r\n", b"AGREE_UNIX_FD\r\n"):
            line = b""
            while not line.endswith(b"\r\n"):
                line += await stream.receive_some()
            await stream.send_all(reply)
        line = b""
        while not line.endswith(b"BEGIN\r\n"):
            line += await stream.receive_some(1)
        self._clients.append(stream)
        parser = Parser()
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    data, _, _, _ = await stream.socket.recvmsg(4096, fds_buf_size())
                except OSError:  # the client had not read everything when it went
                    break
                if not data:
                    break
                parser.add_data(data)
                while (message := parser.get_next_message()) is not None:
                    nursery.start_soon(self._reply, stream, message)
            nursery.cancel_scope.cancel()

    async def _reply(self, stream: trio.SocketStream, message: Message) -> None:
        assert message.header.message_type is MessageType.method_call
        name = message.header.fields[HeaderFields.member]
        try:
            answer = await self._driver(name, message.body)
            self._heard.setdefault(name, trio.Event()).set()
            if answer is None:
                self.calls.append((name, message.body))
                answer = await self._answer(name, message.body)
        except Refused as error:
            reply = new_error(message, error.name, "s", (error.text,))
        else:
            if answer is None:
                return
            reply = new_method_return(message, answer[0] or None, answer[1])
        fds = array.array("i")
        data = reply.serialise(serial=1, fds=fds)
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            async with self._sending:
                await self._send_reply(stream, data, fds)

    @staticmethod
    async def _send_reply(stream: trio.SocketStream, data: bytes, fds: array.array[int]) -> None:
        if fds:
            rights = [(trio.socket.SOL_SOCKET, trio.socket.SCM_RIGHTS, fds)]
            await stream.socket.sendmsg([data], rights)
        else:
            await stream.send_all(data)

    async def _driver(self, name: str, body: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]] | None:
        if name == "Hello":
            return "s", (":1.99",)
        if name == "AddMatch":
            self.rules.append(body[0])
            return "", ()
        if name == "GetNameOwner":
            if not self.owner:
                raise Refused("org.freedesktop.DBus.Error.NameHasNoOwner", "nobody")
            return "s", (self.owner,)
        return None
