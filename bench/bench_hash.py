"""The kubelet's hashes in C and in plain Python: UIDs of 500 manifests, hashes of 10,000 containers."""

from __future__ import annotations

import json
import pathlib
from types import ModuleType

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from trio_kubelet.native import hashes, pure_hashes

GOLDEN = pathlib.Path(__file__).parent.parent / "tests" / "golden" / "static-pods.json"
MANIFESTS = 500


def uid_texts() -> list[bytes]:
    """The texts under 500 static pods' UIDs: the recorded ones, each made different."""
    vectors = json.loads(GOLDEN.read_text())["vectors"]
    recorded = [vector["uidHashInput"] for vector in vectors if vector["accepted"]]
    return [f"{recorded[i % len(recorded)]}host:node-{i}file:/m.yaml".encode() for i in range(MANIFESTS)]


@pytest.mark.parametrize("module", [hashes, pure_hashes], ids=["c", "python"])
def test_static_pod_uids(benchmark: BenchmarkFixture, module: ModuleType) -> None:
    texts = uid_texts()
    benchmark.group = f"hash: UIDs of {MANIFESTS} manifests"
    benchmark.extra_info["bytes"] = sum(map(len, texts))
    digests = benchmark.pedantic(  # type: ignore[no-untyped-call]
        lambda: {module.fnv1a128(text) for text in texts}, rounds=3
    )
    assert len(digests) == MANIFESTS


@pytest.mark.parametrize("module", [hashes, pure_hashes], ids=["c", "python"])
def test_container_hashes(benchmark: BenchmarkFixture, module: ModuleType) -> None:
    names = [(f"c{i}".encode(), f"registry.example/app@sha256:{i:064x}".encode()) for i in range(10_000)]
    hash_of = module.container_hash_number
    benchmark.group = "hash: 10000 containers"
    found = benchmark.pedantic(  # type: ignore[no-untyped-call]
        lambda: {hash_of(name, image) for name, image in names}, rounds=3
    )
    assert len(found) > 9_990
