"""`trio-kubelet sim`: a simulated runtime on a unix socket, for the agent, `crictl` and benchmarks."""

from __future__ import annotations

import argparse
import math
import pathlib
import signal
from collections.abc import Sequence

import trio

from trio_kubelet.common.arguments import Parser, said
from trio_kubelet.common.clock import SystemClock
from trio_kubelet.common.error_groups import leaves
from trio_kubelet.common.go_words import parse_integer
from trio_kubelet.common.log import get_logger
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.sim.faults import Fault, Faults, parse_script, random_script
from trio_kubelet.sim.populate import Population
from trio_kubelet.sim.runtime import SimRuntime
from trio_kubelet.sim.server import serve
from trio_kubelet.sim.service import SimService

log = get_logger(__name__)

_CHURN_PERIOD = 0.1


def parser() -> Parser:
    """The command's arguments."""
    out = Parser(
        prog="trio-kubelet sim",
        description="Serves a simulated container runtime (CRI v1) on a unix socket.",
        allow_abbrev=False,
    )
    out.add_argument("--socket", required=True, help="path of the unix socket to serve on")
    out.add_argument("--pods", type=said(_count), default=0, help="pods that run from the start (default 0)")
    out.add_argument(
        "--containers", type=said(_count), default=1, help="containers in each of them (default 1)"
    )
    out.add_argument(
        "--churn",
        type=said(_rate),
        default=0.0,
        help="containers that die and are replaced per second (default 0)",
    )
    out.add_argument("--seed", type=int, default=0, help="seed of ids, churn and faults (default 0)")
    out.add_argument("--faults", default="", help="JSON file with a script of faults")
    out.add_argument("--chaos", type=int, default=None, help="seed of a made-up script of faults")
    out.add_argument(
        "--unimplemented",
        type=said(_methods),
        default=frozenset(),
        help="comma-separated methods to answer with UNIMPLEMENTED, such as GetContainerEvents",
    )
    out.add_argument(
        "--shared-events",
        action="store_true",
        help="one event queue for all subscribers, as in containerd 1.7",
    )
    return out


def _count(text: str) -> int:
    if (number := parse_integer(text)) < 0:
        raise ValueError(f"{text} is less than none")
    return number


def _rate(text: str) -> float:
    if not 0 <= (number := float(text)) < math.inf:
        raise ValueError(f"{text} is no rate")
    return number


def _methods(text: str) -> frozenset[str]:
    methods = frozenset(filter(None, text.split(",")))
    services = cri.DESCRIPTOR.services_by_name.values()
    known = {method.name for service in services for method in service.methods}
    if unknown := sorted(methods - known):
        raise ValueError(f"the runtime has no method {unknown[0]!r}")
    return methods


def run(argv: Sequence[str]) -> int:
    """Serves until SIGINT or SIGTERM; returns the exit status."""
    args = parser().parse_args(argv)
    failed = False
    try:
        trio.run(_serve, args, _script(args))
    except* (OSError, ValueError) as group:
        failed = True
        for exc in leaves(group):
            log.error("The simulated runtime cannot run", err=exc)
    return int(failed)


def _script(args: argparse.Namespace) -> list[Fault]:
    script = parse_script(pathlib.Path(args.faults).read_bytes()) if args.faults else []
    return script + (random_script(args.chaos) if args.chaos is not None else [])


async def _serve(args: argparse.Namespace, script: list[Fault]) -> None:
    clock = SystemClock()
    service = SimService(
        SimRuntime(args.seed),
        clock,
        faults=Faults(script, args.seed),
        unimplemented=args.unimplemented,
        shared_events=args.shared_events,
        write_logs=True,
    )
    population = Population(service.runtime, args.seed)
    population.add_pods(args.pods, args.containers, clock.now_ns())
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            await nursery.start(service.run)
            if args.churn > 0:
                nursery.start_soon(_churn, population, service, args.churn)
            async with serve(service, args.socket):
                log.info("Serving a simulated runtime", socket=args.socket, pods=args.pods)
                async for _ in signals:
                    break
            nursery.cancel_scope.cancel()


async def _churn(population: Population, service: SimService, per_second: float) -> None:
    """Kills and replaces containers at an even rate, for ever."""
    owed = 0.0
    while True:
        await trio.sleep(_CHURN_PERIOD)
        owed += per_second * _CHURN_PERIOD
        count, owed = int(owed), owed % 1
        population.runtime = service.runtime  # another one after a restart that lost the state
        population.churn(count, service.now_ns())
