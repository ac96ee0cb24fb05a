"""The network of a private node: one bridge, host-local addresses, nothing beyond this machine.

The bridge gets its address here and not from the bridge plugin's `isGateway`, because that option turns on IP
forwarding for the whole host. Pods and the node reach each other; no packet is forwarded or translated, so no
firewall rule is needed.
"""

from __future__ import annotations

import ipaddress
import json
import zlib
from collections.abc import Iterable, Sequence

from trio_kubelet.common.lanes import STANDALONE
from trio_kubelet.standalone.layout import NodeLayout
from trio_kubelet.standalone.run import CommandFailed, command

POOL = ipaddress.IPv4Network("198.18.0.0/15")
"""RFC 2544 benchmarking addresses: private to a machine by definition, and not what offices and VPNs use."""

PREFIX = 22
"""1,021 addresses for pods: a bridge of the kernel has no more ports."""

_IP_SECONDS = 20.0


def render_conflist(layout: NodeLayout) -> str:
    """The CNI network configuration of the node (CNI spec 1.0, bridge and host-local plugins)."""
    bridge = {
        "type": "bridge",
        "bridge": layout.bridge,
        "isGateway": False,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "dataDir": str(layout.cni_ipam_dir),
            "ranges": [[{"subnet": str(layout.subnet), "gateway": str(layout.gateway)}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    return json.dumps({"cniVersion": "1.0.0", "name": layout.bridge, "plugins": [bridge]}, indent=2) + "\n"


def choose_subnet(name: str, taken: Iterable[ipaddress.IPv4Network]) -> ipaddress.IPv4Network:
    """A network of POOL that overlaps none in `taken`; `name` decides where to look first.

    Raises ValueError when the pool is exhausted.
    """
    candidates = list(POOL.subnets(new_prefix=PREFIX))
    in_use = [network for network in taken if network.overlaps(POOL)]
    start = zlib.crc32(name.encode()) % len(candidates)
    for candidate in candidates[start:] + candidates[:start]:
        if not any(candidate.overlaps(network) for network in in_use):
            return candidate
    raise ValueError(f"no /{PREFIX} of {POOL} is free on this machine")


def networks_in_use(ip_json: str) -> list[ipaddress.IPv4Network]:
    """The IPv4 networks of `ip -json address`."""
    return [
        ipaddress.IPv4Network(f"{entry['local']}/{entry['prefixlen']}", strict=False)
        for link in json.loads(ip_json or "[]")
        for entry in link.get("addr_info", [])
        if entry.get("family") == "inet"
    ]


def links_of_bridge(ip_json: str, bridge: str) -> list[str]:
    """Out of `ip -json link`: the bridge's ports, then the bridge itself."""
    links = json.loads(ip_json or "[]")
    ports = [link["ifname"] for link in links if link.get("master") == bridge]
    return ports + [link["ifname"] for link in links if link["ifname"] == bridge]


async def free_subnet(name: str) -> ipaddress.IPv4Network:
    """A network for the pods of the node `name` that no link of this machine uses."""
    return choose_subnet(name, networks_in_use(await _ip("-json", "-4", "address")))


async def set_up(layout: NodeLayout) -> None:
    """Write the CNI configuration and create the bridge. CommandFailed when the kernel refuses."""

    def write() -> None:
        layout.cni_conf_dir.mkdir(parents=True, exist_ok=True)
        (layout.cni_conf_dir / "10-node.conflist").write_text(render_conflist(layout))

    await STANDALONE.run(write)
    if not links_of_bridge(await _ip("-json", "link"), layout.bridge):
        await _ip("link", "add", layout.bridge, "type", "bridge")
    await _ip("address", "replace", f"{layout.gateway}/{layout.subnet.prefixlen}", "dev", layout.bridge)
    await _ip("link", "set", layout.bridge, "up")


async def links(bridge: str) -> list[str]:
    """Links of the node that exist now: the bridge and what hangs on it."""
    return links_of_bridge(await _ip("-json", "link"), bridge)


async def tear_down(bridge: str) -> None:
    """Delete the bridge and its ports. A pod's end of a link goes with the node's end."""
    for link in await links(bridge):
        try:
            await _ip("link", "delete", link)
        except CommandFailed:
            # A port vanishes by itself when the last process of its pod's network namespace ends.
            if link in await links(bridge):
                raise


async def _ip(*words: str) -> str:
    argv: Sequence[str] = ["ip", *words]
    return await command(argv, seconds=_IP_SECONDS)
