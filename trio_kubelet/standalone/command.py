"""The command `trio-kubelet standalone`: one nursery with a private containerd, the agent and the display.

    run_command
    └─ signals              the first Ctrl-C cancels everything below and waits for the clean-up
       └─ private node      containerd (supervised); afterwards: everything of the node is removed
          ├─ agent          the same code as `trio-kubelet`, configured for this node
          ├─ shim reaper    shims leave their parent; this process adopts and reaps them
          └─ screen         the table

Where no real runtime can run, the simulated one takes containerd's place, and the display says so.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import trio

from trio_kubelet import agent
from trio_kubelet.cli import report
from trio_kubelet.commands.client import SIMULATED_PREFIX, SOCKET_NAME, STANDALONE_BASE
from trio_kubelet.common import log as logging
from trio_kubelet.common.arguments import Parser
from trio_kubelet.common.error_groups import leaves
from trio_kubelet.common.go_words import error_words
from trio_kubelet.common.lanes import STANDALONE
from trio_kubelet.common.service import ServiceManager
from trio_kubelet.config.flag_table import kubelet_flags
from trio_kubelet.config.load import ConfigurationError, Settings, load
from trio_kubelet.config.pflag import FlagError, parse_command_line
from trio_kubelet.server.pages.forward import page_port
from trio_kubelet.standalone import cleanup, cni
from trio_kubelet.standalone.agent import AgentPorts, command_line, configuration, free_ports
from trio_kubelet.standalone.layout import NodeLayout, check_name
from trio_kubelet.standalone.node import Provisions, new_layout, private_node, provide
from trio_kubelet.standalone.packages import DEFAULT_CONTAINERD, PackagesUnavailable
from trio_kubelet.standalone.run import CommandFailed
from trio_kubelet.standalone.screen import Caption, Screen

log = logging.get_logger(__name__)

BASE = Path(STANDALONE_BASE)
_EXAMPLES = Path("examples/manifests")
_OWN_COPY = Path("trio-kubelet-manifests")
_WITHOUT_CGROUPS: dict[str, object] = {"cgroupsPerQOS": False, "enforceNodeAllocatable": []}


class CannotStart(Exception):
    """Why the node cannot be started, for the user."""


@dataclass(frozen=True)
class Options:
    """What the user asked for."""

    manifests: Path
    name: str
    containerd: str
    simulated: bool
    agent_flags: tuple[str, ...]


def parse(argv: Sequence[str]) -> Options:
    """Read the arguments; bad ones end the process with code 1."""
    own = list(argv)
    agent_flags: list[str] = []
    if "--" in own:
        at = own.index("--")
        own, agent_flags = own[:at], own[at + 1 :]
    parser = Parser(
        prog="trio-kubelet standalone",
        description="Runs pods from a directory of manifests on this machine, with a private containerd.",
        epilog="Flags after -- go to the agent.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "manifests", nargs="?", type=Path, help="directory of pod manifests (default: examples)"
    )
    parser.add_argument("--name", default="local", help="the node's name (default: local)")
    parser.add_argument(
        "--containerd",
        default=os.environ.get("TRIO_KUBELET_CONTAINERD", DEFAULT_CONTAINERD),
        help="1.6, 1.7, 2.1, or the directory of its binaries (default: %(default)s)",
    )
    parser.add_argument("--simulated", action="store_true", help="simulate the containers instead")
    given = parser.parse_args(own)
    try:
        check_name(given.name)
    except ValueError as exc:
        parser.error(str(exc))
    manifests = given.manifests or (_EXAMPLES if _EXAMPLES.is_dir() else _OWN_COPY)
    return Options(manifests.absolute(), given.name, given.containerd, given.simulated, tuple(agent_flags))


def run_command(argv: Sequence[str]) -> int:
    """Parse, run until a signal, take down; returns the exit code, 1 if something is left.

    Raises BrokenPipeError when the reader of the display left.
    """
    options = parse(argv)
    code = 1
    unread: list[BaseException] = []
    try:
        code = trio.run(_until_signal, options, strict_exception_groups=True)
    except* BrokenPipeError as group:
        unread = list(leaves(group))
    except* (
        CannotStart,
        PackagesUnavailable,
        CommandFailed,
        ConfigurationError,
        ValueError,
        OSError,
    ) as group:
        for error in leaves(group):
            _say(f"error: {error_words(error)}")
    for each in unread:
        raise each
    return code


def _say(text: str) -> None:
    print(f"trio-kubelet: {text}", file=sys.stderr, flush=True)


async def _until_signal(options: Options) -> int:
    left: list[str] = []
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            await nursery.start(_stop_on_signal, scope)
            await _run(options, left)
        nursery.cancel_scope.cancel()
    return 1 if left else 0


async def _stop_on_signal(
    scope: trio.CancelScope, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
        task_status.started()
        async for _ in signals:
            _say("still taking the node down" if scope.cancel_called else "taking the node down")
            scope.cancel()


async def _run(options: Options, left: list[str]) -> None:
    """Run a node until it ends or is cancelled; what cannot be removed of it is put into `left`."""
    await STANDALONE.run(_prepare_manifests, options.manifests)
    provisions: Provisions | None = None
    if not options.simulated:
        try:
            provisions = await provide(options.containerd, _say)
        except (PackagesUnavailable, CommandFailed) as err:
            _say(f"no real containers here ({err}); simulating them")
    if provisions is None:
        async with _simulated_node(options) as layout:
            await _agent_and_screen(options, layout, "simulated runtime", _WITHOUT_CGROUPS)
        return
    with _only_one(options.name):
        layout = await new_layout(options.name, BASE / options.name)
        cleanup.become_subreaper()
        version = ".".join(map(str, provisions.containerd.version))
        try:
            async with private_node(layout, provisions), trio.open_nursery() as nursery:
                nursery.start_soon(cleanup.reap_shims_for_ever)
                await _agent_and_screen(options, layout, f"containerd {version}", {})
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 10):
                left += await cleanup.leftovers(layout)
                _say(f"left behind: {'; '.join(left)}" if left else "nothing is left of the node")


async def _agent_and_screen(
    options: Options, layout: NodeLayout, runtime: str, extra: dict[str, object]
) -> None:
    """Run the agent on a prepared node, and show what it does, until one of them ends or it is cancelled."""
    ports = free_ports()
    log_file = await STANDALONE.run(_open_log, options.name)
    caption = Caption(
        f"node {layout.name} on {runtime}",
        (
            f"manifests: {options.manifests} (edit, add, remove)",
            f"agent log: {log_file.name}   endpoints: http://127.0.0.1:{ports.read_only}/pods /metrics",
            "Ctrl-C takes everything down again",
        ),
    )
    try:
        settings = await _settings(options, layout, ports, extra)
        async with AsyncExitStack() as stack:
            if settings.flags.node_page:
                address = await stack.enter_async_context(page_port(str(layout.agent_root / SOCKET_NAME)))
                caption = Caption(caption.title, (*caption.notes, f"page: {address}"))
            nursery = await stack.enter_async_context(trio.open_nursery())
            nursery.start_soon(Screen(sys.stdout, caption, ports.read_only).run)
            logging.configure("text", settings.config.logging.verbosity, stream=log_file, in_thread=True)
            report(settings)
            await agent.run(settings.flags, settings.config, ServiceManager({}))
            nursery.cancel_scope.cancel()
    finally:
        logging.flush()
        logging.configure()
        log_file.close()


async def _settings(
    options: Options, layout: NodeLayout, ports: AgentPorts, extra: dict[str, object]
) -> Settings:
    """What the agent's ordinary command line comes to. CannotStart when it is refused."""
    config_file = layout.base / "agent.json"
    await trio.Path(config_file).write_text(configuration(layout, options.manifests, ports, extra))
    flags = command_line(layout, config_file, options.agent_flags)
    flags = flags[next(i for i, word in enumerate(flags) if word.startswith("--config=")) :]
    try:
        return await STANDALONE.run(lambda: load(parse_command_line(flags, kubelet_flags())))
    except (FlagError, ConfigurationError) as err:
        raise CannotStart(str(err)) from err


