"""What a container left behind as its last words."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.runtime.termination import (
    UnknownLogFormat,
    log_tail,
    read_log_tail,
    read_tail,
    read_termination_message,
)

STAMP = "2026-01-01T00:00:00.123456789Z"


def line(text: str, stream: str = "stdout", tag: str = "F") -> bytes:
    return f"{STAMP} {stream} {tag} {text}\n".encode()


def write(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    return str(path)


def test_the_file_comes_first(tmp_path: Path) -> None:
    message = write(tmp_path / "m", b"bye")
    log = write(tmp_path / "l", line("from the log"))
    assert read_termination_message(message, log, True) == "bye"
    write(tmp_path / "m", b"")
    assert read_termination_message(message, log, True) == "from the log\n"
    assert read_termination_message(message, log, False) == ""
    assert read_termination_message(str(tmp_path / "none"), log, True) == "from the log\n"
    assert read_termination_message("", log, False) == ""


def test_a_long_message_is_cut_at_its_start(tmp_path: Path) -> None:
    message = write(tmp_path / "m", b"x" + b"y" * 4096)
    assert read_termination_message(message, "", False) == "y" * 4096


def test_bytes_that_are_no_text_do_not_get_through(tmp_path: Path) -> None:
    assert read_termination_message(write(tmp_path / "m", b"a\xffb"), "", False) == "a\ufffdb"


def test_trouble_with_reading_is_told(tmp_path: Path) -> None:
    text = read_termination_message(str(tmp_path), "", True)
    assert text == f"Error on reading termination log {tmp_path}: open {tmp_path}: is a directory"
    trouble, missing = "Error on reading termination message from logs: ", tmp_path / "none"
    for log in (missing, missing / "0.log", missing / "web" / "0.log"):
        assert read_termination_message("", str(log), True) == (
            f'{trouble}failed to try resolving symlinks in path "{log}": '
            f"lstat {missing}: no such file or directory"
        )
    assert read_termination_message("", str(tmp_path), True) == (
        f'{trouble}failed to open log file "{tmp_path}": open {tmp_path}: is a directory'
    )
    assert read_termination_message("", write(tmp_path / "other", b'no "log"\xff\n'), True) == (
        rf'{trouble}failed to get parse function: unsupported log format: "no \"log\"\xff\n"'
    )


def test_only_the_last_lines_and_bytes_of_a_log(tmp_path: Path) -> None:
    log = write(tmp_path / "l", b"".join(line(f"n{i}") for i in range(200)))
    assert read_log_tail(log) == "".join(f"n{i}\n" for i in range(120, 200)).encode()
    log = write(tmp_path / "l", b"".join(line("z" * 100) for _ in range(50)))
    assert read_log_tail(log) == (b"z" * 100 + b"\n")[-2048 % 101 :] + (b"z" * 100 + b"\n") * 20


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", b""),
        (line("a") + line("b", "stderr"), b"a\nb\n"),
        (line("par", tag="P") + line("tial"), b"partial\n"),
        (line("par", tag="P:x"), b"par"),
        (line("a") + b"nonsense\n" + line("b"), b"a\nb\n"),
        (line("a") + line("open")[:-1], b"a\nopen"),
        (line("with\rreturn") + line(""), b"with\rreturn\n\n"),
        (line("a") + line("b").replace(b"T0", b"T9") + line("c"), b"a\nc\n"),
        (b'{"log":"x\\n","stream":"stderr","time":"2024-01-01T00:00:00Z"}\n', b"x\n"),
    ],
)
def test_lines(data: bytes, text: bytes) -> None:
    assert log_tail(data, 80) == text


def test_another_format_is_refused() -> None:
    with pytest.raises(UnknownLogFormat):
        log_tail(b'{"log":"x"}\n', 80)
    with pytest.raises(UnknownLogFormat):
        log_tail(line("a").replace(b"T0", b"T9"), 80)


@given(st.binary(max_size=300), st.integers(1, 50))
def test_the_tail_of_any_file(data: bytes, limit: int) -> None:
    import tempfile

    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        assert read_tail(file.name, limit) == data[-limit:]


@given(
    st.lists(
        st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\n"), max_size=200), max_size=150
    )
)
def test_the_log_is_read_from_its_end_in_blocks(texts: list[str]) -> None:
    import tempfile

    with tempfile.NamedTemporaryFile() as file:
        file.write(b"".join(line(text) for text in texts))
        file.flush()
        expected = "".join(f"{text}\n" for text in texts[-80:]).encode()[-2048:]
        assert read_log_tail(file.name) == expected


def test_a_message_file_that_is_none_is_told_and_not_waited_for(tmp_path: Path) -> None:
    """A container may mount a FIFO of its own where the message is expected."""
    os.mkfifo(tmp_path / "fifo")
    text = read_termination_message(str(tmp_path / "fifo"), "", False)
    assert (
        text == f"Error on reading termination log {tmp_path}/fifo: open {tmp_path}/fifo: not a regular file"
    )
    os.symlink("/etc/hostname", tmp_path / "link")
    assert "Error on reading" in read_termination_message(str(tmp_path / "link"), "", False)
    assert "not a regular file" in read_termination_message("", str(tmp_path / "fifo"), True)


def test_a_log_without_a_line_end_is_not_read_whole(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        file.truncate(1 << 40)
    assert "unsupported log format" in read_termination_message("", str(tmp_path / "log"), True)
