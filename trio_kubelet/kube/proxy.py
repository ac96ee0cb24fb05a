"""Which proxy a request goes through, by the environment variables every Go program follows.

Own rules instead of an HTTP library's, because the cluster's machines are configured for Go's: `NO_PROXY`
with networks in CIDR notation and leading dots, and never a proxy for this machine itself.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit


def proxy_for(url: str, environment: Mapping[str, str]) -> str | None:
    """The proxy's URL, or None for a direct connection."""
    parts = urlsplit(url)
    host, port = (parts.hostname or "").lower(), parts.port or {"https": 443}.get(parts.scheme, 80)
    name = f"{parts.scheme}_proxy"
    proxy = environment.get(name.upper()) or environment.get(name) or ""
    exceptions = environment.get("NO_PROXY") or environment.get("no_proxy") or ""
    if not proxy or _is_local(host) or any(_matches(e.strip(), host, port) for e in exceptions.split(",")):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _is_local(host: str) -> bool:
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def _matches(exception: str, host: str, port: int) -> bool:
    """Whether an entry of NO_PROXY (`*`, name, .suffix, address, network, maybe a port) covers a host."""
    exception = exception.lower()
    if exception in ("", "*"):
        return exception == "*"
    address = _address(host)
    if "/" in exception:
        try:
            return address is not None and address in ipaddress.ip_network(exception, strict=False)
        except ValueError:
            return False
    name, colon, wanted_port = exception.rpartition(":")
    if colon and wanted_port.isdecimal() and (name.endswith("]") or ":" not in name):
        if int(wanted_port) != port:
            return False
        exception = name
    if address is not None:
        return address == _address(exception)
    bare = exception.removeprefix("*").removeprefix(".")
    return host.endswith("." + bare) or (host == bare and not exception.startswith((".", "*.")))
