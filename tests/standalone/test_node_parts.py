"""The pure parts of a private node: names, containerd's configuration, network, agent configuration."""

from __future__ import annotations

import ipaddress
import json
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.common.mountinfo import parse_mounts
from trio_kubelet.standalone import cleanup
from trio_kubelet.standalone.agent import AgentPorts, command_line, configuration, free_ports
from trio_kubelet.standalone.cleanup import Process
from trio_kubelet.standalone.cni import (
    POOL,
    PREFIX,
    choose_subnet,
    links_of_bridge,
    networks_in_use,
    render_conflist,
)
from trio_kubelet.standalone.containerd import config, render_toml
from trio_kubelet.standalone.layout import NAME_MAX, NodeLayout

SUBNET = ipaddress.IPv4Network("198.18.7.0/24")


def layout(name: str = "local", base: str = "/run/x") -> NodeLayout:
    return NodeLayout(name, Path(base), SUBNET)


# --- names ------------------------------------------------------------------------------------------------


@given(st.from_regex(rf"[a-z0-9]([a-z0-9-]{{0,{NAME_MAX - 2}}}[a-z0-9])?", fullmatch=True))
def test_a_valid_name_gives_a_valid_link_name(name: str) -> None:
    assert len(layout(name).bridge) <= 15


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a/b", "a" * (NAME_MAX + 1), "a b"])
def test_names_that_cannot_be(name: str) -> None:
    with pytest.raises(ValueError, match="node"):
        layout(name)


def test_a_directory_too_long_for_a_socket() -> None:
    with pytest.raises(ValueError, match="too long"):
        layout(base="/" + "d" * 100)


# --- containerd -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [(1, 6), (1, 7), (2, 0), (2, 1)])
def test_every_path_of_containerd_is_the_nodes_own(version: tuple[int, int]) -> None:
    tables = config(layout(), Path("/cni"), version, "overlayfs")
    text = render_toml(tables)
    assert tomllib.loads(text) == tables
    strings = [value for value in _strings(tables) if value.startswith("/")]
    assert strings
    assert all(value.startswith("/run/x/") or value == "/cni" for value in strings)


def _strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for each in value.values() for text in _strings(each)]
    if isinstance(value, list):
        return [text for each in value for text in _strings(each)]
    return [value] if isinstance(value, str) else []


def test_containerd_configuration_speaks_each_series_language() -> None:
    old, new = (config(layout(), Path("/cni"), version, "native") for version in ((1, 7), (2, 1)))
    cri: Any = old["plugins"]
    assert old["version"] == 2
    assert cri["io.containerd.grpc.v1.cri"]["restrict_oom_score_adj"] is True
    assert cri["io.containerd.grpc.v1.cri"]["sandbox_image"] == "localhost/pause:1"
    assert cri["io.containerd.grpc.v1.cri"]["containerd"]["snapshotter"] == "native"
    cri = new["plugins"]
    assert new["version"] == 3
    assert cri["io.containerd.cri.v1.runtime"]["restrict_oom_score_adj"] is True
    assert cri["io.containerd.cri.v1.images"]["pinned_images"] == {"sandbox": "localhost/pause:1"}
    assert cri["io.containerd.cri.v1.images"]["snapshotter"] == "native"


plain = st.text(st.characters(codec="utf-8"), max_size=10) | st.booleans() | st.integers(0, 99)
toml_tables = st.recursive(
    st.dictionaries(
        st.text("ab.\"' ", min_size=1, max_size=5), plain | st.lists(st.text("xy\\\n"), max_size=3)
    ),
    lambda children: st.dictionaries(st.text("ab.", min_size=1, max_size=5), children | plain, max_size=4),
)


@given(toml_tables)
def test_toml_reads_back(tables: dict[str, object]) -> None:
    def without_empty(value: object) -> object:
        if not isinstance(value, dict):
            return value
        return {k: without_empty(v) for k, v in value.items() if without_empty(v) != {} or v == ""}

    assert without_empty(tomllib.loads(render_toml(tables))) == without_empty(tables)


# --- network ----------------------------------------------------------------------------------------------


@given(st.text("abc-9", min_size=1, max_size=12), st.sets(st.integers(0, 127), max_size=127))
def test_a_subnet_is_free_and_in_the_pool(name: str, taken: set[int]) -> None:
    all_subnets = list(POOL.subnets(new_prefix=PREFIX))
    in_use = [all_subnets[index] for index in taken]
    chosen = choose_subnet(name, in_use)
    assert chosen in all_subnets
    assert chosen not in in_use
    assert chosen == choose_subnet(name, in_use)


def test_a_network_has_room_for_as_many_pods_as_a_bridge_has_ports() -> None:
    assert choose_subnet("n", []).num_addresses == 1024


def test_a_full_pool_is_an_error() -> None:
    with pytest.raises(ValueError, match="free"):
        choose_subnet("x", [ipaddress.IPv4Network("198.0.0.0/8")])


