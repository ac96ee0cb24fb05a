"""What is shown of a program's complaints: nothing of a secret, wherever it was cut."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.slowness import within_cpu
from trio_kubelet.common.programs import MAX_OUTPUT, ProgramFailed, redacted, run_program, run_to_end


def running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


TEXT = st.text("ab", max_size=20)


@given(TEXT, st.text("abc", min_size=8, max_size=30), st.integers(0, 30), st.integers(0, 30), TEXT)
def test_no_piece_of_a_secret_is_shown(before: str, secret: str, begin: int, end: int, after: str) -> None:
    said = redacted(f"{before} {secret[begin:end]} {after} {secret}", [secret])
    assert not any(secret[at : at + 8] in said for at in range(len(secret) - 7))


@given(TEXT)
def test_what_is_no_secret_is_shown(said: str) -> None:
    assert redacted(said, []) == said
    assert redacted(said, ["", "xyz", "no secret in it"]) == said


def test_short_secrets_are_hidden_whole() -> None:
    assert redacted("a: pw, b: pwd", ["pw"]) == "a: …, b: …d"


def test_a_huge_secret_is_not_looked_for() -> None:
    said, secret = "aaaaaaab" * 128, "a" * 1_000_000
    for _ in within_cpu(0.5):
        assert redacted(said, ["pw", secret]) == "…"


async def test_of_a_program_that_prints_without_end_only_its_last_words_are_kept() -> None:
    shout = "head -c 30000000 /dev/zero; printf 'last words' >&2; exit 3"
    tracemalloc.start()
    try:
        with trio.fail_after(60):
            code, said = await run_to_end(["sh", "-c", shout], 4096)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (code, len(said), said[-11:]) == (3, 4096, b"\0last words")
    assert most < 3_000_000


async def test_a_program_that_complains_without_end_is_ended() -> None:
    with (
        trio.fail_after(60),
        pytest.raises(ProgramFailed, match=f"^more than {MAX_OUTPUT} bytes of complaints$"),
    ):
        await run_program(["sh", "-c", "exec cat /dev/zero >&2"], os.environ, b"")


async def test_a_name_with_an_equals_sign_is_another_variable() -> None:
    """As in Go, where they are joined."""
    assert await run_program(["sh", "-c", 'echo "$A"'], {**os.environ, "A=B": "c"}, b"") == b"B=c\n"


async def test_what_a_program_started_ends_with_it(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    with trio.move_on_after(30) as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_to_end, ["sh", "-c", f"sleep 1000 & echo $! > {file}; wait"], 10)
            while not (file.exists() and file.read_text().strip()):  # noqa: ASYNC110 (another process)
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
        while running(int(file.read_text())):  # noqa: ASYNC110 (another process)
            await trio.sleep(0.01)
    assert not scope.cancelled_caught
