"""`graceful_node_shutdown_state`: when the last shutdown began and ended, for the metrics after the boot."""

from __future__ import annotations

import os
from typing import Final

import msgspec

from trio_kubelet.nodeshutdown.plan import ShutdownState

NAME: Final = "graceful_node_shutdown_state"


def load(root_dir: str) -> ShutdownState:
    """What the last shutdown left; nothing if there was none. Blocking. Raises OSError and ValueError."""
    try:
        with open(os.path.join(root_dir, NAME), "rb") as file:
            return msgspec.json.decode(file.read(4096), type=ShutdownState)
    except FileNotFoundError:
        return ShutdownState()


def store(root_dir: str, state: ShutdownState) -> None:
    """Writes the file, whole or not at all. Blocking. Raises OSError."""
    path = os.path.join(root_dir, NAME)
    fresh = os.path.join(root_dir, f".tmp-{NAME}")
    with open(fresh, "wb") as file:
        file.write(msgspec.json.encode(state))
        os.fchmod(file.fileno(), 0o644)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)
