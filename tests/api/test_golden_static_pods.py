"""What Kubernetes v1.36 made of manifests, recorded, against what this agent makes of them."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import msgspec
import pytest

from trio_kubelet.api.decode import decode
from trio_kubelet.api.defaults import set_pod_defaults
from trio_kubelet.api.errors import ManifestError
from trio_kubelet.api.managed_fields import ManifestPod
from trio_kubelet.api.pod_rules import PodRules
from trio_kubelet.api.uid_text import uid_text
from trio_kubelet.api.v1 import Pod
from trio_kubelet.api.yaml import load
from trio_kubelet.native.hashes import container_hash
from trio_kubelet.podinfo.updates import is_mirror, is_static
from trio_kubelet.sources.manifest import Origin, static_pod, static_pods, unify

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"
NODE = "node-a"


def vectors(name: str) -> list[Any]:
    return [
        pytest.param(vector, id=vector.get("name") or pathlib.Path(vector.get("file", "")).name)
        for vector in json.loads((GOLDEN / name).read_text())["vectors"]
    ]


def as_json(pod: Pod) -> dict[str, Any]:
    """The pod as the recordings have it: without status."""
    tree: dict[str, Any] = json.loads(msgspec.json.encode(pod))
    tree.pop("status", None)
    return tree


def make(vector: dict[str, Any], source: str = "file") -> Pod:
    location = vector.get("file", "/etc/kubernetes/manifests/x.yaml")
    return static_pod(vector["manifest"].encode(), Origin(NODE, source, location))


@pytest.mark.parametrize("vector", vectors("static-pods.json"))
def test_recorded_kubelet(vector: dict[str, Any]) -> None:
    if vector["accepted"]:
        assert as_json(make(vector)) == vector["pod"]
        return
    with pytest.raises(ManifestError) as caught:
        make(vector)
    recorded = vector["error"]
    if recorded.startswith("invalid pod: "):
        assert str(caught.value) == recorded
    if recorded.startswith("invalid pod: ["):
        field = recorded.removeprefix("invalid pod: [").partition(": ")[0]
        assert [error.field for error in caught.value.errors] == [field]


@pytest.mark.parametrize("vector", vectors("static-pods.json"))
def test_hashed_text(vector: dict[str, Any]) -> None:
    if vector["accepted"] and vector.get("uidHashInput"):
        pod = decode(load(vector["manifest"].encode()), ManifestPod)
        set_pod_defaults(pod)
        unify(pod)
        assert uid_text(pod) == vector["uidHashInput"]


@pytest.mark.parametrize("vector", vectors("static-pods-more.json"))
def test_recorded_api_machinery(vector: dict[str, Any]) -> None:
    if vector["accepted"]:
        mine = as_json(make(vector))
        mine["metadata"]["annotations"].pop("kubernetes.io/config.source")
        assert mine["metadata"]["uid"] == vector["uid"]
        assert mine == vector["pod"]
        return
    with pytest.raises(ManifestError) as caught:
        make(vector)
    if vector["stage"] == "validate":
        assert sorted({error.field for error in caught.value.errors}) == vector["fields"]


@pytest.mark.parametrize("vector", vectors("container-hash.json"))
def test_container_hash(vector: dict[str, Any]) -> None:
    assert container_hash(vector["name"], vector["image"]) == vector["hash"]


def test_the_http_source_leaves_out_host_and_toleration() -> None:
    vector = next(param.values[0] for param in vectors("static-pods.json") if param.id == "minimal.json")
    from_file, from_url = make(vector), make(vector, "http")
    assert from_url.metadata.uid != from_file.metadata.uid
    assert from_url.spec.tolerations is None
    assert from_url.metadata.annotations is not None
    assert from_url.metadata.annotations["kubernetes.io/config.source"] == "http"


def test_a_manifest_copied_from_a_mirror_is_a_static_pod() -> None:
    annotations = dict.fromkeys(("mirror", "hash", "source", "seen"), "somebody")
    metadata = {"name": "a", "annotations": {f"kubernetes.io/config.{k}": v for k, v in annotations.items()}}
    spec = {"containers": [{"name": "c", "image": "b"}]}
    body = json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}).encode()
    pod = static_pod(body, Origin(NODE, "file", "/x"))
    assert not is_mirror(pod)
    assert is_static(pod)


def test_users_of_its_own_on_the_network_of_the_host_need_the_feature_gate() -> None:
    spec = {"hostNetwork": True, "hostUsers": False, "containers": [{"name": "c", "image": "b"}]}
    body = json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": spec}).encode()
    with pytest.raises(ManifestError, match=r"spec\.hostNetwork"):
        static_pod(body, Origin(NODE, "file", "/x"))
    pod = static_pod(body, Origin(NODE, "file", "/x", rules=PodRules(host_network_users=True)))
    assert pod.spec.host_network
    assert pod.spec.host_users is False


def test_a_list_names_the_item_that_is_wrong() -> None:
    good = {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c", "image": "b"}]}}
    bad = {"metadata": {"name": "b"}, "spec": {"containers": [{"name": "c"}]}}
    origin = Origin(NODE, "http", "http://example.com/pods")
    body = {"apiVersion": "v1", "kind": "PodList", "items": [good, good]}
    assert [pod.metadata.name for pod in static_pods(json.dumps(body).encode(), origin)] == ["a-node-a"] * 2
    body["items"] = [good, bad]
    with pytest.raises(ManifestError, match=r"items\[1\]\.spec\.containers\[0\]\.image"):
        static_pods(json.dumps(body).encode(), origin)
