"""The directories a kubelet has, with its modes and its words when one cannot be made (`setupDataDirs`)."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from trio_kubelet.common.go_words import os_words
from trio_kubelet.volumes.linux import make_rshared

_CHECKPOINTS = "error creating checkpoint directory"


def make_data_dirs(root_dir: str, pod_logs_dir: str, container_logs_dir: str, *, checkpoints: bool) -> None:
    """Makes them; the root directory is shared, so that mounts below it reach containers and come back.

    checkpoints: that of containers' checkpoints, too. Raises OSError, whose text says which step failed.
    Blocking.
    """

    def under_root(name: str) -> Callable[[], None]:
        return partial(_make, os.path.join(root_dir, name), 0o750)

    steps: tuple[tuple[str, Callable[[], None]], ...] = (
        ("error creating root directory", under_root("")),
        (f'error creating pod logs root directory "{pod_logs_dir}"', partial(_make, pod_logs_dir, 0o750)),
        ("error configuring root directory", partial(_share, root_dir)),
        ("error creating pods directory", under_root("pods")),
        ("error creating plugins directory", under_root("plugins")),
        ("error creating plugins registry directory", under_root("plugins_registry")),
        ("error creating podresources directory", under_root("pod-resources")),
        *([(_CHECKPOINTS, partial(_make, f"{root_dir}/checkpoints", 0o700))] if checkpoints else ()),
        (f'failed to create directory "{container_logs_dir}"', partial(_make, container_logs_dir, 0o755)),
    )
    for failure, step in steps:
        try:
            step()
        except OSError as exc:
            raise OSError(f"{failure}: {exc}") from exc


def _make(path: str, mode: int) -> None:
    """Raises OSError, in the words of Go's `os.MkdirAll`."""
    try:
        os.makedirs(path, mode, exist_ok=True)
    except OSError as exc:
        raise OSError(f"mkdir {exc.filename or path}: {os_words(exc)}") from exc


def _share(path: str) -> None:
    try:
        make_rshared(path)
    except OSError as exc:
        raise OSError(f"failed to bind-mount {path}: {os_words(exc)}") from exc
