"""Connecting to what a probe is about: ports by name, addresses, Go's words for what went wrong."""

from __future__ import annotations

import re
import socket
from time import monotonic
from typing import Any, Final

import trio

from trio_kubelet.api import v1
from trio_kubelet.common.go_words import LookupFailure, dial_words
from trio_kubelet.common.lanes import NAMES

LOOPBACK = "127.0.0.1"
_RESOLVER: Final = "/etc/resolv.conf"
_RESOLVER_BYTES: Final = 65536
_PATIENCE: Final = 5  # seconds, see resolv.conf(5)
# What Go asks name servers about: labels of letters, digits, `-` and `_`, not all of them digits.
_DOMAIN_NAME: Final = re.compile(r"(?=.*[A-Za-z_-])(?:[A-Za-z0-9_](?:[\w-]{0,61}\w)?(?:\.|$))+", re.ASCII)


class Names(trio.abc.HostnameResolver):
    """Looks up names in a lane: a name that takes long holds up those who ask for it, by name."""

    async def getaddrinfo(  # type: ignore[override]
        self, host: bytes | str | None, port: str | int | None, *more: int
    ) -> list[Any]:
        """See `socket.getaddrinfo`. Raises gaierror, OSError."""
        return await NAMES.run(_addresses, host, port, *more, owner=repr(host))

    async def getnameinfo(self, sockaddr: tuple[str, int], flags: int) -> tuple[str, str]:  # type: ignore[override]
        """See `socket.getnameinfo`. Raises gaierror, OSError."""
        return await NAMES.run(socket.getnameinfo, sockaddr, flags, owner=sockaddr[0])


def _addresses(host: bytes | str | None, port: str | int | None, *more: int) -> list[Any]:
    began = monotonic()
    try:
        return socket.getaddrinfo(host, port, *more)
    except socket.gaierror as error:
        name = host.decode("ascii", "replace") if isinstance(host, bytes) else host or ""
        if _DOMAIN_NAME.fullmatch(name) is None:
            raise
        server, patience = _resolver()
        # The C library has one number for a server that says it failed and one that says nothing.
        silent = error.errno == socket.EAI_AGAIN and monotonic() - began >= patience
        raise LookupFailure(error, join_host_port(server, 53), silent=silent) from error


def _resolver() -> tuple[str, int]:
    """The first server of this host's resolver (without one, where Go looks for it), and for how many seconds
    it is waited for.
    """
    server, patience = LOOPBACK, _PATIENCE
    try:
        with open(_RESOLVER, "rb") as file:
            lines = file.read(_RESOLVER_BYTES).decode(errors="replace").splitlines()
    except OSError:
        lines = []
    for word, *values in filter(None, map(str.split, reversed(lines))):
        if word == "nameserver" and values:
            server = values[0]
        for option in values if word == "options" else ():
            if option.startswith("timeout:") and option[8:].isdecimal():
                patience = int(option[8:])
    return server, patience


class DialError(Exception):
    """No connection; the text reads like Go's."""


def resolve_port(port: int | str, container: v1.Container) -> int:
    """A port number from a number, the name of a container port, or a number as text. Raises ValueError."""
    number: int
    if isinstance(port, int):
        number = port
    else:
        named = next((p.container_port for p in container.ports or () if p.name == port), None)
        if named is None and not port.isdecimal():
            raise ValueError(f'strconv.Atoi: parsing "{port}": invalid syntax')
        number = int(port) if named is None else named
    if not 0 < number < 65536:
        raise ValueError(f"invalid port number: {number}")
    return number


def join_host_port(host: str, port: int) -> str:
    """`host:port`, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def dial(host: str, port: int) -> trio.SocketStream:
    """Opens a TCP connection; without a host, to the node itself, as pods on its network may have no address.

    Raises DialError; the caller sets the deadline.
    """
    try:
        return await trio.open_tcp_stream(host or LOOPBACK, port)
    except (OSError, UnicodeError) as exc:
        raise DialError(dial_words(exc, host, join_host_port(host, port))) from exc