@asynccontextmanager
async def _simulated_node(options: Options) -> AsyncIterator[NodeLayout]:
    """A node whose containers are only pretended, in a temporary directory; works without root."""
    from trio_kubelet.common.clock import SystemClock
    from trio_kubelet.sim.faults import Fault, Faults, Kind
    from trio_kubelet.sim.runtime import SimRuntime
    from trio_kubelet.sim.server import serve
    from trio_kubelet.sim.service import SimService

    base = Path(await STANDALONE.run(tempfile.mkdtemp, "", SIMULATED_PREFIX))
    try:
        layout = NodeLayout(options.name, base, next(cni.POOL.subnets(new_prefix=cni.PREFIX)))
        streams = [
            Fault(Kind.FAIL, method, code="UNIMPLEMENTED", message=f"a simulated container has no {what}")
            for method, what in (("Exec", "commands"), ("Attach", "terminal"), ("PortForward", "ports"))
        ]
        service = SimService(SimRuntime(0), SystemClock(), faults=Faults(streams), write_logs=True)
        async with trio.open_nursery() as nursery:
            await nursery.start(service.run)
            async with serve(service, str(layout.socket)):
                yield layout
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            await STANDALONE.run(cleanup.remove_directory, base)  # volumes of root's are mounted


@contextlib.contextmanager
def _only_one(name: str) -> Iterator[None]:
    """Hold the node's lock. CannotStart when another process has it: the two would take each other down."""
    BASE.mkdir(parents=True, exist_ok=True)
    with (BASE / f"{name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as err:
            raise CannotStart(f"node {name!r} is already running; choose another --name") from err
        yield


def _prepare_manifests(directory: Path) -> None:
    """Fill a default directory that is not there with the examples; any other one has to exist."""
    if directory.is_dir():
        return
    if directory != _OWN_COPY.absolute():
        raise CannotStart(f"{directory} is not a directory of manifests")
    directory.mkdir()
    for example in sorted((Path(__file__).parent / "examples").glob("*.yaml")):
        shutil.copyfile(example, directory / example.name)
    _say(f"wrote example manifests to {directory}")


def _open_log(name: str) -> TextIO:
    """The agent's log, begun anew with each run, in the user's state directory (XDG base directories)."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local/state")
    path = Path(state) / "trio-kubelet" / f"{name}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("w")
