"""Which machine and which system the node runs on, as its `nodeInfo` tells.

The files are those cAdvisor reads, so that a node keeps its machine ID when its agent changes.
"""

from __future__ import annotations

import os
import re
from typing import Final

import msgspec

from trio_kubelet.config.version import go_architecture

# Where a system's UUID stands, on PCs, POWER and s390 in turn.
_SYSTEM_UUID_FILES: Final = (
    "/sys/class/dmi/id/product_uuid",
    "/proc/device-tree/system-id",
    "/proc/device-tree/vm,uuid",
    "/etc/machine-id",
)
_OS_RELEASE_FILES: Final = ("/etc/os-release", "/usr/lib/os-release")


class SystemFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What was found; empty where nothing was."""

    architecture: str
    kernel: str = ""
    os_image: str = ""
    machine_id: str = ""
    system_uuid: str = ""
    boot_id: str = ""


def read_system(machine_id_files: str, boot_id_files: str) -> SystemFacts:
    """Looks at the system; the arguments are `--machine-id-file` and `--boot-id-file`. Blocking."""
    uname = os.uname()
    return SystemFacts(
        architecture=go_architecture(uname.machine),
        kernel=uname.release,
        os_image=os_image(_first(*_OS_RELEASE_FILES)),
        machine_id=_first(*machine_id_files.split(",")).strip(),
        system_uuid=_first(*_SYSTEM_UUID_FILES).strip("\0 \t\r\n"),
        boot_id=_first(*boot_id_files.split(",")).strip(),
    )


def os_image(os_release: str) -> str:
    """The system's name out of an os-release file; "" for none at all is Unknown."""
    if not os_release:
        return "Unknown"
    match = re.search(r"PRETTY_NAME=(.*)", os_release)
    return match[1].strip('"') if match else "Linux"


def _first(*paths: str) -> str:
    """The text of the first file that can be read."""
    for path in paths:
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                return file.read()
        except OSError:
            continue
    return ""
