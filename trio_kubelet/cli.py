"""The command `trio-kubelet`: the node agent with the kubelet's flags, and a few tools around it.

Everything heavy is imported only by the path that needs it: start-up time and the memory of `--help` or a
wrong flag are what a user feels first. Exit codes: 0 after a clean stop (SIGTERM, SIGINT) and after help, 1
when the agent cannot start or fails and when the output cannot be written, 130 when Ctrl-C broke a command
off, 141 when nobody reads the output any more.
"""

from __future__ import annotations

import importlib
import io
import os
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

from trio_kubelet.common import log as logging
from trio_kubelet.common.interpreter import start_without_collector
from trio_kubelet.common.start_bundle import bundle_path, use_bundle
from trio_kubelet.config.flag_table import kubelet_flags
from trio_kubelet.config.pflag import CommandLine, FlagError, parse_command_line

if TYPE_CHECKING:
    from trio_kubelet.common.service import ServiceManager
    from trio_kubelet.config.load import Settings
    from trio_kubelet.config.types import Logging

log = logging.get_logger(__name__)

_AGAIN: Final = 256
"""No exit code: the process is to become a new one."""
_INTERRUPTED: Final = 130
"""What shells show of a command that Ctrl-C ended."""
_UNREAD: Final = 141
"""What they show of one that SIGPIPE ended, as it does where nobody reads the output any more."""

