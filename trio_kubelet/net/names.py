"""Names and their addresses: the agent's resolver, and who was asked when a name has none."""

from __future__ import annotations

import re
import socket
from time import monotonic
from typing import Any, Final

import trio

from trio_kubelet.common.go_words import LookupFailure
from trio_kubelet.common.lanes import NAMES
from trio_kubelet.net.dial import LOOPBACK, join_host_port

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
