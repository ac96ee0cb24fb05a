"""Connecting to what a probe is about: ports by name, addresses, Go's words for what went wrong."""

from __future__ import annotations

import socket

import trio

from trio_kubelet.api import v1
from trio_kubelet.common.go_words import dial_words, parse_integer

LOOPBACK = "127.0.0.1"


class DialError(Exception):
    """No connection; the text reads like Go's."""


def resolve_port(port: int | str, container: v1.Container) -> int:
    """A port number from a number, the name of a container port, or a number as text. Raises ValueError."""
    number: int
    if isinstance(port, int):
        number = port
    else:
        named = next((p.container_port for p in container.ports or () if p.name == port), None)
        number = parse_integer(port) if named is None else named
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
    where = host or LOOPBACK
    try:
        if (family := _family(where)) is not None:
            return await _connect(family, where, port)
        return await trio.open_tcp_stream(where, port)
    except (OSError, UnicodeError) as exc:
        raise DialError(dial_words(exc, host, join_host_port(host, port))) from exc


def _family(host: str) -> socket.AddressFamily | None:
    """Of an address; None for what has to be looked up. (An address with a zone has to be, too.)"""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.inet_pton(family, host)
    except (OSError, ValueError):
        return None
    return family


async def _connect(family: socket.AddressFamily, host: str, port: int) -> trio.SocketStream:
    """An address needs neither a look-up nor several attempts at once, which are most of the work."""
    connection = trio.socket.socket(family, socket.SOCK_STREAM)
    try:
        await connection.connect((host, port))
    except BaseException:
        connection.close()
        raise
    return trio.SocketStream(connection)
