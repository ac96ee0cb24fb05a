"""What a runtime's verbose status says of its configuration, beyond the CRI: JSON under names of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any


def sandbox_image(info: Mapping[str, str]) -> str:
    """The image of sandboxes. Empty if it is not told, as by containerd 2.x."""
    for config in _configurations(info):
        if isinstance(found := config.get("sandboxImage"), str) and found:
            return found
    return ""


def cgroup_driver(info: Mapping[str, str]) -> str:
    """`systemd` or `cgroupfs`, as containerd 1.x tells it of its default handler. Empty if it is not told."""
    for config in _configurations(info):
        containerd = _within(config, "containerd")
        handlers, name = _within(containerd, "runtimes"), containerd.get("defaultRuntimeName")
        handler = _within(handlers, name) if isinstance(name, str) else {}
        if isinstance(systemd := _within(handler, "options").get("SystemdCgroup"), bool):
            return "systemd" if systemd else "cgroupfs"
    return ""


def _configurations(info: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    for text in info.values():
        try:
            config = json.loads(text)
        except ValueError:
            continue
        if isinstance(config, dict):
            yield config


def _within(table: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = table.get(name)
    return found if isinstance(found, dict) else {}
