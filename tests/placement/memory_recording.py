"""Scenarios recorded from the memory manager of kubelet v1.36.2, played again."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, TypeAlias

from tests.pods.build import make_pod
from trio_kubelet.api import v1
from trio_kubelet.api.containers import regular_containers
from trio_kubelet.machine.numa import NUMAMemory
from trio_kubelet.placement.hints import Hint, Hints, mask_of
from trio_kubelet.placement.memory_policy import (
    InvalidMemory,
    MemoryPolicy,
    NoMemory,
    Reusable,
    manages,
    reusable_after,
)
from trio_kubelet.placement.memory_state import MemoryState

Json: TypeAlias = Any
"""As it was recorded."""
_WHICH = re.compile(r"\(pod: .*?\)")
"""Of several containers the kubelet names any."""
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


def pod_of(recorded: Json) -> v1.Pod:
    def container(each: Json) -> v1.Container:
        resources = v1.ResourceRequirements(
            requests=each["resources"], limits=each["resources"] if recorded["guaranteed"] else None
        )
        always = "Always" if each["sidecar"] else None
        return v1.Container(name=each["name"], resources=resources, restart_policy=always)

    return make_pod(
        "pod",
        uid=recorded["uid"],
        containers=[container(each) for each in recorded["main"]],
        spec={"init_containers": [container(each) for each in recorded["init"]]},
    )


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
        uid: {
            name: [{"numaAffinity": list(b.nodes), "type": b.kind, "size": b.size} for b in blocks]
            for name, blocks in containers.items()
        }
        for uid, containers in state.assigned.items()
    }
    return {"machineState": machine, **({"entries": _in_order(entries)} if entries else {})}


def recorded_state(file: str) -> Json:
    content = json.loads(file)
    found = {"machineState": content["machineState"]}
    return found | ({"entries": _in_order(content["entries"])} if content.get("entries") else {})


def _in_order(entries: Json) -> Json:
    return {
        uid: {name: sorted(blocks, key=lambda b: b["type"]) for name, blocks in containers.items()}
        for uid, containers in entries.items()
    }


def _hints(hints: Hints) -> Json:
    return {kind: [(hint.mask, hint.preferred) for hint in each or ()] for kind, each in hints.items()}


def play(scenario: Json) -> Iterator[tuple[Json, Json]]:
    """What was recorded and what is so here, step by step."""
    policy = policy_of(scenario)
    state = policy.check(MemoryState())
    pods: dict[str, v1.Pod] = {}
    reusable: dict[str, Reusable] = {}
    for step in scenario["steps"]:
        pod = pods.get(step.get("uid", ""))
        container = _container(pod, step.get("container", ""))
        error = ""
        match step["op"]:
            case "pod":
                made = pod_of(step["pod"])
                pods[made.metadata.uid] = made
            case "pod_hints" | "hints":
                assert pod is not None
                known = reusable.get(pod.metadata.uid, {})
                if container is None:
                    found = policy.pod_hints(state, pod, known)
                else:
                    found = policy.hints(state, pod, container, known)
                wanted = {
                    kind: [(mask_of(nodes), preferred) for nodes, preferred in hints]
                    for kind, hints in step["hints"].items()
                }
                yield wanted, _hints(found)
            case "allocate":
                assert pod is not None
                assert container is not None
                affinity = (
                    Hint(mask_of(step["affinity"][0]), step["affinity"][1]) if step["affinity"] else None
                )
                uid = pod.metadata.uid
                try:
                    if manages(pod):
                        known = reusable.get(uid, {})
                        state = policy.allocate(state, pod, container, affinity, known)
                        blocks = state.of(uid, container.name) or ()
                        reusable = {uid: reusable_after(pod, container, blocks, known)}
                except NoMemory as exc:
                    error = str(exc)
                yield step["error"], error
            case "remove":
                state = state.without_container(step["uid"], step["container"])
            case "restart" | "other_machine":
                other = policy if step["op"] == "restart" else policy_of(step)
                try:
                    other.check(state)
                except InvalidMemory as exc:
                    error = str(exc)
                if step["op"] == "restart":
                    reusable = {}
                if step["error"].startswith("PANIC"):  # the kubelet's own end
                    assert error
                else:
                    yield _WHICH.sub("", step["error"]), _WHICH.sub("", error)
        if "file" in step:
            yield recorded_state(step["file"]), plain(state)


def _container(pod: v1.Pod | None, name: str) -> v1.Container | None:
    if pod is None or not name:
        return None
    return next(each for each in regular_containers(pod.spec) if each.name == name)
