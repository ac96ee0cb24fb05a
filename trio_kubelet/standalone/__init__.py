"""`trio-kubelet standalone`: a complete node on one machine, with a container runtime of its own.

It runs a private containerd and the agent in one nursery, on a directory of manifests, and shows what
happens. The parts of this room are imported by `main` only: the agent itself never needs them.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str]) -> int:
    """Run the command with the arguments after `standalone`; returns the exit code."""
    from trio_kubelet.standalone.command import run_command

    return run_command(argv)
