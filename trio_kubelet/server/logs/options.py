"""The query of `/containerLogs`, read and checked as the kubelet does (`v1.PodLogOptions`)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from trio_kubelet.native.pure_crilog import EVERYTHING, BadLine, LogOptions, read_stamp

_NANOS: Final = 1_000_000_000
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_GO_ZERO_TIME_NS: Final = -62135596800 * _NANOS
ALL, STDOUT, STDERR = "All", "Stdout", "Stderr"

Query = Mapping[str, Sequence[str]]


class BadLogOptions(Exception):
    """The query is refused with this HTTP status and text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class PodLogOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a client wants to see of a log; None is "not said"."""

    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    since_seconds: int | None = None
    since_time_ns: int | None = None
    tail_lines: int | None = None
    limit_bytes: int | None = None
    stream: str = ALL

    def line_options(self, now_ns: int) -> LogOptions:
        """The part of it that concerns lines."""
        since = self.since_time_ns
        if self.since_seconds is not None:
            since = now_ns - self.since_seconds * _NANOS
        return LogOptions(
            stdout=self.stream in (ALL, STDOUT),
            stderr=self.stream in (ALL, STDERR),
            since_ns=since,
            timestamps=self.timestamps,
            lines=EVERYTHING if self.tail_lines is None or self.follow else self.tail_lines,
            limit_bytes=EVERYTHING if self.limit_bytes is None else self.limit_bytes,
        )


def read_log_options(query: Query) -> PodLogOptions:
    """Reads and checks a query.

    Raises BadLogOptions: 400 for what cannot be read, 422 for what makes no sense.
    """
    values = {name: found[0] for name, found in query.items() if found}
    if tail := values.get("tail"):  # the parameter of old clients
        values["tailLines"] = tail
        if tail == "all":
            del values["tailLines"]
    try:
        options = PodLogOptions(
            follow=_bool(values.get("follow")),
            previous=_bool(values.get("previous")),
            timestamps=_bool(values.get("timestamps")),
            since_seconds=read_int64(values.get("sinceSeconds")),
            since_time_ns=_time(values.get("sinceTime")),
            tail_lines=read_int64(values.get("tailLines")),
            limit_bytes=read_int64(values.get("limitBytes")),
            stream=values.get("stream", ALL),
        )
    except ValueError:
        raise BadLogOptions(400, '{"message": "Unable to decode query."}') from None
    if not _is_sensible(options):
        raise BadLogOptions(422, '{"message": "Invalid request."}')
    return options


def check_both_streams(options: PodLogOptions) -> None:
    """Without feature gate PodLogsQuerySplitStreams. Raises BadLogOptions if only one is asked for."""
    if options.stream != ALL:
        raise BadLogOptions(
            400,
            f'unable to return the given log stream: "{options.stream}". '
            "Please enable PodLogsQuerySplitStreams feature gate in kubelet",
        )


def _is_sensible(options: PodLogOptions) -> bool:
    """`ValidatePodLogOptions`."""
    if options.since_seconds is not None and (options.since_time_ns is not None or options.since_seconds < 1):
        return False
    if options.tail_lines is not None and (options.tail_lines < 0 or options.stream in (STDOUT, STDERR)):
        return False
    if options.limit_bytes is not None and options.limit_bytes < 1:
        return False
    return options.stream in (ALL, STDOUT, STDERR)


def _bool(value: str | None) -> bool:
    """A parameter that is there is true unless it says that it is not."""
    return value is not None and value != "0" and value.lower() != "false"


def read_int64(value: str | None) -> int | None:
    """A number as Go's `ParseInt` takes it. Raises ValueError."""
    if value is None:
        return None
    if not _INTEGER.fullmatch(value) or not -(2**63) <= int(value) < 2**63:
        raise ValueError(value)
    return int(value)


def _time(value: str | None) -> int | None:
    if value is None:
        return None
    if value in ("", "null"):
        return _GO_ZERO_TIME_NS
    try:
        return read_stamp(value)[0]
    except BadLine as exc:
        raise ValueError(value) from exc
