"""What the relist is measured against: reading the bytes, and protobuf decode + dictionary diff."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.native.library import core

POD_UID_LABEL = "io.kubernetes.pod.uid"
States = dict[tuple[str, str], int]


def read_bytes(*lists: bytes) -> None:
    """Reads each list once in eight-byte words (C), the floor for anything that looks at the bytes."""
    if core is None:
        raise RuntimeError("the C extension is not built")
    for data in lists:
        core.lib.tk_read_words(data, len(data))


def decode(sandboxes: bytes, containers: bytes) -> tuple[object, object]:
    """Python's protobuf library (upb, in C) alone."""
    return cri.ListPodSandboxResponse.FromString(sandboxes), cri.ListContainersResponse.FromString(containers)


class ProtobufTable:
    """Decodes with protobuf and compares dictionaries: the relist as one would write it without C."""

    def __init__(self) -> None:
        self._states: States = {}

    def relist(self, sandboxes: bytes, containers: bytes) -> list[tuple[str, str]]:
        """The (pod uid, id) whose state differs from the last call's."""
        states: States = {}
        for item in cri.ListPodSandboxResponse.FromString(sandboxes).items:
            states[item.metadata.uid, item.id] = item.state
        for container in cri.ListContainersResponse.FromString(containers).containers:
            states[container.labels.get(POD_UID_LABEL, ""), container.id] = container.state
        old = self._states
        changed = [key for key, state in states.items() if old.get(key) != state]
        changed += old.keys() - states.keys()
        self._states = states
        return changed


def best_ms(runs: Sequence[Callable[[], object]], seconds: float, least: int = 3) -> float:
    """The shortest time in milliseconds of calling the functions in turn for about that long."""
    best = float("inf")
    end = time.perf_counter() + seconds
    rounds = 0
    while rounds < least or time.perf_counter() < end:
        run = runs[rounds % len(runs)]
        begin = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - begin)
        rounds += 1
    return best * 1e3
