"""Mounts, labels, ports, host names, DNS."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runtime_configs.pods import NODE, container, first, node, pod
from trio_kubelet.api import v1
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.node.userns import namespace_of
from trio_kubelet.podinfo.context import (
    BlockDevice,
    ContainerInputs,
    ResolvConf,
    RuntimeHandler,
    VolumeMountPoint,
)
from trio_kubelet.podinfo.doors import ConfigError
from trio_kubelet.runtime.configs.container import signal_from_name, signal_name
from trio_kubelet.runtime.configs.dns import parse_resolv_conf, pod_dns
from trio_kubelet.runtime.configs.hostname import hostname_and_domain, hosts_file, kernel_hostname
from trio_kubelet.runtime.configs.labels import (
    CONTAINER_HASH,
    CONTAINER_PORTS,
    MOST_ANNOTATIONS,
    MOST_LABELS,
    POD_TERMINATION_GRACE_PERIOD,
    PRE_STOP_HANDLER,
    RESTART_COUNT,
    container_annotations,
    container_labels,
    pod_annotations,
    pod_labels,
    read_identity,
    read_notes,
)
from trio_kubelet.runtime.configs.mounts import block_devices, mounts, sub_paths
from trio_kubelet.runtime.configs.sandbox import port_mappings

_VOLUMES = {"v": VolumeMountPoint("/host/v"), "ro": VolumeMountPoint("/host/ro", read_only=True)}


def _mounts(*entries: dict[str, Any], ctx: Any = NODE, **inputs: Any) -> list[cri.Mount]:
    made = pod(container(volumeMounts=list(entries), terminationMessagePath="/dev/log"))
    given_inputs = ContainerInputs(image_ref="i", volumes=_VOLUMES, **inputs)
    return mounts(made, first(made), ctx, given_inputs, {"X": "x"})


def test_hosts_and_termination_log_come_last() -> None:
    found = _mounts({"name": "v", "mountPath": "data"}, pod_ips=("10.0.0.1",), termination_log="/log")
    assert [(mount.container_path, mount.host_path) for mount in found] == [
        ("/data", "/host/v"),
        ("/etc/hosts", "/root/pods/u1/etc-hosts"),
        ("/dev/log", "/log"),
    ]


@pytest.mark.parametrize("path", ["data/", "./data", "//data"])
def test_paths_in_a_container_that_are_written_otherwise(path: str) -> None:
    made = pod(container(volumeMounts=[{"name": "v", "mountPath": "a//b/"}], terminationMessagePath=path))
    inputs = ContainerInputs(image_ref="i", volumes=_VOLUMES, termination_log="/log")
    found = mounts(made, first(made), NODE, inputs, {})
    assert [mount.container_path for mount in found] == ["/a/b", "/data"]


def test_the_runtime_labels_the_pods_own_files_where_there_are_labels() -> None:
    volumes = {"own": VolumeMountPoint("/own", relabel=True), "host": VolumeMountPoint("/host")}
    entries = [{"name": "own", "mountPath": "/a", "subPath": "b"}, {"name": "host", "mountPath": "/c"}]
    made = pod(container(volumeMounts=entries, terminationMessagePath="/dev/log"))
    inputs = ContainerInputs(image_ref="i", volumes=volumes, pod_ips=("10.0.0.1",), termination_log="/log")
    for selinux, labelled in ((True, {"/a", "/etc/hosts", "/dev/log"}), (False, set())):
        found = mounts(made, first(made), node(selinux=selinux), inputs, {})
        assert {mount.container_path for mount in found if mount.selinux_relabel} == labelled


def test_a_device_has_an_absolute_path() -> None:
    volumes = {"raw": BlockDevice("/host/raw")}
    made = pod(container(volumeDevices=[{"name": "raw", "devicePath": "/dev/xvda"}]))
    (device,) = block_devices(first(made), volumes)
    assert (device.container_path, device.host_path, device.permissions) == ("/dev/xvda", "/host/raw", "mrw")
    made = pod(container(volumeDevices=[{"name": "raw", "devicePath": "dev/xvda"}]))
    with pytest.raises(ConfigError, match="error DevicePath `dev/xvda` must be an absolute path"):
        block_devices(first(made), volumes)


def test_own_hosts_file_and_missing_address_keep_the_agents_out() -> None:
    assert len(_mounts({"name": "v", "mountPath": "/etc/hosts"}, pod_ips=("10.0.0.1",))) == 1
    assert _mounts() == []


def test_volume_that_is_read_only_stays_so() -> None:
    (mount,) = _mounts({"name": "ro", "mountPath": "/x"})
    assert mount.readonly


@pytest.mark.parametrize(
    ("mode", "propagation"),
    [
        (None, cri.PROPAGATION_PRIVATE),
        ("None", cri.PROPAGATION_PRIVATE),
        ("HostToContainer", cri.PROPAGATION_HOST_TO_CONTAINER),
        ("Bidirectional", cri.PROPAGATION_BIDIRECTIONAL),
    ],
)
def test_propagation(mode: str | None, propagation: int) -> None:
    (mount,) = _mounts({"name": "v", "mountPath": "/x", "mountPropagation": mode})
    assert mount.propagation == propagation


def test_sub_paths_are_mounted_from_their_own_place() -> None:
    entries = [
        {"name": "v", "mountPath": "/a"},
        {"name": "v", "mountPath": "/b", "subPathExpr": "logs/$(X)"},
    ]
    target = "/root/pods/u1/volume-subpaths/v/c/1"
    assert _mounts(*entries)[1].host_path == target
    made = pod(container(volumeMounts=entries))
    (part,) = sub_paths(made, first(made), "/root", _VOLUMES, {"X": "x"})
    assert (part.volume_path, part.path, part.target) == ("/host/v", "logs/x", target)


@pytest.mark.parametrize(
    ("entry", "error"),
    [
        ({"name": "none"}, "cannot find volume"),
        ({"name": "v", "subPath": "/abs"}, "must not be an absolute path"),
        ({"name": "v", "subPath": "a/../../b"}, "must not contain '..'"),
        ({"name": "v", "subPathExpr": "$(Y)"}, "missing value for Y"),
        ({"name": "v", "mountPropagation": "Odd"}, "invalid MountPropagation"),
        ({"name": "v", "recursiveReadOnly": "Enabled"}, "not read-only"),
        ({"name": "v", "readOnly": True, "recursiveReadOnly": "Enabled"}, "not supported by the runtime"),
        (
            {
                "name": "v",
                "readOnly": True,
                "recursiveReadOnly": "IfPossible",
                "mountPropagation": "Bidirectional",
            },
            "not compatible with propagation",
        ),
    ],
)
def test_mounts_that_cannot_be_made(entry: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        _mounts({"mountPath": "/x", **entry})


def test_recursive_read_only_as_the_runtime_can() -> None:
    entry = {"name": "v", "mountPath": "/x", "readOnly": True, "recursiveReadOnly": "IfPossible"}
    able = node(handlers={"runc": RuntimeHandler(recursive_read_only_mounts=True)})
    assert not _mounts(entry, ctx=able)[0].recursive_read_only
    assert _mounts(entry, ctx=able, runtime_handler="runc")[0].recursive_read_only


def test_image_volume_and_user_namespace() -> None:
    image = cri.ImageSpec(image="sha256:1")
    entry = {"name": "img", "mountPath": "/x", "subPath": "bin"}
    (mount,) = _mounts(entry, image_volumes={"img": image}, user_namespace=namespace_of(131072, 65536))
    assert (mount.image.image, mount.image_sub_path, mount.host_path, mount.readonly) == (
        "sha256:1",
        "bin",
        "",
        True,
    )
    assert [(ids.host_id, ids.container_id, ids.length) for ids in mount.uidMappings] == [(131072, 0, 65536)]


_HANDLERS: list[tuple[dict[str, Any], str]] = [
    ({"exec": {"command": ["a", "<b>"]}}, '{"exec":{"command":["a","\\u003cb\\u003e"]}}'),
    (
        {
            "httpGet": {
                "scheme": "HTTP",
                "port": "web",
                "path": "/x",
                "httpHeaders": [{"name": "H", "value": "1"}],
            }
        },
        '{"httpGet":{"path":"/x","port":"web","scheme":"HTTP","httpHeaders":[{"name":"H","value":"1"}]}}',
    ),
    ({"tcpSocket": {"host": "h", "port": 80}}, '{"tcpSocket":{"port":80,"host":"h"}}'),
    ({"sleep": {"seconds": 5}}, '{"sleep":{"seconds":5}}'),
]


@pytest.mark.parametrize(("handler", "text"), _HANDLERS)
def test_pre_stop_handler_is_written_as_go_does_and_read_back(handler: dict[str, Any], text: str) -> None:
    made = pod(container(lifecycle={"preStop": handler}))
    notes = container_annotations(made, first(made), 3)
    assert notes[PRE_STOP_HANDLER] == text
    lifecycle = first(made).lifecycle
    assert lifecycle is not None
    assert read_notes(notes).pre_stop == lifecycle.pre_stop


def test_notes_are_read_back() -> None:
    ports = [{"containerPort": 80, "protocol": "TCP", "hostIP": "127.0.0.1", "hostPort": 8080, "name": "web"}]
    made = pod(
        container(ports=ports, terminationMessagePath="/log", terminationMessagePolicy="File"),
        meta={"deletionGracePeriodSeconds": 7},
        terminationGracePeriodSeconds=30,
    )
    notes = read_notes(container_annotations(made, first(made), 3))
    assert (notes.restart_count, notes.deletion_grace_period, notes.termination_grace_period) == (3, 7, 30)
    assert (notes.termination_message_path, notes.termination_message_policy) == ("/log", "File")
    assert list(notes.ports) == first(made).ports
    text = container_annotations(made, first(made), 0)[CONTAINER_PORTS]
    assert list(json.loads(text)[0]) == ["name", "hostPort", "containerPort", "protocol", "hostIP"]
    identity = read_identity(container_labels(made, "c"))
    assert (identity.uid, identity.name, identity.namespace, identity.container) == ("u1", "p", "ns", "c")


@given(
    st.dictionaries(
        st.sampled_from(
            [*container_annotations(pod(), v1.Container(), 0), PRE_STOP_HANDLER, CONTAINER_PORTS]
        ),
        st.text(),
    )
)
def test_unreadable_notes_never_fail(annotations: dict[str, str]) -> None:
    assert read_notes(annotations).restart_count is not None


@pytest.mark.parametrize("note", [PRE_STOP_HANDLER, CONTAINER_PORTS])
def test_notes_of_any_depth_never_fail(note: str) -> None:
    for begun in ('{"a":', '[{"a":', '{"exec":', '[{"containerPort":'):
        notes = read_notes({note: begun + "[" * 5000, CONTAINER_HASH: "1"})
        assert (notes.hash, notes.pre_stop, notes.ports) == ("1", None, ())


@pytest.mark.parametrize(
    ("written", "restarts", "grace"),
    [
        ("3", 3, 3),
        ("-1", 0, -1),
        ("2147483648", 0, 2**31),
        ("9223372036854775808", 0, None),
        ("9" * 5000, 0, None),
        ("1_0", 0, None),
        ("٣", 0, None),
        (" 3", 0, None),
        ("", 0, None),
    ],
)
def test_numbers_in_notes_are_those_of_go(written: str, restarts: int, grace: int | None) -> None:
    notes = read_notes({RESTART_COUNT: written, POD_TERMINATION_GRACE_PERIOD: written})
    assert (notes.restart_count, notes.termination_grace_period) == (restarts, grace)


def test_identity_wins_over_labels_of_the_pod() -> None:
    labels = pod_labels(pod(meta={"labels": {"io.kubernetes.pod.uid": "fake", "app": "x"}}))
    assert labels["io.kubernetes.pod.uid"] == "u1"
    assert labels["app"] == "x"


def test_a_sandbox_carries_the_shorter_notes_of_too_many() -> None:
    """All sandboxes of a node have to fit into one message of the runtime."""
    notes = {f"n{number}": "x" * number for number in range(1000)}
    made = pod(meta={"labels": notes, "annotations": {**notes, "long": "y" * 200_000}})
    for carried, most in ((pod_labels(made), MOST_LABELS), (pod_annotations(made), MOST_ANNOTATIONS)):
        kept = {name: value for name, value in carried.items() if name in notes}
        assert kept == {name: notes[name] for name in list(notes)[: len(kept)]}
        size = sum(len(name) + len(value) for name, value in kept.items())
        assert most - 1000 < size <= most
    assert pod_labels(made)["io.kubernetes.pod.uid"] == "u1"
    few = {"long": "y" * (MOST_ANNOTATIONS - 4)}
    assert pod_annotations(pod(meta={"annotations": few})) == few


def test_ports_said_twice_count_once() -> None:
    entries: list[dict[str, Any]] = [
        {"containerPort": 80},
        {"containerPort": 80},
        {"containerPort": 80, "hostIP": "::1"},
        {"containerPort": 80, "protocol": "SCTP"},
        {"containerPort": 81, "name": "a"},
        {"containerPort": 82, "name": "a"},
    ]
    made = container(ports=[{"protocol": "TCP", **entry} for entry in entries])
    found = list(port_mappings(first(pod(made))))
    assert [(p.container_port, p.host_ip, p.protocol) for p in found] == [
        (80, "", cri.TCP),
        (80, "::1", cri.TCP),
        (80, "", cri.SCTP),
        (81, "", cri.TCP),
    ]


@pytest.mark.parametrize(
    ("spec", "name", "domain"),
    [
        ({}, "p", ""),
        ({"hostname": "h", "subdomain": "s"}, "h", "s.ns.svc.cluster.local"),
        ({"hostnameOverride": "a.b", "hostname": "h", "subdomain": "s"}, "a.b", ""),
        ({"meta": {"name": "x" * 62 + "-" + "y" * 20}}, "x" * 62, ""),
    ],
)
def test_host_name(spec: dict[str, Any], name: str, domain: str) -> None:
    assert hostname_and_domain(pod(**spec), node(cluster_domain="cluster.local")) == (name, domain)


def test_full_name_in_the_kernel() -> None:
    ctx = node(cluster_domain="cluster.local")
    assert kernel_hostname(pod(subdomain="s", setHostnameAsFQDN=True), ctx) == "p.s.ns.svc.cluster.local"
    assert kernel_hostname(pod(setHostnameAsFQDN=True), ctx) == "p"
    with pytest.raises(ConfigError, match="too long"):
        kernel_hostname(pod(hostname="h" * 60, subdomain="s", setHostnameAsFQDN=True), ctx)


@pytest.mark.parametrize("spec", [{"hostname": "Bad"}, {"subdomain": "a.b"}, {"hostnameOverride": "-x"}])
def test_bad_host_names_are_refused(spec: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="is not a valid DNS"):
        hostname_and_domain(pod(**spec), NODE)


def test_recorded_hosts_file() -> None:
    golden = json.loads((Path(__file__).parents[1] / "golden" / "cluster-node.json").read_text())
    made = msgspec.convert(golden["pods"]["cfg"], v1.Pod)
    assert hosts_file(made, NODE, ("10.231.0.3",), "") == golden["etcHostsOfCfg"]


def test_hosts_file_of_the_pods_own() -> None:
    aliases = [{"ip": "1.2.3.4", "hostnames": ["foo", "bar"]}]
    made = pod(subdomain="s", hostAliases=aliases)
    text = hosts_file(made, node(cluster_domain="c"), ("10.0.0.1", "fd00::1"), "")
    assert text.endswith(
        "fe00::2\tip6-allrouters\n10.0.0.1\tp.s.ns.svc.c\tp\nfd00::1\tp.s.ns.svc.c\tp\n"
        "\n# Entries added by HostAliases.\n1.2.3.4\tfoo\tbar\n"
    )
    hosts = hosts_file(pod(hostNetwork=True), NODE, (), "127.0.0.1 localhost\n")
    assert hosts == "# Kubernetes-managed hosts file (host network).\n127.0.0.1 localhost\n"


def test_resolv_conf() -> None:
    text = (
        "# c\n; odd\nnameserver 1.1.1.1\nnameserver  2.2.2.2 x\nsearch a.\nsearch b. . c\n"
        "options ndots:1 rotate\noptions ndots:5"
    )
    assert parse_resolv_conf(text) == ResolvConf(("1.1.1.1", "2.2.2.2"), ("b", "c"), ("ndots:5", "rotate"))
    with pytest.raises(ValueError, match="nameserver"):
        parse_resolv_conf("nameserver")


_HOST = ResolvConf(("9.9.9.9",), ("corp", "svc.c"), ("rotate",))
_DNS_NODE = node(resolv_conf=_HOST, cluster_dns=("10.0.0.10",), cluster_domain="c")


@pytest.mark.parametrize(
    ("spec", "servers", "searches", "options"),
    [
        ({}, ["10.0.0.10"], ["ns.svc.c", "svc.c", "c", "corp"], ["ndots:5"]),
        ({"hostNetwork": True}, ["9.9.9.9"], ["corp", "svc.c"], ["rotate"]),
        (
            {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"},
            ["10.0.0.10"],
            ["ns.svc.c", "svc.c", "c", "corp"],
            ["ndots:5"],
        ),
        ({"dnsPolicy": "Default"}, ["9.9.9.9"], ["corp", "svc.c"], ["rotate"]),
        ({"dnsPolicy": "None"}, [], [], []),
        (
            {
                "dnsConfig": {
                    "nameservers": ["10.0.0.10", "8.8.8.8"],
                    "searches": ["mine", "c"],
                    "options": [{"name": "ndots", "value": "2"}, {"name": "debug"}],
                }
            },
            ["10.0.0.10", "8.8.8.8"],
            ["ns.svc.c", "svc.c", "c", "corp", "mine"],
            ["ndots:2", "debug"],
        ),
    ],
)
def test_dns_policies(
    spec: dict[str, Any], servers: list[str], searches: list[str], options: list[str]
) -> None:
    config = pod_dns(pod(**spec), _DNS_NODE).config
    assert (list(config.servers), list(config.searches), list(config.options)) == (servers, searches, options)


def test_without_cluster_dns_the_nodes_is_used_and_said() -> None:
    result = pod_dns(pod(), node(resolv_conf=_HOST))
    assert list(result.config.servers) == ["9.9.9.9"]
    assert [warning.reason for warning in result.warnings] == ["MissingClusterDNS"]


def test_without_resolv_conf_lookups_stay_on_the_machine() -> None:
    config = pod_dns(pod(dnsPolicy="Default"), node(node_ips=("fd00::1", "10.0.0.1"))).config
    assert (list(config.servers), list(config.searches)) == (["::1", "127.0.0.1"], ["."])


@given(st.lists(st.from_regex(r"[a-z]{1,300}", fullmatch=True), unique=True, max_size=50))
def test_dns_stays_within_what_resolvers_take(domains: list[str]) -> None:
    made = pod(
        dnsConfig={"searches": domains, "nameservers": [f"1.1.1.{n}" for n in range(5)]}, dnsPolicy="None"
    )
    result = pod_dns(made, NODE)
    searches = list(result.config.searches)
    assert len(result.config.servers) == 3
    assert len(searches) <= 32
    assert all(len(domain) <= 253 for domain in searches)
    assert len(" ".join(searches)) <= 2048
    assert searches == [domain for domain in domains if domain in searches]
    assert len(result.warnings) == 1 + (searches != domains)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGRTMIN+3", "SIGRTMAX-14", "SIGKILL"])
def test_signals_there_and_back(name: str) -> None:
    assert signal_name(signal_from_name(name)) == name
    assert signal_from_name("SIGODD") == cri.RUNTIME_DEFAULT


@pytest.mark.parametrize(
    "host_ip", ["010.0.0.1", "127.1", "localhost", "::ffff:10.0.0.1", "fe80::1%eth0", " "]
)
def test_whatever_is_no_ipv6_address_counts_as_ipv4(host_ip: str) -> None:
    """As with the kubelet; Python takes none of them for an address."""
    ports = [{"containerPort": 80, "hostPort": 8080, "hostIP": host_ip, "protocol": "TCP"}]
    (found,) = port_mappings(first(pod(container(ports=ports))))
    assert found.host_ip == host_ip
    clash = [{"containerPort": 80, "name": f"v4-TCP-{host_ip}:80:8080"}, *ports]
    assert len(list(port_mappings(first(pod(container(ports=clash)))))) == 1
