"""The file beside a mounted CSI volume that says whose it is: the kubelet's `vol_data.json`. Blocking."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Final

import msgspec

from trio_kubelet.common.deep_json import decode_flat
from trio_kubelet.common.go_words import error_words
from trio_kubelet.common.small_files import replace_small, unfinished
from trio_kubelet.storage.errors import OperationError
from trio_kubelet.storage.names import DATA_FILE

_LARGEST: Final = 64 << 10
SPEC_NAME: Final = "specVolID"
HANDLE: Final = "volumeHandle"
DRIVER: Final = "driverName"
NODE: Final = "nodeName"
ATTACHMENT: Final = "attachmentID"
LIFECYCLE: Final = "volumeLifecycleMode"


def save(directory: str, data: Mapping[str, str]) -> None:
    """Writes the file, whole or not at all. Raises OSError."""
    text = json.dumps(dict(sorted(data.items())), separators=(",", ":"), ensure_ascii=False) + "\n"
    replace_small(f"{directory}/{DATA_FILE}", text.encode(errors="surrogateescape"), mode=0o644, sync=False)


def load(directory: str) -> dict[str, str] | None:
    """What the file says, None if there is none. Raises OperationError for one that cannot be read."""
    path = f"{directory}/{DATA_FILE}"
    try:
        with open(path, "rb") as file:
            return decode_flat(file.read(_LARGEST), dict[str, str])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise OperationError(
            f"kubernetes.io/csi: failed to parse volume data file [{path}]: {error_words(error)}"
        ) from error


def remove_mount_dir(mount_path: str, mounted: bool) -> None:
    """Removes the (empty) directory of a mount that has ended, the file, and the directory of both.

    Nothing happens while something is mounted. Raises OSError.
    """
    if mounted:
        return
    parent = os.path.dirname(mount_path)
    for remove, path in (
        (os.rmdir, mount_path),
        (os.unlink, unfinished(f"{parent}/{DATA_FILE}")),
        (os.unlink, f"{parent}/{DATA_FILE}"),
        (os.rmdir, parent),
    ):
        try:
            remove(path)
        except FileNotFoundError:
            continue
