"""The merge of a SET with 1,000 pods of which one changed; budget 2 ms.

Run: `python -m pytest bench/bench_merge.py`. Two cases: a source that hands the same objects again (as
the file source and a watch do), and one that decoded everything anew (a list after an outage).
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bench.bench_uid import manifest
from trio_kubelet.api.v1 import Pod
from trio_kubelet.podinfo.updates import PodOperation
from trio_kubelet.sources.manifest import Origin, static_pod
from trio_kubelet.sources.merge import merge

SIZE = 1000
SECOND = 1_000_000_000


def thousand_pods() -> list[Pod]:
    one = manifest()
    return [
        static_pod(one.replace(b"name: kubeadm-apiserver", b"name: p%d" % n), Origin("n", "file", f"/{n}"))
        for n in range(SIZE)
    ]


@pytest.mark.parametrize("decoded_anew", [False, True], ids=["same objects", "decoded anew"])
def test_set_of_1000_pods_with_one_change(benchmark: Any, decoded_anew: bool) -> None:
    pods = thousand_pods()
    known = merge({}, PodOperation.SET, pods, "file", SECOND).known
    if decoded_anew:
        pods = [msgspec.json.decode(msgspec.json.encode(pod), type=Pod) for pod in pods]
    spec = msgspec.structs.replace(pods[500].spec, priority=7)
    pods[500] = msgspec.structs.replace(pods[500], spec=spec)
    result = benchmark(merge, known, PodOperation.SET, pods, "file", 2 * SECOND)
    assert len(result.updates) == 1
