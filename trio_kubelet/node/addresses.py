"""The node's name and its addresses.

Without `--node-ip` the kubelet takes the address its name resolves to if that is one of its own, else the
one of the interface with the default route; `--node-ip=::` asks for IPv6 first.
"""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Iterator
from typing import Final

import msgspec

from trio_kubelet.common.ip import parse_ip

_SIOCGIFADDR: Final = 0x8915
_IPV4_ROUTES: Final = "/proc/net/route"
_IPV6_ROUTES: Final = "/proc/net/ipv6_route"
_IPV6_ADDRESSES: Final = "/proc/net/if_inet6"
_GLOBAL_SCOPE: Final = "00"


class AddressError(Exception):
    """The node's address cannot be found out, or is none it may have."""


class NodeIPs(msgspec.Struct, frozen=True):
    """What `--node-ip` says: addresses (two of them are of different families), or one of the unspecified
    ones, which names but a family. `ignored`: parts that are no addresses.
    """

    addresses: tuple[str, ...] = ()
    unspecified: str = ""
    ignored: tuple[str, ...] = ()

    @property
    def given(self) -> bool:
        """Whether the flag was set."""
        return bool(self.all)

    @property
    def all(self) -> tuple[str, ...]:
        """The addresses, or the unspecified one."""
        return (self.unspecified,) if self.unspecified else self.addresses

    @property
    def ipv6_first(self) -> bool:
        """Whether IPv6 is this node's primary family."""
        return self.given and ":" in self.all[0]


def default_node_name(hostname_override: str = "") -> str:
    """The name the node has: `--hostname-override` or the host name, in lower case. Raises ValueError."""
    name = (hostname_override or socket.gethostname()).strip().lower()
    if not name:
        raise ValueError("the host name is empty")
    return name


def parse_node_ip_flag(text: str) -> NodeIPs:
    """The value of `--node-ip`. What is no address is passed over, as if it were not there (kubelet:
    `ParseNodeIPArgument`). Raises ValueError for addresses that do not go together.
    """
    parts = [part.strip() for part in text.split(",")] if text else []
    parsed = [parse_ip(part) for part in parts]
    addresses = [address for address in parsed if address is not None]
    ignored = tuple(part for part, address in zip(parts, parsed, strict=True) if address is None)
    if len(addresses) > 2 or (len(addresses) == 2 and addresses[0].version == addresses[1].version):
        raise ValueError(f"--node-ip={text}: must contain either a single IP or a dual-stack pair of IPs")
    if len(addresses) == 2 and any(address.is_unspecified for address in addresses):
        raise ValueError(f"--node-ip={text}: dual-stack node IP cannot include '0.0.0.0' or '::'")
    if len(addresses) == 1 and addresses[0].is_unspecified:
        return NodeIPs(unspecified=str(addresses[0]), ignored=ignored)
    return NodeIPs(tuple(str(address) for address in addresses), ignored=ignored)


def find_host_ips(node_name: str, flag: NodeIPs) -> tuple[str, ...]:
    """The node's addresses, the primary one first; empty if it has none but loopback.

    Blocking: may ask a name server.
    """
    if flag.addresses:
        return flag.addresses
    found = _resolve(node_name, flag.ipv6_first) or _default_route_address(flag.ipv6_first)
    return (found,) if found else ()


def find_addresses(name: str, flag: NodeIPs) -> tuple[str, ...]:
    """The addresses a node of that name shows, by the kubelet's order of sources. Raises AddressError.

    Blocking: may ask a name server.
    """
    for address in flag.addresses:
        if problem := _problem(address):
            raise AddressError(f"failed to validate nodeIP: {problem}")
    if flag.addresses:
        return flag.addresses
    try:
        return (str(ipaddress.ip_address(name)),)
    except ValueError:
        pass
    found = _resolve(name, flag.ipv6_first) or _default_route_address(flag.ipv6_first)
    if not found:
        raise AddressError(f"can't get ip address of node {name}")
    return (found,)


def _problem(text: str) -> str:
    """Why the node may not have that address, "" if it may."""
    address = ipaddress.ip_address(text)
    if address.is_loopback:
        return "nodeIP can't be loopback address"
    if address.is_multicast:
        return "nodeIP can't be a multicast address"
    if address.is_link_local:
        return "nodeIP can't be a link-local unicast address"
    return "" if _is_own(text) else f'node IP: "{text}" not found in the host\'s network interfaces'


def _resolve(name: str, ipv6_first: bool) -> str:
    """An address the name has that is this machine's, of the preferred family if there is one."""
    try:
        entries = socket.getaddrinfo(name, None, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):  # a label may be too long for a name
        return ""
    preferred = socket.AF_INET6 if ipv6_first else socket.AF_INET
    addresses = [str(entry[4][0]) for entry in sorted(entries, key=lambda entry: entry[0] != preferred)]
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


def _default_route_address(ipv6_first: bool) -> str:
    """The address of an interface that a default route leaves by, "" if there is none."""
    finders = (_ipv6_addresses, _ipv4_addresses) if ipv6_first else (_ipv4_addresses, _ipv6_addresses)
    return next((address for find in finders for address in find()), "")


def _ipv4_addresses() -> Iterator[str]:
    for interface, destination, *_ in _table(_IPV4_ROUTES)[1:]:
        if destination != "00000000":
            continue
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            request = struct.pack("256s", interface.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue
        yield socket.inet_ntoa(answer[20:24])


def _ipv6_addresses() -> Iterator[str]:
    for destination, length, *_, interface in _table(_IPV6_ROUTES):
        if int(destination, 16) or int(length, 16) or interface == "lo":
            continue
        for address, _index, _prefix, scope, _flags, owner in _table(_IPV6_ADDRESSES):
            if owner == interface and scope == _GLOBAL_SCOPE:
                yield str(ipaddress.IPv6Address(bytes.fromhex(address)))


def _table(path: str) -> list[list[str]]:
    """A file of the kernel's as rows of words; empty if it is not there."""
    try:
        with open(path, encoding="ascii") as file:
            return [line.split() for line in file]
    except OSError:
        return []
