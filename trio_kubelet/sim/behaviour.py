"""What a simulated container does once it runs, read from its configuration: nothing is ever executed.

A test says what it wants in the place where a real pod would say it:

* the command, alone or after `sh -c`: `sleep N`, `exit N`, `true`, `false`, `echo TEXT`, joined by `;` or
`&&`;
  `trap '' TERM` makes it deaf to the stop signal; anything else runs for ever;
* without a command, the image's last path component: `exit-3`, `sleep-5`, `sleep-5-exit-1`, `false`, `true`;
* environment variables over both: `SIM_RUN_SECONDS`, `SIM_EXIT_CODE`, `SIM_IGNORE_TERM=1`, `SIM_TERM_SECONDS`
  (how long the stop signal takes), `SIM_TERM_EXIT_CODE`, `SIM_OOM=1` (the end is an OOM kill),
  `SIM_START_ERROR` (the start fails with this text);
* annotations `sim/run-seconds`, `sim/ignore-term`, … of the container or its pod, the same names.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from trio_kubelet.cri.proto import api_pb2 as cri

EXIT_SIGTERM: Final = 143
EXIT_SIGKILL: Final = 137

_PREFIX: Final = "SIM_"
_ANNOTATION: Final = "sim/"
_IMAGE: Final = re.compile(r"(?:sleep-(?P<sleep>\d+(?:\.\d+)?))?-?(?:exit-(?P<exit>\d+))?")


@dataclass(frozen=True, slots=True)
class Behaviour:
    """A container's life. Durations in seconds; `run_seconds` None: for ever."""

    run_seconds: float | None = None
    exit_code: int = 0
    ignore_term: bool = False
    term_seconds: float = 0.0
    term_exit_code: int = EXIT_SIGTERM
    oom: bool = False
    start_error: str = ""
    output: tuple[tuple[float, str], ...] = field(default=())
    """Lines on standard output: seconds after the start, text."""


def behaviour_of(config: cri.ContainerConfig, pod_annotations: Mapping[str, str]) -> Behaviour:
    """The behaviour that a container's configuration asks for."""
    command = [*config.command, *config.args]
    found = (
        of_command(command) if command else of_image(config.image.user_specified_image or config.image.image)
    )
    settings = {
        key.removeprefix(_ANNOTATION).replace("-", "_"): value
        for source in (pod_annotations, config.annotations)
        for key, value in source.items()
        if key.startswith(_ANNOTATION)
    }
    for env in config.envs:
        if env.key.startswith(_PREFIX):
            settings[env.key.removeprefix(_PREFIX).lower()] = env.value.decode(errors="replace")
    return apply_settings(found, settings)


def apply_settings(base: Behaviour, settings: Mapping[str, str]) -> Behaviour:
    """Settings by name over a behaviour; unknown names and unreadable numbers count for nothing."""
    numbers = {key: number for key, text in settings.items() if (number := _number(text)) is not None}
    oom = settings.get("oom") == "1"
    run = numbers.get("run_seconds", base.run_seconds)
    code = int(numbers.get("exit_code", EXIT_SIGKILL if oom else base.exit_code))
    if run is None and "exit_code" in numbers:
        run = 0.0
    return replace(
        base,
        run_seconds=run,
        exit_code=code,
        ignore_term=settings.get("ignore_term") == "1" or base.ignore_term,
        term_seconds=numbers.get("term_seconds", base.term_seconds),
        term_exit_code=int(numbers.get("term_exit_code", base.term_exit_code)),
        oom=oom,
        start_error=settings.get("start_error", base.start_error),
    )


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 <= number < 1e9 else None


def of_image(image: str) -> Behaviour:
    """The behaviour in an image's name; an ordinary name runs for ever."""
    name = image.rpartition("/")[2].partition("@")[0].partition(":")[0]
    if name in ("true", "false"):
        return Behaviour(run_seconds=0.0, exit_code=int(name == "false"))
    match = _IMAGE.fullmatch(name)
    if match is None or not (match["sleep"] or match["exit"]):
        return Behaviour()
    return Behaviour(run_seconds=float(match["sleep"] or 0), exit_code=int(match["exit"] or 0))


def of_command(command: Sequence[str]) -> Behaviour:
    """The behaviour of a command line."""
    words = list(command)
    if len(words) >= 3 and words[0].rpartition("/")[2] in ("sh", "bash", "ash") and words[1] in ("-c", "-ec"):
        return _of_script(_statements(words[2]))
    return _of_script([words])


def _statements(script: str) -> Iterable[list[str]]:
    """The statements of a shell script; one that cannot be read is left out of the play, as a foreign
    word.
    """
    for part in re.split(r"\s*(?:;|&&|\n)\s*", script.strip()):
        if part:
            try:
                yield shlex.split(part)
            except ValueError:
                yield ["?"]


def _of_script(statements: Iterable[list[str]]) -> Behaviour:
    seconds, code, deaf = 0.0, 0, False
    output: list[tuple[float, str]] = []
    for words in statements:
        name, args = words[0].rpartition("/")[2], words[1:]
        if name == "exit":
            code = int(args[0]) & 255 if args and args[0].isdigit() else code
            break
        if name == "sleep" and args and (pause := _number(args[0].removesuffix("s"))) is not None:
            seconds, code = seconds + pause, 0
        elif name in ("true", "false"):
            code = int(name == "false")
        elif name == "echo":
            output.append((seconds, " ".join(args)))
            code = 0
        elif name == "trap":
            deaf = "TERM" in args[-1] if args else deaf
        else:
            return Behaviour(ignore_term=deaf, output=tuple(output))
    return Behaviour(run_seconds=seconds, exit_code=code, ignore_term=deaf, output=tuple(output))


@dataclass(frozen=True, slots=True)
class ExecOutcome:
    """What a command run inside a container does: it takes `seconds`, writes, and ends."""

    exit_code: int = 0
    stdout: bytes = b""
    stderr: bytes = b""
    seconds: float = 0.0


def exec_of_command(command: Sequence[str]) -> ExecOutcome:
    """An exec's outcome by the same language; a command that says nothing of itself succeeds."""
    found = of_command(command)
    text = "".join(f"{line}\n" for _, line in found.output)
    return ExecOutcome(found.exit_code, text.encode(), b"", found.run_seconds or 0.0)
