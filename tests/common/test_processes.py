"""Programs that are started: as by `subprocess`, but that nobody else waits meanwhile."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest
import trio

from tests.slow_library import TURNS, numbers_with_library
from trio_kubelet.common import processes
from trio_kubelet.common.processes import Program, start_process

SLOW_KERNEL = """
#include <spawn.h>
int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
                const posix_spawnattr_t *attr, char *const argv[], char *const envp[])
{
    int (*real)(pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *,
                char *const[], char *const[]) = dlsym(RTLD_NEXT, "posix_spawn");
    wait_for_the_loop();
    return real(pid, path, actions, attr, argv, envp);
}
pid_t vfork(void)
{
    wait_for_the_loop();
    return fork();
}
"""
LOOP = """
import trio
from trio_kubelet.common.programs import run_to_end
async def count():
    while True:
        await trio.sleep(0.001)
        turn()
async def main():
    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        code, _ = await run_to_end(["true"], 30)
        print(code, turns)
        nursery.cancel_scope.cancel()
hold()
trio.run(main)
"""


def test_while_the_kernel_lets_no_program_begin_the_loop_goes_on(tmp_path: Path) -> None:
    """The kernel lets it only after so many turns of the loop."""
    code, turns = numbers_with_library(tmp_path, SLOW_KERNEL, LOOP)
    assert code == 0
    assert turns >= TURNS


def state(pid: int) -> list[str]:
    """What the kernel says of a process after its name; nothing if it has none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return []


async def said(program: Program) -> bytes:
    """What a program prints until it ends."""
    assert program.stdout is not None
    text = b"".join([some async for some in program.stdout])
    await program.wait()
    await program.close()
    return text


async def test_a_program_has_its_words_its_variables_and_a_session_of_its_own() -> None:
    program = await start_process(
        ["sh", "-c", 'printf "%s,%s,%s," "$1" "$A" "$HOME"; ps -o sid= -p $$', "x", "a b"],
        {"A": "é=1", "PATH": os.environ["PATH"]},
    )
    words = (await said(program)).decode().split(",")
    assert words[:3] == ["a b", "é=1", ""]
    assert int(words[3]) == program.pid


async def test_input_output_and_complaints_are_apart_or_together() -> None:
    command = ["sh", "-c", "cat; printf out; printf err >&2"]
    apart = await start_process(command, os.environ, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert apart.stdin is not None
    assert apart.stderr is not None
    await apart.stdin.send_all(b"in ")
    await apart.stdin.aclose()
    assert await apart.stderr.receive_some() == b"err"
    assert await said(apart) == b"in out"
    assert await said(await start_process(command, os.environ, stderr=subprocess.STDOUT)) == b"outerr"
    assert await said(await start_process(command, os.environ)) == b"out"


async def test_what_the_agent_has_open_is_not_the_programs(tmp_path: Path) -> None:
    """Not even what whoever started the agent left open for its programs."""
    with (tmp_path / "open").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        program = await start_process(["ls", "-l", "/proc/self/fd"], os.environ)
        listed = (await said(program)).decode()
    assert str(tmp_path) not in listed
    assert len([line for line in listed.splitlines() if "->" in line]) == 4  # and the directory itself


async def test_signals_that_the_interpreter_ignores_end_a_program() -> None:
    assert signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN
    program = await start_process(["sh", "-c", "kill -PIPE $$; echo lives"], os.environ)
    assert await program.wait() == -signal.SIGPIPE
    await program.close()


async def test_a_program_is_looked_for_where_its_own_variables_say(tmp_path: Path) -> None:
    script = tmp_path / "some-program"
    script.write_text("#!/bin/sh\necho found\n")
    script.chmod(0o755)
    assert await said(await start_process(["some-program"], {"PATH": f"/nowhere:{tmp_path}"})) == b"found\n"
    with pytest.raises(FileNotFoundError, match="some-program"):
        await start_process(["some-program"], os.environ)
    script.chmod(0o644)
    with pytest.raises(PermissionError, match="some-program"):
        await start_process([str(script)], os.environ)
    script.chmod(0o755)
    script.write_text("no interpreter\n")
    with pytest.raises(OSError, match="Exec format error"):
        await start_process([str(script)], os.environ)


@pytest.mark.parametrize(
    ("command", "environment"), [(["echo", "a\0b"], {}), (["echo"], {"A": "\0"}), (["echo", "\ud800"], {})]
)
async def test_words_that_no_program_can_have_are_refused(
    command: list[str], environment: dict[str, str]
) -> None:
    with pytest.raises(OSError, match=r"Invalid argument: 'echo'"):
        await start_process(command, environment)


async def test_failures_leave_nothing_open() -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(FileNotFoundError):
            await start_process(
                ["/no/such/program"], os.environ, stdin=subprocess.PIPE, stderr=subprocess.PIPE
            )
    assert sorted(os.listdir("/proc/self/fd")) == before


async def test_on_a_kernel_without_descriptors_of_processes_a_thread_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def not_there(pid: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", not_there)
    program = await start_process(["sh", "-c", "exit 7"], os.environ)
    assert await program.wait() == 7
    await program.close()


async def test_a_start_that_was_given_up_is_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By the thread in which it ends at last; the next start asks how the program ended."""
    asked, begin, done, real = threading.Event(), threading.Event(), threading.Event(), ctypes.CDLL
    pids = list[int]()

    def slow(name: None) -> ctypes.CDLL:
        asked.set()
        begin.wait(30)
        return real(name)

    def thrown_away(started: processes._Started) -> None:
        throw_away(started)
        pids.append(started.pid)
        done.set()

    throw_away = processes._throw_away
    monkeypatch.setattr(ctypes, "CDLL", slow)
    monkeypatch.setattr(processes, "_throw_away", thrown_away)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(start_process, ["sleep", "1000"], os.environ)
        assert await trio.to_thread.run_sync(asked.wait, 30)
        nursery.cancel_scope.cancel()
    begin.set()
    assert await trio.to_thread.run_sync(done.wait, 30)
    while "Z" not in state(pids[0]):  # noqa: ASYNC110 (another process)
        await trio.sleep(0.01)
    await said(await start_process(["true"], os.environ))
    assert state(pids[0]) == []
