"""The files of volumes as a function of what they are made from: the rules against simple restatements."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.api import v1
from trio_kubelet.api.errors import aggregate_errors
from trio_kubelet.podinfo.context import NodeContext
from trio_kubelet.volumes.errors import VolumeError
from trio_kubelet.volumes.payload import FileProjection, Objects, PodFiles, check_path

NODE = NodeContext(node_name="n", root_dir="/r")
keys = st.text("abc.-_", min_size=1, max_size=3).filter(lambda key: not key.startswith(".."))
names = keys.filter(lambda key: key != ".")
modes = st.one_of(st.none(), st.integers(0, 0o777))
items = st.lists(
    st.fixed_dictionaries({"key": names, "path": names, "mode": modes}),
    max_size=3,
    unique_by=lambda i: i["path"],
)


def files(volume: dict[str, Any], objects: Objects, **spec: Any) -> dict[str, FileProjection]:
    spec = {"containers": [{"name": "c"}], "volumes": [{"name": "v", **volume}], **spec}
    meta = {"name": "p", "namespace": "ns", "uid": "u"}
    pod = msgspec.convert({"metadata": meta, "spec": spec}, v1.Pod)
    assert pod.spec.volumes is not None
    return PodFiles(pod, NODE).of(pod.spec.volumes[0], objects)


def expected(
    data: dict[str, bytes] | None, wanted: list[dict[str, Any]], default: int, optional: bool
) -> dict[str, FileProjection] | None:
    """What the API's documentation says; None: an error."""
    if data is None:
        if not optional:
            return None
        data = {}
    if not wanted:
        return {key: FileProjection(value, default) for key, value in data.items()}
    if not optional and any(item["key"] not in data for item in wanted):
        return None
    return {
        item["path"]: FileProjection(data[item["key"]], default if item["mode"] is None else item["mode"])
        for item in wanted
        if item["key"] in data
    }


@given(
    st.one_of(st.none(), st.dictionaries(names, st.binary(max_size=3), max_size=3)),
    items,
    st.integers(0, 0o777),
    st.booleans(),
    st.sampled_from(["secret", "configMap", "projected secret", "projected configMap"]),
)
def test_items_modes_and_optional(
    data: dict[str, bytes] | None, wanted: list[dict[str, Any]], default: int, optional: bool, kind: str
) -> None:
    source: dict[str, Any] = {"items": wanted, "optional": optional}
    name = "secretName" if kind == "secret" else "name"
    source[name] = "x"
    objects = Objects()
    if data is not None and kind.endswith("secret"):
        objects = Objects(secrets={"x": v1.Secret(data=data)})
    elif data is not None:
        objects = Objects(config_maps={"x": v1.ConfigMap(binary_data=data)})
    projected, _, kind = kind.rpartition(" ")
    if projected:
        volume = {"projected": {"defaultMode": default, "sources": [{kind: source}]}}
    else:
        volume = {kind: {**source, "defaultMode": default}}
    wanted_files = expected(data, wanted, default, optional)
    if wanted_files is None:
        with pytest.raises(VolumeError):
            files(volume, objects)
    else:
        assert files(volume, objects) == wanted_files


def test_text_wins_over_bytes_of_the_same_key() -> None:
    config_map = v1.ConfigMap(data={"a": "text"}, binary_data={"a": b"bytes", "b": b"b"})
    found = files({"configMap": {"name": "x"}}, Objects(config_maps={"x": config_map}))
    assert {path: file.data for path, file in found.items()} == {"a": b"text", "b": b"b"}


def test_later_sources_win() -> None:
    sources = [{"configMap": {"name": "x"}}, {"secret": {"name": "x"}}]
    objects = Objects(
        config_maps={"x": v1.ConfigMap(data={"a": "1", "b": "1"})},
        secrets={"x": v1.Secret(data={"a": b"2"})},
    )
    found = files({"projected": {"sources": sources}}, objects)
    assert {path: file.data for path, file in found.items()} == {"a": b"2", "b": b"1"}


