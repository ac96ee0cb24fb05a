"""Scenarios recorded from the memory manager of kubelet v1.36.2, played again."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

import msgspec

from tests.placement import recording
from tests.placement.recording import Json
from trio_kubelet.machine.numa import NUMAMemory
from trio_kubelet.placement.doors import PlacementStateError
from trio_kubelet.placement.memory_policy import MemoryPolicy, Reusable
from trio_kubelet.placement.memory_state import Block, MemoryState
from trio_kubelet.placement.pod_level import PodLevel

_WHICH = re.compile(r"\(pod: .*?\)")
"""Of several containers the kubelet names any."""
_NOTHING: Reusable = {}
_NAMES = {"2048": "hugepages-2Mi", "1048576": "hugepages-1Gi"}


def nodes_of(recorded: list[Json]) -> list[NUMAMemory]:
    return [
        NUMAMemory(
            node["Id"],
            node["Memory"],
            {_NAMES[size]: int(size) * 1024 * count for size, count in node["Huge"].items()},
        )
        for node in recorded
    ]


def policy_of(recorded: Json) -> MemoryPolicy:
    reserved = {int(node): kinds for node, kinds in (recorded["reserved"] or {}).items()}
    return MemoryPolicy(nodes_of(recorded["nodes"]), reserved)


def plain(state: MemoryState) -> Json:
    """As in the file, with the blocks of each container in order."""
    machine = {
        str(number): {
            "numberOfAssignments": node.assignments,
            "memoryMap": {
                kind: {
                    "total": table.total,
                    "systemReserved": table.system_reserved,
                    "allocatable": table.allocatable,
                    "reserved": table.reserved,
                    "free": table.free,
                }
                for kind, table in node.tables.items()
            },
            "cells": list(node.cells),
        }
        for number, node in state.machine.items()
    }
    entries = {
        uid: {name: _blocks(blocks) for name, blocks in containers.items()}
        for uid, containers in state.assigned.items()
    }
    pods = {uid: _blocks(blocks) for uid, blocks in state.pods.items()}
    return {"machineState": machine, "entries": _in_order(entries), "pods": _in_order({"": pods})[""]}


def _blocks(blocks: Iterable[Block]) -> Json:
    return [{"numaAffinity": list(b.nodes), "type": b.kind, "size": b.size} for b in blocks]


def recorded_state(file: str) -> Json:
    content = json.loads(file)
    pods = {uid: entry.get("memoryBlocks", []) for uid, entry in content.get("podEntries", {}).items()}
    return {
        "machineState": content["machineState"],
        "entries": _in_order(content.get("entries", {})),
        "pods": _in_order({"": pods})[""],
    }


def _in_order(entries: Json) -> Json:
    return {
        uid: {name: sorted(blocks, key=lambda b: b["type"]) for name, blocks in containers.items()}
        for uid, containers in entries.items()
    }


def play(scenario: Json) -> Iterator[tuple[Json, Json]]:
    """What was recorded and what is so here, step by step."""
    policy = policy_of(scenario)

    def at(level: PodLevel) -> MemoryPolicy:
        return msgspec.structs.replace(policy, pod_level=level)

    gives = at(PodLevel.BY_POD if scenario.get("pod_level") else PodLevel.SHARED).manages
    for step, state, hints, error in recording.play(scenario, at, gives, MemoryState(), _NOTHING):
        if step["op"] == "other_machine":
            try:
                policy_of(step).check(state)
            except PlacementStateError as exc:
                error = str(exc)
        if "hints" in step:
            yield recording.recorded_hints(step), hints
        elif step.get("error", "").startswith("PANIC"):  # the kubelet's own end
            assert error
        else:
            yield _WHICH.sub("", step.get("error", "")), _WHICH.sub("", error)
        if "file" in step:
            yield recorded_state(step["file"]), plain(state)
