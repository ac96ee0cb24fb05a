"""Compiles the agent's modules ahead, and puts the code of all that a start imports into one file.

`python -m trio_kubelet.precompile`, after an installation and by who may write into it. An agent starts
without it, only a sixth later (see `common.start_bundle`).
"""

from __future__ import annotations

import compileall
import os
import sys
from importlib import import_module
from typing import Final

from trio_kubelet.common.start_bundle import bundle_path, write_bundle

PACKAGE: Final = os.path.dirname(__file__)
STARTED: Final = (
    *("cli", "config.load", "agent", "common.service", "membership", "kube.network", "kube.websocket"),
    *("kube.bootstrap", "sources.manifest", "api.yaml_reader", "afterwards", "grpc.grpclib_calls"),
)
"""What imports everything that an agent has imported when it has settled."""


def main() -> int:
    """Returns the exit code."""
    if not compileall.compile_dir(PACKAGE, quiet=1):
        return 1
    for name in STARTED:
        import_module(f"trio_kubelet.{name}")
    loaded = {name: module for name, module in sys.modules.items() if name != "__main__"}
    write_bundle(bundle_path(PACKAGE), loaded)
    return 0


if __name__ == "__main__":
    sys.exit(main())
