"""Programs are started, and waited for, while everybody else goes on.

`subprocess` has the interpreter until the new process runs its program. That may take long: a disk with the
program on it hangs, or the kernel lets no process begin while others are moved between cgroups (see
`common/threads.py`; a node asks iptables six times a minute). So the C library is asked instead, in a thread
of a lane. What comes of a start that was given up meanwhile is killed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import signal
import subprocess
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Final, NamedTuple

import trio

from trio_kubelet.common.lanes import PROGRAMS

_STRUCT: Final = 1024  # bytes, more than a posix_spawnattr_t or posix_spawn_file_actions_t has anywhere
_SIGNALS: Final = 128  # of a sigset_t
_SETSIGDEF, _SETSID = 0x04, 0x80  # POSIX_SPAWN_*, the same in glibc and musl
_KILL_DEADLINE: Final = 5.0

_not_ended: Final = deque[int]()  # processes that were killed and had not ended in time: asked for later


class _Started(NamedTuple):
    """A process, and this side of its pipes; -1 for none."""

    pid: int
    stdin: int
    stdout: int
    stderr: int


class Program:
    """A program that runs, in a session of its own, so that it can be killed with all that it started."""

    def __init__(self, started: _Started) -> None:
        self.pid = started.pid
        self.stdin = _stream(started.stdin)
        self.stdout = _stream(started.stdout)
        self.stderr = _stream(started.stderr)

    async def wait(self) -> int:
        """Its exit code once it has ended, negative for a signal's number. Only once."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except OSError:  # before Linux 5.3
            await PROGRAMS.run(os.waitid, os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        else:
            try:
                await trio.lowlevel.wait_readable(descriptor)
            finally:
                trio.lowlevel.notify_closing(descriptor)
                os.close(descriptor)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])  # noqa: ASYNC222 (it has ended)

    async def kill(self) -> None:
        """Ends it, before it was waited for, and what it started. Waits for that, but not long."""
        with trio.CancelScope(deadline=trio.current_time() + _KILL_DEADLINE, shield=True):
            _kill(self.pid)
            await self.wait()
            return
        _not_ended.append(self.pid)

    async def close(self) -> None:
        """Closes this side of its pipes, which does not wait."""
        with trio.CancelScope(shield=True):
            for stream in (self.stdin, self.stdout, self.stderr):
                if stream is not None:
                    await stream.aclose()


async def start_process(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    stdin: int = subprocess.DEVNULL,
    stderr: int = subprocess.DEVNULL,
) -> Program:
    """Runs a program with its output in a pipe. Its input and its complaints are in pipes, too, if PIPE is
    said, and those with its output if STDOUT is. It is found as by `subprocess`, and the caller sets the
    deadline.

    Raises OSError if it cannot be started.
    """
    try:
        words = [_word(word) for word in command]
        variables = [_word(f"{name}={value}") for name, value in environment.items()]
    except ValueError:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), command[0]) from None
    path = os.pathsep.join(os.get_exec_path(environment))
    return Program(
        await PROGRAMS.run(
            _start, words, variables, path, stdin, stderr, owner=command[0], discard=_throw_away
        )
    )


def _start(
    words: Sequence[bytes], variables: Sequence[bytes], path: str, stdin: int, stderr: int
) -> _Started:
    """In a thread. Raises OSError."""
    _reap()
    program = os.fsdecode(words[0])
    if "/" not in program and (program := shutil.which(program, path=path) or "") == "":
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fsdecode(words[0]))
    with ExitStack() as theirs, ExitStack() as ours:

        def pipe(reads: bool) -> tuple[int, int]:
            """This side of a new pipe, and the program's."""
            ends = os.pipe()
            our, their = ends if reads else ends[::-1]
            ours.callback(os.close, our)
            theirs.callback(os.close, their)
            return our, their

        nothing = os.open(os.devnull, os.O_RDWR)
        theirs.callback(os.close, nothing)
        our_in, their_in = pipe(reads=False) if stdin == subprocess.PIPE else (-1, nothing)
        our_out, their_out = pipe(reads=True)
        our_err, their_err = pipe(reads=True) if stderr == subprocess.PIPE else (-1, nothing)
        if stderr == subprocess.STDOUT:
            their_err = their_out
        pid = _spawn(os.fsencode(program), words, variables, (their_in, their_out, their_err))
        ours.pop_all()
    return _Started(pid, our_in, our_out, our_err)


def _spawn(
    program: bytes, words: Sequence[bytes], variables: Sequence[bytes], standard: tuple[int, int, int]
) -> int:
    """The PID of a new process; ctypes lets others go on until it has become the program. It has the three
    descriptors and no others, and no signals that the interpreter ignores. Raises OSError.
    """
    library = ctypes.CDLL(None)
    pid = ctypes.c_int()
    with (
        _made(library, "posix_spawnattr") as attributes,
        _made(library, "posix_spawn_file_actions") as actions,
    ):
        signals = ctypes.create_string_buffer(_SIGNALS)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            library.sigaddset(signals, number)
        library.posix_spawnattr_setsigdefault(attributes, signals)
        library.posix_spawnattr_setflags(attributes, ctypes.c_short(_SETSIGDEF | _SETSID))
        for to, descriptor in enumerate(standard):
            library.posix_spawn_file_actions_adddup2(actions, descriptor, to)
        for descriptor in _inheritable():
            library.posix_spawn_file_actions_addclose(actions, descriptor)
        code = library.posix_spawn(
            ctypes.byref(pid), program, actions, attributes, _array(words), _array(variables)
        )
    if code:
        raise OSError(code, os.strerror(code), os.fsdecode(program))
    return pid.value


@contextmanager
def _made(library: ctypes.CDLL, kind: str) -> Iterator[ctypes.Array[ctypes.c_char]]:
    """One of the C library's structs."""
    struct = ctypes.create_string_buffer(_STRUCT)
    if code := library[f"{kind}_init"](struct):
        raise OSError(code, os.strerror(code))
    try:
        yield struct
    finally:
        library[f"{kind}_destroy"](struct)


def _inheritable() -> Iterator[int]:
    """Descriptors that whoever started the agent left open for its programs; all of its own are closed."""
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        try:
            if descriptor > 2 and os.get_inheritable(descriptor):
                yield descriptor
        except OSError:  # closed since, as that of the list is
            continue


def _array(words: Sequence[bytes]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * (len(words) + 1))(*words, None)


def _word(text: str) -> bytes:
    """What the kernel takes for a word of a program. Raises ValueError if there is no such word."""
    word = os.fsencode(text)
    if b"\0" in word:
        raise ValueError("embedded null byte")
    return word


def _stream(descriptor: int) -> trio.lowlevel.FdStream | None:
    return trio.lowlevel.FdStream(descriptor) if descriptor >= 0 else None


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _throw_away(started: _Started) -> None:
    """In either thread: nobody waits for this program any more."""
    _kill(started.pid)
    _not_ended.append(started.pid)
    for descriptor in started[1:]:
        if descriptor >= 0:
            os.close(descriptor)


def _reap() -> None:
    """Asks for what has ended at last, so that it goes; another thread may do so as well."""
    for _ in range(len(_not_ended)):
        with suppress(IndexError):
            pid = _not_ended.popleft()
            if not os.waitpid(pid, os.WNOHANG)[0]:
                _not_ended.append(pid)
