"""What is shown of a program's complaints: nothing of a secret, wherever it was cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.common.programs import redacted


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
