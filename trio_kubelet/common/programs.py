"""Programs of others: they are not trusted to end, to be brief or to keep a secret.

What they print is bounded; they and what they started are killed when they are given up. The beginning of
their standard error may be shown, `redacted`.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import trio

MAX_OUTPUT: Final = 1 << 20
MAX_COMPLAINT: Final = 1024
_FRAGMENT: Final = 8
"""So many characters of a secret in a row are hidden, as a text that was cut may hold a piece of it."""
_LONGEST_SECRET: Final = 16 << 10
"""Nothing is shown beside a longer one: to look for the pieces of a megabyte takes seconds."""


class ProgramFailed(Exception):
    """A program failed or said too much; `complaint` is the beginning of its standard error, `code` its exit
    code, -1 after a signal, None if it was ended for what it said.
    """

    def __init__(self, text: str, complaint: str = "", output: bytes = b"", code: int | None = None) -> None:
        super().__init__(text)
        self.complaint = complaint
        self.output = output
        self.code = code


def redacted(said: str, secrets: Iterable[str]) -> str:
    """`said` with `…` for the secrets and for pieces of them of some length. Pure."""
    hidden = [False] * len(said)
    for secret in secrets:
        if len(secret) > _LONGEST_SECRET:
            return "…"
        size = min(_FRAGMENT, len(secret))
        for at in range(len(said) - size + 1 if size else 0):
            if said[at : at + size] in secret:
                hidden[at : at + size] = [True] * size
    shown = list[str]()
    for at, char in enumerate(said):
        if not hidden[at]:
            shown.append(char)
        elif at == 0 or not hidden[at - 1]:
            shown.append("…")
    return "".join(shown)


async def run_program(
    command: Sequence[str], environment: Mapping[str, str], request: bytes, most: int = MAX_OUTPUT
) -> bytes:
    """What a program prints when it reads `request`: at most so many bytes, and `MAX_OUTPUT` of complaints.

    The caller sets the deadline. It and its children are killed if this is given up. Raises ProgramFailed,
    and OSError if it cannot be started.
    """
    from trio_kubelet.common.processes import start_process  # few agents start with programs to run

    process = await start_process(command, environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    if process.stdin is None or process.stdout is None or process.stderr is None:
        raise AssertionError("all three are pipes")
    output, complaints = _Said("output", most, most), _Said("complaints", MAX_COMPLAINT, MAX_OUTPUT)
    ended = False
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_write, process.stdin, request)
            nursery.start_soon(complaints.read, process.stderr, nursery.cancel_scope)
            await output.read(process.stdout, nursery.cancel_scope)
        if too_much := output.too_much or complaints.too_much:
            raise ProgramFailed(too_much)
        code = await process.wait()
        ended = True
    finally:
        if not ended:
            await process.kill()
        await process.close()
    if code != 0:
        how = f"exit status {code}" if code > 0 else f"signal: {signal.Signals(-code).name}"
        complaint = complaints.kept.decode("utf-8", "replace").strip()
        raise ProgramFailed(how, complaint, bytes(output.kept), max(code, -1))
    return bytes(output.kept)


async def run_to_end(command: Sequence[str], keep: int) -> tuple[int, bytes]:
    """A program's exit code and the last `keep` bytes of all it prints, however much that is; the caller sets
    the deadline.

    It and its children are killed if this is given up. Raises OSError if it cannot be started.
    """
    from trio_kubelet.common.processes import start_process

    process = await start_process(command, os.environ, stderr=subprocess.STDOUT)
    if process.stdout is None:
        raise AssertionError("it is a pipe")
    output = bytearray()
    ended = False
    try:
        async for some in process.stdout:
            output += some
            del output[:-keep]
        code = await process.wait()
        ended = True
    finally:
        if not ended:
            await process.kill()
        await process.close()
    return code, bytes(output)


async def _write(stream: trio.abc.SendStream, data: bytes) -> None:
    try:
        async with stream:
            await stream.send_all(data)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return  # it does not want to know: its answer says whether that was right


class _Said:
    """What a program says on one of its streams: its first bytes are kept, more than `most` are too much."""

    def __init__(self, name: str, keep: int, most: int) -> None:
        self.kept = bytearray()
        self.too_much = ""
        self._name = name
        self._keep = keep
        self._most = most

    async def read(self, stream: trio.abc.ReceiveStream, scope: trio.CancelScope) -> None:
        """Reads to the end, so that the program is not held up; cancels the scope when it is too much."""
        length = 0
        async for some in stream:
            self.kept += some[: self._keep - len(self.kept)]
            length += len(some)
            if length > self._most:
                self.too_much = f"more than {self._most} bytes of {self._name}"
                scope.cancel()
