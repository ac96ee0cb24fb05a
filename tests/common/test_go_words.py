"""Errors in Go's words: the system's against Go's own table, files and connections by provoking them."""

from __future__ import annotations

import errno
import json
import os
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from trio_kubelet.common.go_words import (
    LookupFailure,
    alert_words,
    connection_words,
    dial_words,
    errno_words,
    error_words,
    os_words,
    tls_words,
)

WORDS = json.loads((Path(__file__).parents[1] / "golden" / "go-errnos.json").read_text())["words"]
SAME = {number: words for number, words in WORDS.items() if int(number) in errno.errorcode}


@pytest.mark.parametrize("number", SAME)
def test_error_numbers(number: str) -> None:
    assert errno_words(int(number)) == SAME[number]


def test_a_number_that_there_is_not() -> None:
    assert errno_words(9999) == "errno 9999"
    assert errno_words(133) == WORDS.get("133", "errno 133") == "errno 133"


@pytest.mark.parametrize(
    ("operation", "do", "words"),
    [
        ("open", lambda top: open(f"{top}/none/x").close(), "open {top}/none/x: no such file or directory"),
        ("mkdir", lambda top: os.makedirs(f"{top}/file/x"), "mkdir {top}/file/x: not a directory"),
        ("mkdir", lambda top: os.mkdir(top), "mkdir {top}: file exists"),
        ("remove", lambda top: os.rmdir(top), "remove {top}: directory not empty"),
        ("rename", lambda top: os.rename(f"{top}/a", "/b"), "rename {top}/a /b: no such file or directory"),
        ("open", lambda top: open("/" + "x" * 300).close(), "open /" + "x" * 300 + ": file name too long"),
        ("", lambda top: open(f"{top}/none").close(), "{top}/none: no such file or directory"),
        ("read", lambda top: os.read(9999, 1), "bad file descriptor"),
    ],
)  # fmt: skip
def test_files(operation: str, do: Callable[[str], object], words: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError) as caught:
        do(str(tmp_path))
    assert error_words(caught.value, operation) == words.format(top=tmp_path)


def test_what_the_agent_says_itself_stays() -> None:
    busy = OSError(errno.EBUSY, "still mounted: /a", "/b")
    assert error_words(busy) == "/b: still mounted: /a"
    assert error_words(OSError("the whole text")) == "the whole text"
    assert error_words(ValueError("x")) == "x"
    assert error_words(KeyError()) == "KeyError"
    assert error_words(trio.TooSlowError()) == "context deadline exceeded"
    inner = ExceptionGroup("h", [OSError(5, os.strerror(5))])
    assert error_words(ExceptionGroup("g", [ValueError("a"), inner])) == "[a, input/output error]"


@pytest.mark.parametrize("number", sorted(errno.errorcode))
def test_pythons_numbers_are_never_shown(number: int) -> None:
    error = OSError(number, os.strerror(number), "/path")
    broken = trio.BrokenResourceError()
    broken.__cause__ = OSError(number, os.strerror(number))
    for text in (
        error_words(error),
        os_words(error),
        connection_words(broken),
        dial_words(error, "h", "h:1"),
    ):
        assert "Errno" not in text
        assert "[" not in text


def test_every_reason_of_openssl_reads_like_go() -> None:
    """No `[SSL: …] … (_ssl.c:1006)`, whatever OpenSSL finds."""
    for reason in (
        "WRONG_VERSION_NUMBER",
        "TLSV1_ALERT_INTERNAL_ERROR",
        "NO_SHARED_CIPHER",
        "NEW",
        "",
    ):
        error = ssl.SSLError(1, f"[SSL: {reason}] words (_ssl.c:1006)")
        error.reason = reason
        text = tls_words(error)
        assert "_ssl.c" not in text
        assert "SSL" not in text
    assert alert_words(40) == "remote error: tls: handshake failure"
    assert alert_words(200) == "remote error: tls: alert(200)"


def test_names() -> None:
    missing = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    later = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    assert dial_words(missing, "h", "h:1") == "dial tcp: lookup h: no such host"
    assert dial_words(later, "h", "h:1") == "dial tcp: lookup h: server misbehaving"
    assert (
        dial_words(UnicodeError("label too long"), "a..b", "a..b:1") == "dial tcp: lookup a..b: no such host"
    )
    told = LookupFailure(missing, "10.0.0.10:53")
    assert dial_words(told, "h", "h:1") == "dial tcp: lookup h on 10.0.0.10:53: no such host"
    silent = LookupFailure(later, "10.0.0.10:53", silent=True)
    assert dial_words(silent, "h", "h:1") == (
        "dial tcp: lookup h on 10.0.0.10:53: read udp 10.0.0.10:53: i/o timeout"
    )
    assert dial_words(trio.TooSlowError(), "h", "h:1") == "dial tcp h:1: i/o timeout"
