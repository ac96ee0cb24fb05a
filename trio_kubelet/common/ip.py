"""IP addresses as Go's libraries read them. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from functools import lru_cache
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


def sort_ips(ips: Iterable[str], ipv6_first: bool) -> list[str]:
    """The first address of each family in its usual form, that of the node's own family first."""
    first: dict[int, str] = {}
    for text in ips:
        if (found := _usual_form(text)) is not None:
            first.setdefault(*found)
    return [first[version] for version in ((6, 4) if ipv6_first else (4, 6)) if version in first]


@lru_cache(maxsize=4096)
def _usual_form(text: str) -> tuple[int, str] | None:
    """Family and usual form of an address. Each status of a pod has the same."""
    address = parse_ip(text)
    return None if address is None else (address.version, str(address))