def test_what_ip_prints_is_read() -> None:
    text = json.dumps(
        [
            {"ifname": "tk-local", "addr_info": [{"family": "inet", "local": "198.18.7.1", "prefixlen": 24}]},
            {"ifname": "veth1", "master": "tk-local", "addr_info": [{"family": "inet6", "local": "::1"}]},
            {"ifname": "veth2", "master": "other"},
        ]
    )
    assert networks_in_use(text) == [SUBNET]
    assert links_of_bridge(text, "tk-local") == ["veth1", "tk-local"]
    assert links_of_bridge("", "tk-local") == []


def test_the_network_forwards_and_translates_nothing() -> None:
    plugin = json.loads(render_conflist(layout()))["plugins"][0]
    assert (plugin["bridge"], plugin["isGateway"], plugin["ipMasq"]) == ("tk-local", False, False)
    assert plugin["ipam"]["ranges"] == [[{"subnet": "198.18.7.0/24", "gateway": "198.18.7.1"}]]
    assert plugin["ipam"]["dataDir"].startswith("/run/x/")


# --- the agent --------------------------------------------------------------------------------------------


def test_agent_configuration() -> None:
    text = configuration(layout(), Path("/m"), AgentPorts(1, 2, 3), {"maxPods": 5, "readOnlyPort": 0})
    fields = json.loads(text)
    assert fields["cgroupRoot"] == "/trio-kubelet-local"
    assert fields["staticPodPath"] == "/m"
    assert fields["containerRuntimeEndpoint"] == "unix:///run/x/containerd.sock"
    assert (fields["maxPods"], fields["readOnlyPort"], fields["healthzPort"]) == (5, 0, 3)
    argv = command_line(layout(), Path("/c"), ["-v=4"])
    assert argv[-7:] == [
        *("--config=/c", "--root-dir=/run/x/kubelet", "--cert-dir=/run/x/kubelet/pki"),
        "--container-logs-dir=/run/x/log/containers",
        "--hostname-override=local",
        "--set-kernel-tunables=false",
        "-v=4",
    ]


def test_free_ports_are_three() -> None:
    ports = free_ports()
    numbers = {ports.main, ports.read_only, ports.healthz}
    assert len(numbers) == 3
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    if lowest > 24_000:  # else there are too few below
        assert max(numbers) < lowest, "the kernel gives such a port to any client"


# --- finding what belongs to a node -----------------------------------------------------------------------


def process(pid: int, parent: int = 1, cmdline: str = "", cgroups: str = "0::/", state: str = "S") -> Process:
    return Process(pid, parent, state, cmdline.replace(" ", "\0"), cgroups)


def test_zombies_count_for_the_one_who_can_reap_them() -> None:
    cgroup = "4:memory:/trio-kubelet-local/kubepods/podu"
    ended = [process(10, cgroups=cgroup, state="Z"), process(11, os.getpid(), cgroups=cgroup, state="Z")]
    assert cleanup.belonging(ended, layout()) == {11}


def test_processes_of_a_node_are_told_from_others() -> None:
    processes = [
        process(10, cmdline="/c/containerd --config /run/x/containerd.toml"),
        process(11, cmdline="/c/containerd --config /run/xy/containerd.toml"),
        process(20, cmdline="/c/containerd-shim-runc-v2 -id a -address /run/x/containerd.sock"),
        process(21, cmdline="/c/containerd-shim-runc-v2 -id a -address /run/containerd/containerd.sock"),
        process(22, cmdline="crictl -r /run/x/containerd.sock ps"),
        process(30, parent=20, cmdline="httpd"),
        process(31, parent=30, cmdline="sh"),
        process(32, parent=21, cmdline="sh"),
        process(40, cgroups="8:pids:/\n4:memory:/trio-kubelet-local/kubepods/podu"),
        process(41, cgroups="4:memory:/trio-kubelet-local2/kubepods/podu"),
        process(50, cmdline="trio-kubelet --config=/z --root-dir=/run/x/kubelet"),
        process(51, cmdline="tail -f /run/x/containerd.log"),
    ]
    assert cleanup.belonging(processes, layout()) == {10, 20, 30, 31, 40, 50}


MOUNTINFO = r"""22 1 8:1 / / rw - ext4 /dev/root rw
30 22 0:25 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory
31 22 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
40 22 0:50 / /run/x/kubelet/pods/u/volumes/a\040b rw - tmpfs tmpfs rw
41 22 0:51 / /run/xy rw - tmpfs tmpfs rw
42 40 0:52 / /run/x/kubelet/pods/u/volumes/a\040b/sub rw - tmpfs tmpfs rw
"""


def test_mounts_of_a_node_innermost_first() -> None:
    inner, outer = "/run/x/kubelet/pods/u/volumes/a b/sub", "/run/x/kubelet/pods/u/volumes/a b"
    assert cleanup.mounts_under(parse_mounts(MOUNTINFO), Path("/run/x")) == [inner, outer]


def test_cgroup_hierarchies_of_both_versions() -> None:
    found = [str(path) for path in cleanup.cgroup_mounts(parse_mounts(MOUNTINFO))]
    assert found == ["/sys/fs/cgroup/memory", "/sys/fs/cgroup/unified"]
