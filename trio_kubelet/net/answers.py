"""What is wrong with the head of an HTTP answer, as Go's `net/http` finds it. Pure."""

from __future__ import annotations

import re
from typing import Final

from trio_kubelet.common.go_words import EOF, UNEXPECTED_EOF
from trio_kubelet.common.log import go_quote

_BROKEN: Final = "net/http: HTTP/1.x transport connection broken: "
_VERSION: Final = re.compile(rb"HTTP/[0-9]\.[0-9]")
_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_LENGTH: Final = re.compile(rb"[0-9]+")


def head_fault(said: bytes, ended: bool) -> str:
    """Why what a server said first is no head of an answer; `ended`: it said no more than that."""
    if not said:
        return EOF
    lines = said.split(b"\n")
    if len(lines) == 1 and ended:
        return _BROKEN + (UNEXPECTED_EOF if b" " in said else f"malformed HTTP response {_quoted(said)}")
    return _BROKEN + (_status_fault(lines[0].rstrip(b"\r")) or _header_fault(lines[1:], ended))


def with_known_version(said: bytes) -> bytes:
    """The head with a version that h11 takes: Go takes any that looks like one."""
    if _VERSION.match(said) and not said.startswith((b"HTTP/1.0", b"HTTP/1.1")):
        return b"HTTP/1.1" + said[8:]
    return said


def _status_fault(line: bytes) -> str:
    proto, blank, status = line.partition(b" ")
    if not blank:
        return f"malformed HTTP response {_quoted(line)}"
    code = status.lstrip(b" ").partition(b" ")[0]
    if len(code) != 3 or not code.isdigit():
        return f"malformed HTTP status code {_quoted(code)}"
    if not _VERSION.fullmatch(proto):
        return f"malformed HTTP version {_quoted(proto)}"
    return ""


def _header_fault(lines: list[bytes], ended: bool) -> str:
    lengths = list[bytes]()
    for number, line in enumerate(lines):
        last = number == len(lines) - 1
        text = line.rstrip(b"\r")
        if not text:
            if last and ended:
                return UNEXPECTED_EOF
            break
        if text[:1] in b" \t":
            if number == 0:
                return f"malformed MIME header initial line: {_quoted(text)}"
            continue
        name, colon, value = text.partition(b":")
        if not colon:
            return f"malformed MIME header: missing colon: {_quoted(text)}"
        if not _NAME.fullmatch(name):
            return f"malformed MIME header line: {_quoted(text)}"
        if name.lower() == b"transfer-encoding" and value.strip().lower() != b"chunked":
            return f"unsupported transfer encoding: {_quoted(value.strip())}"
        if name.lower() == b"content-length":
            lengths.append(value.strip())
    if len(set(lengths)) > 1:
        shown = " ".join(map(_quoted, lengths))
        return f"http: message cannot contain multiple Content-Length headers; got [{shown}]"
    if lengths and not _LENGTH.fullmatch(lengths[0]):
        return f"bad Content-Length {_quoted(lengths[0])}"
    return UNEXPECTED_EOF


def _quoted(said: bytes) -> str:
    return go_quote(said.decode("utf-8", "surrogateescape"))
