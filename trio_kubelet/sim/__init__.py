"""A simulated container runtime: thousands of containers without a single process.

It stands in for containerd where that cannot run, where thousands of containers are wanted, and where things
have to go wrong on purpose. `sim.runtime` holds the state machines, `sim.service` answers CRI calls over them
with injected faults, and the two ways in are `sim.server` (gRPC on a unix socket) and `sim.door` (in memory,
for the deterministic simulation of the whole agent).
"""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str]) -> int:
    """Runs `trio-kubelet sim …`; returns the exit status."""
    from trio_kubelet.sim.cli import run

    return run(argv)
