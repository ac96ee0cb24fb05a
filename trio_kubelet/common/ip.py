"""IP addresses as Go's libraries read them. Pure."""

from __future__ import annotations

import ipaddress
from typing import TypeAlias

IPAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address


def parse_ip(text: str) -> IPAddress | None:
    """The address; None for what is none. Zeros may lead in IPv4, an IPv4 address in IPv6's clothes is one,
    zones are none.
    """
    sloppy = text if ":" in text else ".".join(part.lstrip("0") or part[:1] for part in text.split("."))
    try:
        address = ipaddress.ip_address(sloppy)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        return None if address.scope_id else address.ipv4_mapped or address
    return address