def test_what_many_files_hold_is_made_once() -> None:
    """A thousand lines of a manifest for a megabyte each, of which the first hundred and some fit."""
    large = v1.ConfigMap(data={"k": "x" * 1_000_000})
    objects = Objects(config_maps={"x": large})
    items = [{"key": "k", "path": f"f{number}"} for number in range(1000)]
    with pytest.raises(VolumeError, match="more than 134217728 bytes"):
        files({"configMap": {"name": "x", "items": items}}, objects)
    sources = [{"configMap": {"name": "x", "items": [item]}} for item in items]
    found = files({"projected": {"sources": sources[:100]}}, objects)
    assert len({id(file.data) for file in found.values()}) == 1
    facts = [{"path": f"f{n}", "fieldRef": {"fieldPath": "metadata.name"}} for n in range(3)]
    assert len({id(file.data) for file in files({"downwardAPI": {"items": facts}}, Objects()).values()}) == 1


def test_the_bound_is_for_all_volumes_of_a_pod() -> None:
    pod = v1.Pod(metadata=v1.ObjectMeta(name="p"))
    made = PodFiles(pod, NODE, most=10)
    volume = v1.Volume(name="v", secret=v1.SecretVolumeSource(secret_name="x"))
    objects = Objects(secrets={"x": v1.Secret(data={"k": b"12345"})})
    for _ in range(2):
        assert made.of(volume, objects)["k"].data == b"12345"
    with pytest.raises(VolumeError, match="the files of the pod's volumes have more than 10 bytes"):
        made.of(volume, objects)


def test_the_directories_of_all_volumes_of_a_pod_have_a_bound() -> None:
    facts = [{"path": f"{n}/a/a", "fieldRef": {"fieldPath": "metadata.name"}} for n in range(3)]
    volume = msgspec.convert({"name": "v", "downwardAPI": {"items": facts}}, v1.Volume)
    made = PodFiles(v1.Pod(metadata=v1.ObjectMeta(name="p")), NODE, most_directories=14)
    for _ in range(2):
        assert len(made.of(volume, Objects())) == 3
    with pytest.raises(VolumeError, match="name more than 14 directories"):
        made.of(volume, Objects())


@pytest.mark.parametrize(
    "path",
    ["", "/a", "..", "a/../b", "..a", "..data", "x/..", "a" * 256, "a/" * 2050 + "a", "a/" * 128 + "a"],
)
def test_paths_that_leave_the_volume_are_refused(path: str) -> None:
    with pytest.raises(VolumeError):
        check_path(path)


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("", 'must not be empty: ""'),
        ("/a/..", "must be relative path: /a/.."),
        ("../" + "a" * 4096, "must be less than or equal to 4096 characters"),
        ("a/../b", "must not contain '..': a/../b"),
        ("a/" + "\u00e4" * 128, "filenames must be less than or equal to 255 characters"),
        ("..a", "must not start with '..': ..a"),
    ],
)
def test_a_path_is_refused_with_what_is_wrong_with_it(path: str, problem: str) -> None:
    with pytest.raises(VolumeError) as caught:
        check_path(path)
    assert str(caught.value) == f"invalid path: {problem}"


@pytest.mark.parametrize("path", ["a", "a/..b", ".a", "a" * 255, "a/" * 127 + "a"])
def test_paths_inside_the_volume(path: str) -> None:
    check_path(path)


def test_errors_together() -> None:
    assert aggregate_errors(["a"]) == aggregate_errors(["a", "a"]) == "a"
    assert aggregate_errors(["a", "b"]) == "[a, b]"


def test_all_facts_that_cannot_be_had_are_told() -> None:
    wanted = [("c", "limits.gpu"), ("x", "limits.cpu"), ("c", "limits.cpu"), ("x", "limits.memory")]
    items = [
        {"path": str(number), "resourceFieldRef": {"containerName": name, "resource": resource}}
        for number, (name, resource) in enumerate(wanted)
    ]
    told = "unsupported container resource : limits.gpu, container x not found"
    with pytest.raises(VolumeError) as caught:
        files({"downwardAPI": {"items": items}}, Objects())
    assert str(caught.value) == f"[{told}]"
    sources = [{"downwardAPI": {"items": items}}, {"secret": {"name": "y"}}]
    with pytest.raises(VolumeError) as caught:
        files({"projected": {"sources": sources}}, Objects())
    assert str(caught.value) == f'[{told}, secret "y" not found]'


def test_nothing_secret_is_shown() -> None:
    objects = Objects(secrets={"x": v1.Secret(data={"k": b"hidden"})}, tokens={0: "hidden"})
    assert "hidden" not in repr(objects)
    assert "hidden" not in repr(files({"secret": {"secretName": "x"}}, objects))
