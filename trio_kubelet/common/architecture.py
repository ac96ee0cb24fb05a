"""Names of machine architectures: Go's, which Kubernetes and OCI images use."""

from __future__ import annotations

from typing import Final

_OTHERWISE: Final = {
    "x86_64": "amd64",
    "aarch64": "arm64",
    "armv7l": "arm",
    "i686": "386",
    "loongarch64": "loong64",
}


def go_architecture(machine: str) -> str:
    """Go's name of an architecture (GOARCH); `machine` as `uname -m` says it."""
    return _OTHERWISE.get(machine, machine)