# First word of the command line -> module whose `main(argv) -> int` runs it.
_COMMANDS: Final = {
    "inspect": "trio_kubelet.inspect",
    "standalone": "trio_kubelet.standalone",
    "sim": "trio_kubelet.sim",
    "get": "trio_kubelet.commands.main",
    "describe": "trio_kubelet.commands.main",
    "events": "trio_kubelet.commands.main",
    "page": "trio_kubelet.page_command",
    "top": "trio_kubelet.commands.main",
    "logs": "trio_kubelet.commands.main",
    "exec": "trio_kubelet.commands.main",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's own) and return the exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    _settle_streams()
    try:
        try:
            return _tool(args) if args and args[0] in _COMMANDS else _node_agent(args)
        finally:
            sys.stdout.flush()
    except OSError as error:  # of whatever else fails its module tells
        return _unwritten(error)
    except KeyboardInterrupt:  # there is nothing to take down
        return _INTERRUPTED
    finally:
        logging.flush()


def _tool(args: list[str]) -> int:
    name = _COMMANDS[args[0]]
    module = importlib.import_module(name)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # The commands that ask the agent are one module, which needs the word itself.
    return int(module.main(args if name.endswith(".commands.main") else args[1:]))


def _unwritten(error: OSError) -> int:
    """The end of a command whose output could not be written; the interpreter does not try again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if isinstance(error, BrokenPipeError):  # the reader left, as `| head` does
        return _UNREAD
    from trio_kubelet.common.go_words import error_words

    _say(f"trio-kubelet: write /dev/stdout: {error_words(error)}")
    return 1


def _settle_streams() -> None:
    """Gives what was closed to nobody, as Go's runtime does: the next file or connection would be our output.
    And no character fails the output, whatever its encoding.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # it gets the lowest number that is free: this one
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _node_agent(args: Sequence[str]) -> int:
    try:
        line = parse_command_line(args, kubelet_flags(), _say)
    except FlagError as error:
        return _fail(f"failed to parse kubelet flag: {error}")
    if line.words:
        return _fail(f"unknown command {line.words[0]!r}{_nearest_command(line.words[0])}")
    if line.values.get("help"):
        from trio_kubelet.config.help import help_text

        print(help_text(shutil.get_terminal_size().columns), end="", flush=True)
        return 0
    if (wanted := line.values.get("version", "false")) in ("true", "raw"):
        from trio_kubelet.config.version import version_parts, version_text

        program = os.path.basename(sys.argv[0])
        print(version_text(program) if wanted == "true" else version_parts(), flush=True)
        return 0
    return _start(line)


def _say(line: str) -> None:
    """A line of the command line's own, on stderr as it is: logging is not set up yet."""
    print(line, file=sys.stderr)


def _start(line: CommandLine) -> int:
    start_without_collector()
    use_bundle(bundle_path(os.path.dirname(__file__)))
    from trio_kubelet.config.load import ConfigurationError, load

    # Until the agent listens for signals itself there is nothing to take down.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))

    if line.values.get("logging-format") == "json":
        logging.configure("json")
    try:
        settings = load(line)
    except ConfigurationError as error:
        return _fail(str(error))
    configure_logging(settings.config.logging)
    report(settings)

    from trio_kubelet.native.arenas import keep_objects_together, share_one_heap

    keep_objects_together()
    share_one_heap()
    from trio_kubelet.agent import run as run_agent
    from trio_kubelet.common.service import ServiceManager

    try:
        service = ServiceManager()
    except ValueError as error:
        return _fail(str(error))

    async def run() -> None:
        await run_agent(settings.flags, settings.config, service)

    code = run_until_signal(run, service)
    if code == _AGAIN:
        # A new process image reads configuration and credentials anew; pods do not notice.
        logging.flush()
        os.execv(sys.executable, sys.orig_argv)
    return code


def configure_logging(settings: Logging) -> None:
    """Set logging up as the configuration says."""
    as_json = settings.format == "json"
    options = settings.options.json if as_json else settings.options.text
    logging.configure(
        "json" if as_json else "text",
        settings.verbosity,
        [(item.file_pattern, item.verbosity) for item in settings.vmodule],
        info_stream=sys.stdout if options.split_stream else None,
        in_thread=True,
    )


def report(settings: Settings) -> None:
    """Log what loading found, and in one line all settings that do nothing in this agent."""
    for message, values in settings.warnings:
        log.warning(message, **values)
    if settings.ineffective:
        log.warning("Settings accepted without effect", settings=", ".join(settings.ineffective))


def run_until_signal(run: Callable[[], Awaitable[None]], service: ServiceManager | None = None) -> int:
    """Run the agent until it ends or SIGTERM or SIGINT stops it; a second signal ends the process at once.

    Returns the exit code. What the agent raises is logged; a traceback is shown only for errors of ours. A
    `service` is told when it stops; SIGHUP then ends the agent too, with `_AGAIN`: it is to be started anew.
    """
    import trio

    stopped = False
    code = 0
    numbers = [signal.SIGTERM, signal.SIGINT, *([signal.SIGHUP] if service is not None else [])]

    async def stop_on_signal(scope: trio.CancelScope, task_status: trio.TaskStatus[None]) -> None:
        nonlocal stopped, code
        with trio.open_signal_receiver(*numbers) as signals:
            task_status.started()
            async for number in signals:
                if stopped and number != signal.SIGHUP:
                    os._exit(1)
                stopped = True
                code = _AGAIN if number == signal.SIGHUP else 0
                if service is not None:
                    (service.reloading if code == _AGAIN else service.stopping)()
                log.info("Stopping on signal", signal=signal.Signals(number).name)
                scope.cancel()

    async def supervise() -> None:
        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as scope:
                await nursery.start(stop_on_signal, scope)
                await run()
            nursery.cancel_scope.cancel()

    try:
        trio.run(supervise, strict_exception_groups=True)
    except Exception as error:
        _log_failure(error)
        return 1
    return code


def _log_failure(error: Exception) -> None:
    from trio_kubelet.common.error_groups import leaves
    from trio_kubelet.config.load import ConfigurationError
    from trio_kubelet.pods.run_once import RunOnceError

    errors = leaves(error) if isinstance(error, ExceptionGroup) else (error,)
    if not all(isinstance(each, OSError | ConfigurationError | RunOnceError) for each in errors):
        import traceback

        logging.flush()  # what came before
        traceback.print_exception(error)
    log.error("command failed", err=error)


def _fail(reason: str) -> int:
    """One line that says why the agent does not start."""
    log.error("command failed", err=reason)
    return 1


def _nearest_command(word: str) -> str:
    import difflib  # only for a mistake

    if word in _COMMANDS:
        return ": a command comes first, and its flags behind it"
    near = difflib.get_close_matches(word, _COMMANDS, n=1)
    return f" (did you mean {near[0]}?)" if near else ""
