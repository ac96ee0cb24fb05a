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
    parse_integer,
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


@pytest.mark.parametrize(
    ("text", "function", "bits", "number"),
    [
        ("0", "Atoi", 64, 0),
        ("+7", "Atoi", 64, 7),
        ("-0", "Atoi", 64, 0),
        ("0" * 5000 + "12", "Atoi", 64, 12),
        ("9223372036854775807", "Atoi", 64, 2**63 - 1),
        ("-9223372036854775808", "ParseInt", 64, -(2**63)),
        ("-2147483648", "ParseInt", 32, -(2**31)),
        ("18446744073709551615", "ParseUint", 64, 2**64 - 1),
        ("65535", "ParseUint", 16, 65535),
    ],
)
def test_numbers_are_read_as_by_go(text: str, function: str, bits: int, number: int) -> None:
    assert parse_integer(text, function, bits) == number


@pytest.mark.parametrize(
    ("text", "function", "bits", "quoted", "why"),
    [
        ("", "Atoi", 64, '""', "invalid syntax"),
        ("+", "Atoi", 64, '"+"', "invalid syntax"),
        ("+-1", "Atoi", 64, '"+-1"', "invalid syntax"),
        ("1_0", "Atoi", 64, '"1_0"', "invalid syntax"),
        (" 1", "Atoi", 64, '" 1"', "invalid syntax"),
        ("1\n", "Atoi", 64, r'"1\n"', "invalid syntax"),
        ('"', "Atoi", 64, r'"\""', "invalid syntax"),
        ("٣", "Atoi", 64, '"٣"', "invalid syntax"),
        ("²", "ParseInt", 32, '"²"', "invalid syntax"),
        ("+1", "ParseUint", 16, '"+1"', "invalid syntax"),
        ("-1", "ParseUint", 16, '"-1"', "invalid syntax"),
        ("65536", "ParseUint", 16, '"65536"', "value out of range"),
        ("9223372036854775808", "Atoi", 64, '"9223372036854775808"', "value out of range"),
        ("-9223372036854775809", "Atoi", 64, '"-9223372036854775809"', "value out of range"),
        ("2147483648", "ParseInt", 32, '"2147483648"', "value out of range"),
        ("9" * 5000, "Atoi", 64, f'"{"9" * 5000}"', "value out of range"),
    ],
)
def test_what_is_no_number_is_refused_in_gos_words(
    text: str, function: str, bits: int, quoted: str, why: str
) -> None:
    with pytest.raises(ValueError, match=r"^strconv") as refused:
        parse_integer(text, function, bits)
    assert str(refused.value) == f"strconv.{function}: parsing {quoted}: {why}"
