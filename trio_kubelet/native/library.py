"""Whether the C extension is there: `core` is its module, or None when plain Python takes its place."""

from __future__ import annotations

import importlib
import os
from types import ModuleType

from trio_kubelet.common.log import get_logger

log = get_logger(__name__)

PURE_VARIABLE = "TRIO_KUBELET_PURE"
"""Environment variable; `1` asks for plain Python even where the extension is built."""


def load() -> ModuleType | None:
    """The extension module, or None and a warning in the log that says why."""
    if os.environ.get(PURE_VARIABLE) == "1":
        reason = f"{PURE_VARIABLE}=1"
    else:
        try:
            return importlib.import_module("trio_kubelet.native._core")
        except ImportError as err:
            reason = str(err)
    log.warning("Running without the C extension: relists and hashes are many times slower", reason=reason)
    return None


core = load()
