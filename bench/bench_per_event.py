"""What one event costs beside 50 and beside 1,000 pods, CPU microseconds: it must not grow with their number.

`python -m bench.bench_per_event`; the last line is JSON. Each row has its baseline in the same run: the same
event handled by going through all pods, as a merge of the whole set, a sum over all and a search through all
do.
"""

from __future__ import annotations

import copy
import json
import os
import time
from collections.abc import Callable

import msgspec
import trio

from bench.bench_watch import a_pod, encode
from tests.pods.build import make_pod
from trio_kubelet.api import v1
from trio_kubelet.api.v1 import Pod
from trio_kubelet.common.agenda import Agenda
from trio_kubelet.kube.reflector_core import ReflectorCore
from trio_kubelet.podinfo.totals import pod_requests
from trio_kubelet.podinfo.updates import PodOperation
from trio_kubelet.pods.admission.fit import NodeFacts, failures
from trio_kubelet.pods.admission.occupancy import Occupancy
from trio_kubelet.sources.merge import KnownPods, merge

SIZES = (50, 200, 1000)
ROUNDS = 300


def cost(work: Callable[[int], object]) -> float:
    """Microseconds of CPU for one event, the least of five runs."""

    def once() -> float:
        began = time.process_time()
        for number in range(ROUNDS):
            work(number)
        return (time.process_time() - began) / ROUNDS * 1e6

    return round(min(once() for _ in range(5)), 1)


def merging(size: int) -> dict[str, float]:
    """A watch event of one pod whose status changed, from its bytes to what PodConfig tells."""
    core = ReflectorCore(Pod, {})
    core.next_step(0.0, 0.0)
    given = [a_pod(number) for number in range(size)]
    for each in given:
        core.on_event(encode({"type": "ADDED", "object": each}))
    end = {"metadata": {"resourceVersion": "1", "annotations": {"k8s.io/initial-events-end": "true"}}}
    core.on_event(encode({"type": "BOOKMARK", "object": end}))
    changed = copy.deepcopy(given[size // 2])
    events = []
    for phase in ("Running", "Pending"):
        changed["status"]["phase"] = phase
        events.append(encode({"type": "MODIFIED", "object": changed}))
    index = KnownPods()
    index.apply(PodOperation.SET, list(core.objects.values()), "api", 1)
    whole = merge({}, PodOperation.SET, list(core.objects.values()), "api", 1).known

    def one(number: int) -> None:
        reaction = core.on_event(events[number % 2])
        index.apply(PodOperation.UPDATE, [core.objects[reaction.key]], "api", 2)

    def every(number: int) -> None:
        nonlocal whole
        core.on_event(events[number % 2])
        whole = merge(whole, PodOperation.SET, tuple(core.objects.values()), "api", 2).known

    return {"one": cost(one), "all": cost(every)}


def admitting(size: int) -> dict[str, float]:
    """Whether a new pod fits, and counting it in."""
    resources = v1.ResourceRequirements(requests={"cpu": "1m", "memory": "1Mi"})
    containers = [v1.Container(name="c", image="i", resources=resources)]
    pods = [make_pod(f"p{number}", containers=containers) for number in range(size)]
    node = NodeFacts(name="n", allocatable={"cpu": "64", "memory": "64Gi", "pods": "5000"})
    occupancy = Occupancy(pods)
    new = make_pod("new", containers=containers)

    def one(number: int) -> None:
        assert not failures(new, occupancy.beside(new.metadata.uid), node)
        occupancy.put(msgspec.structs.replace(new))

    def every(number: int) -> None:
        assert not failures(new, Occupancy(pods).beside(new.metadata.uid), node)
        pod_requests(new)

    return {"one": cost(one), "all": cost(every)}


def coming_round(size: int) -> dict[str, float]:
    """One worker has done its round: when is which due next?"""
    moments = {f"uid-{number}": 100.0 + number for number in range(size)}
    rounds, due = Agenda[str](), 1000.0
    for uid, moment in moments.items():
        rounds.put(uid, moment)

    def one(number: int) -> None:
        nonlocal due
        due += 1
        rounds.put(f"uid-{number % size}", due)
        rounds.first()

    return {"one": cost(one), "all": cost(lambda number: min(moments.values()))}


EVENTS = {"watch event": merging, "admission": admitting, "next round": coming_round}


async def figures() -> dict[str, dict[int, dict[str, float]]]:
    """By event and number of pods: what it costs so, and by going through all."""
    return {name: {size: measure(size) for size in SIZES} for name, measure in EVENTS.items()}


def main() -> None:
    found = trio.run(figures)
    for name, sizes in found.items():
        for size, each in sizes.items():
            print(f"{name:12} {size:5} pods  {each['one']:8.1f} µs  through all {each['all']:9.1f} µs")
    print(json.dumps({"load": os.getloadavg()[0], **found}))


if __name__ == "__main__":
    main()
