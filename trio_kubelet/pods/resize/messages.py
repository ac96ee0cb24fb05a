"""The messages of events about resizes: they have the resources asked for (kubelet: `events/resize.go`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from trio_kubelet.api.v1 import Container, Pod


def resize_message(what: str, pod: Pod, error: str = "") -> str:
    """`Pod resize <what>: {…}`, in the notation of Go's encoder. Pure."""
    summary: dict[str, Any] = {}
    if pod.spec.init_containers:
        summary["initContainers"] = _resources(pod.spec.init_containers)
    if pod.spec.containers:
        summary["containers"] = _resources(pod.spec.containers)
    summary["generation"] = pod.metadata.generation
    if error:
        summary["error"] = error
    text = json.dumps(summary, separators=(",", ":"), ensure_ascii=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return f"Pod resize {what}: {text}"


def _resources(containers: Sequence[Container]) -> list[dict[str, Any]]:
    return [{"name": c.name, "resources": _requirements(c)} for c in containers]


def _requirements(container: Container) -> dict[str, Any]:
    resources = container.resources
    fields: dict[str, Any] = {}
    for name, amounts in (("limits", resources.limits), ("requests", resources.requests)):
        if amounts:
            fields[name] = dict(sorted(amounts.items()))
    if resources.claims:
        fields["claims"] = msgspec.to_builtins(resources.claims)
    return fields
