"""Which version this is, and which kubelet it stands in for."""

from __future__ import annotations

import platform
import sys
from typing import Final

KUBELET_VERSION: Final = "v1.36.2"
_GO_NAMES: Final = {
    "x86_64": "amd64",
    "aarch64": "arm64",
    "armv7l": "arm",
    "i686": "386",
    "loongarch64": "loong64",
}


def go_architecture(machine: str) -> str:
    """Go's name of an architecture (GOARCH); `machine` as `uname -m` says it."""
    return _GO_NAMES.get(machine, machine)


def package_version() -> str:
    """The installed version of this package, or `unknown` when it runs from a bare source tree."""
    from importlib import metadata  # slow to import, and only wanted for this

    try:
        return metadata.version("trio-kubelet")
    except metadata.PackageNotFoundError:
        return "unknown"


def build_info() -> dict[str, str]:
    """What `kubernetes_build_info` says, by its labels: which kubelet this stands for, and what runs it.
    There is no build, so nothing of one is said.
    """
    major, minor, _ = KUBELET_VERSION.removeprefix("v").split(".")
    return {
        "major": major,
        "minor": minor,
        "git_version": KUBELET_VERSION,
        "git_commit": "",
        "git_tree_state": "",
        "build_date": "",
        "go_version": f"python{platform.python_version()}",
        "compiler": platform.python_implementation().lower(),
        "platform": f"{sys.platform}/{go_architecture(platform.machine())}",
    }


def version_text(program: str) -> str:
    """The line of `--version`. To who calls the `program` kubelet it is the kubelet's: kubeadm reads it, and
    goes on with nothing else.
    """
    if program == "kubelet":
        return f"Kubernetes {KUBELET_VERSION}"
    return f"trio-kubelet {package_version()} (behaves like kubelet {KUBELET_VERSION.rpartition('.')[0]})"


def version_parts() -> str:
    """The line of `--version=raw`."""
    parts = {
        "Version": package_version(),
        "KubeletVersion": KUBELET_VERSION,
        "Python": platform.python_version(),
        "Platform": f"{sys.platform}/{go_architecture(platform.machine())}",
    }
    return "trio_kubelet.Info{" + ", ".join(f'{key}:"{value}"' for key, value in parts.items()) + "}"
