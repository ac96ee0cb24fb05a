"""The queries of exec, attach and portForward, read and checked as the kubelet does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from trio_kubelet.common.go_words import parse_integer

Query = Mapping[str, Sequence[str]]


class BadStreamOptions(Exception):
    """The query is refused; the text is the kubelet's."""


class StreamOptions(NamedTuple):
    """Which streams of a command a client wants."""

    stdin: bool
    stdout: bool
    stderr: bool
    tty: bool


def read_stream_options(query: Query) -> StreamOptions:
    """`input`, `output`, `error`, `tty`, each only when it is "1". A terminal has no stderr of its own.

    Raises BadStreamOptions when no stream is asked for.
    """

    def is_set(name: str) -> bool:
        return bool(query.get(name)) and query[name][0] == "1"

    tty = is_set("tty")
    options = StreamOptions(is_set("input"), is_set("output"), is_set("error") and not tty, tty)
    if not (options.stdin or options.stdout or options.stderr):
        raise BadStreamOptions("you must specify at least 1 of stdin, stdout, stderr")
    return options


def read_ports(query: Query) -> list[int]:
    """`port`, repeated or with commas, as a WebSocket client has to give it. Raises BadStreamOptions."""
    given = query.get("port") or ()
    if not given:
        raise BadStreamOptions('query parameter "port" is required')
    ports: list[int] = []
    for text in given:
        if not text:
            raise BadStreamOptions('query parameter "port" cannot be empty')
        ports += [_port(text, part) for part in text.split(",")]
    return ports


def _port(text: str, part: str) -> int:
    try:
        number = parse_integer(part, "ParseUint", 16)
    except ValueError as exc:
        raise BadStreamOptions(f'unable to parse "{text}" as a port: {exc}') from None
    if number < 1:
        raise BadStreamOptions(f'port "{text}" must be > 0')
    return number
