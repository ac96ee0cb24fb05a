"""Trees to Structs: what is ignored, what is an error, and what stays of quantities."""

from __future__ import annotations

import threading
from typing import Any

import msgspec
import pytest

from trio_kubelet.api import decode as decode_module
from trio_kubelet.api.decode import decode, plain, type_name
from trio_kubelet.api.errors import ManifestError
from trio_kubelet.api.quantity import Quantity
from trio_kubelet.api.v1 import Pod
from trio_kubelet.api.yaml_scalars import Number


def pod(**spec: Any) -> Pod:
    return decode({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": spec}, Pod)


def fields(tree: Any) -> list[str]:
    with pytest.raises(ManifestError) as caught:
        decode(tree, Pod)
    return [error.field for error in caught.value.errors]


def test_unknown_fields_and_other_case_are_ignored() -> None:
    got = pod(containers=[{"name": "c", "Image": "x", "frobnicate": [1]}], HostNetwork=True)
    assert got.spec.containers is not None
    assert got.spec.containers[0].image == ""
    assert not got.spec.host_network


def test_null_is_absent_and_inside_lists_empty() -> None:
    got = pod(containers=[None, {"name": None, "args": [None, "a"], "resources": {"limits": {"cpu": None}}}])
    assert got.spec.containers is not None
    first, second = got.spec.containers
    assert first.name == ""
    assert second.args == ["", "a"]
    assert second.resources.limits == {"cpu": "0"}
    assert pod(containers=None, nodeSelector=None, hostNetwork=None).spec.containers is None


def test_every_type_error_is_named() -> None:
    tree = {
        "metadata": {"name": 5, "labels": {"a": True}},
        "spec": {
            "hostNetwork": "yes",
            "priority": 2**31,
            "terminationGracePeriodSeconds": Number("1.5"),
            "containers": [{"ports": {}}, "c", {"resources": {"limits": {"cpu": "lots"}}}],
        },
    }
    assert fields(tree) == [
        "metadata.name",
        "metadata.labels[a]",
        "spec.hostNetwork",
        "spec.priority",
        "spec.terminationGracePeriodSeconds",
        "spec.containers[0].ports",
        "spec.containers[1]",
        "spec.containers[2].resources.limits[cpu]",
    ]


@pytest.mark.parametrize(("port", "expected"), [(80, 80), ("http", "http"), ("80", "80")])
def test_int_or_string(port: Any, expected: Any) -> None:
    got = pod(containers=[{"livenessProbe": {"tcpSocket": {"port": port}}}])
    assert got.spec.containers is not None
    probe = got.spec.containers[0].liveness_probe
    assert probe is not None
    assert probe.tcp_socket is not None
    assert probe.tcp_socket.port == expected


@pytest.mark.parametrize(
    "time", ["2024-01-02T03:04:05Z", "2024-01-02T05:04:05+02:00", "2024-01-02T03:04:05.999Z"]
)
def test_times_are_written_in_utc_seconds(time: str) -> None:
    got = plain(decode({"metadata": {"creationTimestamp": time}}, Pod))
    assert got.metadata.creation_timestamp == "2024-01-02T03:04:05Z"


@pytest.mark.parametrize("time", ["", "2024-01-02", "2024-02-30T00:00:00Z", "2024-01-02T25:00:00Z", 5])
def test_no_time(time: Any) -> None:
    assert fields({"metadata": {"creationTimestamp": time}}) == ["metadata.creationTimestamp"]


def test_plain_leaves_ordinary_values_only() -> None:
    got = pod(
        containers=[{"name": "c", "resources": {"limits": {"memory": "1024Mi"}}, "env": [], "args": []}],
        volumes=[{"name": "e", "emptyDir": {"sizeLimit": Number("1.5")}}],
        nodeSelector={},
    )
    assert got.spec.containers is not None
    limits = got.spec.containers[0].resources.limits
    assert limits is not None
    assert isinstance(limits["memory"], Quantity)
    text = msgspec.json.encode(plain(got))
    again = msgspec.json.decode(text, type=Pod)
    assert msgspec.json.encode(again) == text
    assert b'"memory":"1Gi"' in text
    assert b'"sizeLimit":"1500m"' in text
    assert b"nodeSelector" not in text
    assert b'"env"' not in text


@pytest.mark.parametrize(
    ("tree", "field"),
    [
        (None, ""),
        ([], ""),
        ({}, "kind"),
        ({"kind": "Pod"}, "apiVersion"),
        ({"kind": 5, "apiVersion": "v1"}, "kind"),
        ({"kind": None, "apiVersion": "v1"}, "kind"),
    ],
)
def test_objects_without_a_type(tree: Any, field: str) -> None:
    with pytest.raises(ManifestError) as caught:
        type_name(tree)
    assert [error.field for error in caught.value.errors] == [field]


def test_the_type_is_found_in_any_case() -> None:
    assert type_name({"KIND": "Pod", "apiversion": "v1"}) == ("v1", "Pod")


def test_another_thread_decodes_while_one_prepares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers are prepared at their first use: a field that another thread does not see yet would be lost."""
    tree = {
        "spec": {"overhead": {"cpu": "1"}, "containers": [{"name": "c", "image": "busybox"}], "hostPID": True}
    }
    expected = decode(tree, Pod)
    decode_module._struct_reader.cache_clear()
    marker, told, asked = decode_module._marker, list[Pod](), 0

    def interrupted(annotation: Any) -> str | None:
        nonlocal asked
        asked += 1
        if asked in (3, 40, 80):
            other = threading.Thread(target=lambda: told.append(decode(tree, Pod)))
            other.start()
            other.join()
        return marker(annotation)

    monkeypatch.setattr(decode_module, "_marker", interrupted)
    assert decode(tree, Pod) == expected
    assert told == [expected] * 3
