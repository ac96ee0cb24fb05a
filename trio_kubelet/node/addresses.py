"""The node's name and its addresses.

Without `--node-ip` the kubelet takes the address its name resolves to if that is one of its own, else the
one of the interface with the default route.
"""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct

_SIOCGIFADDR = 0x8915


def default_node_name(hostname_override: str = "") -> str:
    """The name the node has: `--hostname-override` or the host name, in lower case. Raises ValueError."""
    name = (hostname_override or socket.gethostname()).strip().lower()
    if not name:
        raise ValueError("the host name is empty")
    return name


def parse_node_ips(text: str) -> tuple[str, ...]:
    """The addresses of `--node-ip`; an unspecified one (`0.0.0.0`, `::`) only names the family and is
    left out. Raises ValueError.
    """
    addresses = [ipaddress.ip_address(part.strip()) for part in text.split(",") if part.strip()]
    return tuple(str(address) for address in addresses if not address.is_unspecified)


def find_host_ips(node_name: str, node_ips: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The node's addresses, the primary one first; empty if it has none but loopback.

    Blocking: may ask a name server.
    """
    if node_ips:
        return node_ips
    found = _resolve(node_name) or _default_route_address()
    return (found,) if found else ()


def _resolve(name: str) -> str:
    """An address the name has that is this machine's, IPv4 first."""
    try:
        entries = socket.getaddrinfo(name, None, type=socket.SOCK_DGRAM)
    except OSError:
        return ""
    addresses = [str(entry[4][0]) for entry in sorted(entries, key=lambda entry: entry[0] != socket.AF_INET)]
    return next((address for address in addresses if _is_own(address)), "")


def _is_own(text: str) -> bool:
    address = ipaddress.ip_address(text.partition("%")[0])
    if address.is_loopback or address.is_multicast or address.is_link_local or address.is_unspecified:
        return False
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((text, 0))
        except OSError:
            return False
    return True


def _default_route_address() -> str:
    """The IPv4 address of the interface that the default route leaves by."""
    try:
        with open("/proc/net/route", encoding="ascii") as file:
            routes = [line.split() for line in file][1:]
    except OSError:
        return ""
    for interface, destination, *_ in routes:
        if destination != "00000000":
            continue
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            request = struct.pack("256s", interface.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue
        return socket.inet_ntoa(answer[20:24])
    return ""
