"""Running a short command from Trio: output captured, a deadline, and an error that says what went wrong."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import trio


class CommandFailed(Exception):
    """A command could not be started, ran too long, or ended with an exit code other than zero."""


async def command(
    argv: Sequence[str],
    *,
    seconds: float,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: bytes = b"",
) -> str:
    """Run `argv` to its end and return its standard output. CommandFailed carries the last lines of output.

    The command gets a session of its own: a Ctrl-C at the terminal reaches this program only, which then
    ends its commands in order.
    """
    try:
        with trio.fail_after(seconds):
            done = await trio.run_process(
                list(argv),
                stdin=stdin,
                capture_stdout=True,
                capture_stderr=True,
                check=False,
                env=env,
                cwd=cwd,
                start_new_session=True,
            )
    except OSError as err:
        raise CommandFailed(f"{argv[0]}: {err}") from err
    except trio.TooSlowError as err:
        raise CommandFailed(f"{argv[0]} did not end within {seconds:g} s") from err
    return _output(argv, done)


def _output(argv: Sequence[str], done: subprocess.CompletedProcess[bytes]) -> str:
    if done.returncode != 0:
        text = (done.stderr or b"") + (done.stdout or b"")
        tail = "; ".join(text.decode(errors="replace").strip().splitlines()[-3:])
        raise CommandFailed(f"{' '.join(argv[:3])} ended with {done.returncode}: {tail}")
    return (done.stdout or b"").decode(errors="replace")
