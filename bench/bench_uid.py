"""The UIDs of 500 defaulted static pods, text and hash; budget 50 ms.

Run: `python -m pytest bench/bench_uid.py`.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

from trio_kubelet.api.decode import decode
from trio_kubelet.api.defaults import set_pod_defaults
from trio_kubelet.api.managed_fields import ManifestPod
from trio_kubelet.api.uid_text import uid_text
from trio_kubelet.api.yaml import load
from trio_kubelet.native.hashes import static_pod_uid
from trio_kubelet.sources.manifest import Origin, static_pod, unify

MANIFESTS = pathlib.Path(__file__).parents[1] / "tests" / "golden" / "static-pods.json"
SIZE = 500


def manifest() -> bytes:
    """A control plane manifest as kubeadm writes it."""
    vectors = json.loads(MANIFESTS.read_text())["vectors"]
    text: str = next(vector["manifest"] for vector in vectors if "kubeadm" in vector["file"])
    return text.encode()


def test_uids_of_500_pods(benchmark: Any) -> None:
    pods = [decode(load(manifest()), ManifestPod) for _ in range(SIZE)]
    for pod in pods:
        set_pod_defaults(pod)
        unify(pod)

    def uids() -> set[str]:
        return {static_pod_uid(f"{uid_text(pod)}host:nfile:/{n}".encode()) for n, pod in enumerate(pods)}

    assert len(benchmark(uids)) == SIZE


def test_one_manifest_from_bytes_to_pod(benchmark: Any) -> None:
    pod = benchmark(static_pod, manifest(), Origin("node-a", "file", "/etc/kubernetes/manifests/a.yaml"))
    assert pod.metadata.uid
