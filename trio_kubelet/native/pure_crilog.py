"""Container log files turned into what a reader asked for, in plain Python: decides what is right.

Follows the kubelet's reader (`cri-client/pkg/logs`): the first line settles whether a file has the CRI format
(`TIME STREAM TAGS CONTENT`, a first tag `P` marking a line that goes on in the next) or Docker's JSON; a line
that cannot be read is left out; all lines count for the number of lines wanted, also those of another
stream. `crilog` does the same many times faster for lines of the usual shape and hands the others back.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final, NamedTuple

import msgspec

from trio_kubelet.common.deep_json import decode_flat
from trio_kubelet.common.log import go_quote

EVERYTHING: Final = -1
"""No limit of lines or bytes."""

_NANOS: Final = 1_000_000_000
_STAMP: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)T(\d\d?):(\d\d):(\d\d)(?:[.,](\d+))?(?:(Z)|([+-])(\d\d):(\d\d))", re.ASCII
)


class LogOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader wants. `since_ns`: nothing from before that moment. `lines`: at most so many are read."""

    stdout: bool = True
    stderr: bool = True
    since_ns: int | None = None
    timestamps: bool = False
    lines: int = EVERYTHING
    limit_bytes: int = EVERYTHING


class Copied(NamedTuple):
    """What became of a piece of a file: output, bytes of the piece that are dealt with, whether that is all
    the reader wants.
    """

    output: bytes
    consumed: int
    done: bool


class UnsupportedLog(Exception):
    """The first line has neither format, or one of Docker's is of no stream."""


class BadLine(Exception):
    """A line that is not of the file's format."""


class Message(NamedTuple):
    """One line of a log. `stamp`: its time in the fixed width of the output."""

    time_ns: int
    stamp: str
    stream: str
    content: bytes


class _JSONLine(msgspec.Struct):
    log: str | None = None
    stream: str | None = None
    time: str | None = None


def read_stamp(text: str) -> tuple[int, str]:
    """Nanoseconds since the epoch, and the same moment with nine digits behind the point, in its own zone.

    Raises BadLine. As Go's `time.Parse` with RFC3339Nano: one digit for the hour and a comma will do, digits
    behind the ninth are dropped.
    """
    match = _STAMP.fullmatch(text)
    if match is None or match[2] == "24":  # which Python reads as the next day's midnight, from 3.14 on
        raise BadLine(f"unexpected timestamp format: {text!r}")
    day, hour, minute, second, fraction, _, sign, zone_hours, zone_minutes = match.groups()
    clock = f"{hour:0>2}:{minute}:{second}"
    try:
        # Year 0 exists for Go and not for datetime; 400 years later the calendar is the same.
        shift = 400 if day.startswith("0000") else 0
        moment = datetime.fromisoformat(f"{int(day[:4]) + shift:04d}{day[4:]}T{clock}+00:00")
    except ValueError:
        raise BadLine(f"unexpected timestamp format: {text!r}") from None
    since_epoch = moment - datetime.fromisoformat("1970-01-01T00:00:00+00:00")
    seconds = since_epoch.days * 86400 + since_epoch.seconds - shift // 400 * 146097 * 86400
    offset = 0
    if sign:
        if int(zone_hours) > 23 or int(zone_minutes) > 59:
            raise BadLine(f"unexpected timestamp format: {text!r}")
        offset = (int(zone_hours) * 60 + int(zone_minutes)) * 60
    zone = f"{sign}{zone_hours}:{zone_minutes}" if offset else "Z"
    nanos = (fraction or "")[:9].ljust(9, "0")
    seconds -= -offset if sign == "-" else offset
    return seconds * _NANOS + int(nanos), f"{day}T{clock}.{nanos}{zone}"


def read_cri(line: bytes) -> Message:
    """A line of the CRI format, with or without its newline. Raises BadLine."""
    parts = line.split(b" ", 3)
    if len(parts) < 4:
        raise BadLine("time, stream or tags are missing")
    time, stream, tags, content = parts
    time_ns, stamp = read_stamp(time.decode("latin-1"))
    if stream not in (b"stdout", b"stderr"):
        raise BadLine(f"unexpected stream type {stream!r}")
    if tags.split(b":")[0] == b"P":
        content = content.removesuffix(b"\n")
    return Message(time_ns, stamp, stream.decode(), content)


def read_json(line: bytes) -> Message:
    """A line of Docker's JSON format. Raises BadLine."""
    try:
        found = decode_flat(line, _JSONLine)
    except msgspec.DecodeError as exc:
        raise BadLine(str(exc)) from None
    time_ns, stamp = read_stamp("0001-01-01T00:00:00Z" if found.time is None else found.time)
    return Message(time_ns, stamp, found.stream or "", (found.log or "").encode("utf-8", "surrogatepass"))


class PureLogFilter:
    """A log file, piece after piece, as its reader wants it."""

    def __init__(self, options: LogOptions) -> None:
        self.options = options
        self.lines_left = options.lines
        self.bytes_left = options.limit_bytes
        self.new_line = True  # whether the next output starts a line
        self._read = read_cri
        self._settled = False

    @property
    def is_cri(self) -> bool:
        """Whether the file is known to have the CRI format."""
        return self._settled and self._read is read_cri

    @property
    def done(self) -> bool:
        """Whether the reader has all it wants."""
        return self.lines_left == 0 or self.bytes_left == 0

    def copy(self, data: bytes, final: bool = False) -> Copied:
        """Deals with the whole lines of a piece; with `final`, also with a last one that has no newline.

        Raises UnsupportedLog.
        """
        output: list[bytes] = []
        at = 0
        while not self.done and at < len(data):
            end = data.find(b"\n", at) + 1 or (len(data) if final else 0)
            if end == 0:
                break
            output.append(self.take(data[at:end]))
            at = end
        return Copied(b"".join(output), at, self.done)

    def take(self, line: bytes) -> bytes:
        """What of one line is put out. Raises UnsupportedLog."""
        if not self._settled:
            self._settle(line)
        try:
            message = self._read(line)
        except BadLine:
            return b""
        output = self._cut(message) if self._is_wanted(message) else b""
        self.lines_left -= self.lines_left > 0
        self.new_line = not message.content or message.content.endswith(b"\n")
        return output

    def _is_wanted(self, message: Message) -> bool:
        options = self.options
        if options.since_ns is not None and message.time_ns < options.since_ns:
            return False
        match message.stream:
            case "stdout":
                return options.stdout
            case "stderr":
                return options.stderr
        raise UnsupportedLog(f"unexpected stream type {go_quote(message.stream)}")

    def _cut(self, message: Message) -> bytes:
        line = message.content
        if self.options.timestamps and self.new_line:
            line = message.stamp.encode() + b" " + line
        if self.bytes_left != EVERYTHING:
            line = line[: self.bytes_left]
            self.bytes_left -= len(line)
        return line

    def _settle(self, line: bytes) -> None:
        for read in (read_cri, read_json):
            try:
                read(line)
            except BadLine:
                continue
            self._read, self._settled = read, True
            return
        shown = go_quote(line[:200].decode("utf-8", "surrogateescape"))
        raise UnsupportedLog(f"failed to get parse function: unsupported log format: {shown}")
