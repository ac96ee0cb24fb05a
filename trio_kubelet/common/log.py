"""Structured logging in klog's two formats.

A node's log collectors, alert rules and people read the kubelet's lines, so the agent writes the same ones:
klog's text format (`I1121 08:51:06.056395   12345 file.py:123] "Message" key="value"`) or component-base's
JSON (`{"ts":…,"caller":…,"msg":…,"v":0,…}`). Python's own `logging` is not used: it is slower, and its
records carry neither verbosity levels nor typed key/value pairs.

Two promises hold for every call: it never raises, and it never waits for a slow reader (`log_writer`).
"""

from __future__ import annotations

import fnmatch
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import IO, Any, Final, Literal

import msgspec

from trio_kubelet.common.log_writer import LogWriter, log_writer

LONGEST_VALUE: Final = 16 * 1024
"""Characters of one value in a line: errors quote what pods and runtimes say, which may be megabytes."""
# Values under these keys are credentials wherever they come from; nobody may log them by accident.
_SECRET_KEYS: Final = frozenset({"token", "password", "authorization", "headers", "cookie"})
_REDACTED: Final = "<redacted>"

_ESCAPES: Final = {
    ord("\a"): "\\a",
    ord("\b"): "\\b",
    ord("\f"): "\\f",
    ord("\n"): "\\n",
    ord("\r"): "\\r",
    ord("\t"): "\\t",
    ord("\v"): "\\v",
    ord("\\"): "\\\\",
    ord('"'): '\\"',
}

_ODD = re.compile(r"""[^ !#-\[\]-~]+""")  # what may need an escape


def go_quote(text: str) -> str:
    """`text` between double quotes with Go's `%q` escapes."""
    if text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    return f'"{_ODD.sub(_quote_odd, text)}"'


def _quote_odd(match: re.Match[str]) -> str:
    return "".join(map(_quote_char, match[0]))


def _quote_char(char: str) -> str:
    code = ord(char)
    if (escape := _ESCAPES.get(code)) is not None:
        return escape
    if 0xDC80 <= code <= 0xDCFF:  # a byte that was not UTF-8, as Python keeps it in file names
        return f"\\x{code - 0xDC00:02x}"
    if char.isprintable():
        return char
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def shortened(text: str, longest: int) -> str:
    """`text`, or in `longest` characters the beginning of what is longer and how long it was."""
    if len(text) <= longest:
        return text
    mark = f"...({len(text)} characters)"
    return text[: longest - len(mark)] + mark


def describe_error(err: BaseException) -> str:
    """One text for an exception: its message, with the type where the message alone says too little.

    An exception group reads like the kubelet's aggregates: `[first, second]`.
    """
    if isinstance(err, BaseExceptionGroup):
        parts = [describe_error(e) for e in err.exceptions]
        return parts[0] if len(parts) == 1 else "[" + ", ".join(parts) + "]"
    if isinstance(err, OSError):
        from trio_kubelet.common.go_words import error_words  # needs Trio, which reading options does not

        return error_words(err)
    text = str(err)
    if not text:
        name = type(err).__name__
        # Trio's, as Go says it; by its name, for options are read without Trio.
        return "context deadline exceeded" if name == "TooSlowError" else name
    if type(err).__module__ == "builtins" and not isinstance(err, ValueError):
        return f"{type(err).__name__}: {text}"
    return text


def _object_ref(value: object) -> tuple[str, str] | None:
    """(namespace, name) of an API object, its metadata, or a reference to it; else None."""
    source = getattr(value, "metadata", value)
    name, namespace = getattr(source, "name", None), getattr(source, "namespace", None)
    if isinstance(name, str) and isinstance(namespace, str):
        return namespace, name
    return None


def _object_refs(value: object) -> list[tuple[str, str]]:
    """The references of a list that holds nothing else; else an empty list."""
    if not isinstance(value, list | tuple):
        return []
    refs = [ref for item in value if (ref := _object_ref(item)) is not None]
    return refs if len(refs) == len(value) else []


def _ref_text(ref: tuple[str, str]) -> str:
    return "/".join(filter(None, ref))


def _ref_object(ref: tuple[str, str]) -> dict[str, str]:
    return {key: text for key, text in (("name", ref[1]), ("namespace", ref[0])) if text}


def _encode_odd(value: object) -> object:
    """Something JSON knows for a value msgspec does not."""
    if isinstance(value, BaseException):
        return describe_error(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Iterable):
        return list(value)
    return str(value)


_encoder = msgspec.json.Encoder(enc_hook=_encode_odd)


def _plain(key: str, value: object, as_json: bool) -> object:
    """`value` as str, bytes, or something for JSON.

    Objects with a namespace and a name are shown by these alone: `ns/name` in text, an object in JSON.
    """
    if isinstance(value, str | int | float | bytes | None):
        return _REDACTED if key.lower() in _SECRET_KEYS and value else value
    if key.lower() in _SECRET_KEYS:
        return _REDACTED
    if isinstance(value, BaseException):
        return describe_error(value)
    if (ref := _object_ref(value)) is not None:
        return _ref_object(ref) if as_json else _ref_text(ref)
    if refs := _object_refs(value):
        return list(map(_ref_object, refs)) if as_json else f"[{' '.join(map(_ref_text, refs))}]"
    return value


def _text_value(value: object) -> str:
    """The part behind the key of a text line, with its `=`."""
    if isinstance(value, str):
        value = shortened(value, LONGEST_VALUE)
        if "\n" not in value:
            return "=" + go_quote(value)
        lines = value.removesuffix("\n").split("\n")
        return "=<\n" + "".join(f"\t{_harmless(line)}\n" for line in lines) + " >"
    if isinstance(value, bytes):
        text = shortened(value.decode("utf-8", "surrogateescape"), LONGEST_VALUE)
        return "=" + go_quote(text).encode("ascii", "backslashreplace").decode()
    return "=" + shortened(_encoder.encode(value).decode(), LONGEST_VALUE)


def _json_value(value: object) -> object:
    """The value in a JSON line; of an object that is too large its text, as it has no beginning."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "surrogateescape")
    if isinstance(value, str):
        return shortened(value, LONGEST_VALUE).encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    encoded = _encoder.encode(value)
    return msgspec.Raw(encoded) if len(encoded) <= LONGEST_VALUE else _json_value(encoded)


def _harmless(line: str) -> str:
    """A line of a text that others wrote, without what a terminal would obey: klog passes that on."""
    if line.isprintable():
        return line
    return "".join(char if char.isprintable() or char == "\t" else _quote_char(char) for char in line)


def format_text(header: str, msg: str, pairs: Iterable[tuple[str, object]]) -> str:
    """One klog text line (or block, where a value has several lines), newline included."""
    body = "".join(f" {key}{_text_value(_plain(key, value, as_json=False))}" for key, value in pairs)
    return f"{header}{go_quote(msg)}{body}\n"


def format_json(
    now_ns: int, caller: str, msg: str, v: int | None, pairs: Iterable[tuple[str, object]]
) -> str:
    """One line as component-base's JSON logger writes it; `v` is None for errors, which carry no level."""
    record: dict[str, object] = {"ts": now_ns / 1e6, "caller": caller, "msg": msg}
    if v is not None:
        record["v"] = v
    for key, value in pairs:
        record[key] = _json_value(_plain(key, value, as_json=True))
    return _encoder.encode(record).decode() + "\n"


class _Sink:
    """Where lines go and how they look; replaced as a whole by `configure`."""

    __slots__ = ("as_json", "errors", "infos", "now_ns", "verbosity", "vmodule")

    def __init__(
        self,
        as_json: bool,
        verbosity: int,
        vmodule: Sequence[tuple[str, int]],
        infos: LogWriter,
        errors: LogWriter,
        now_ns: Callable[[], int],
    ) -> None:
        self.as_json = as_json
        self.verbosity = verbosity
        self.vmodule = vmodule
        self.infos = infos
        self.errors = errors
        self.now_ns = now_ns

    def level_for(self, name: str) -> int:
        """The verbosity of module `name`: the first matching vmodule pattern, else the general one.

        As with klog, a pattern without a slash is matched against the file's base name, one with a slash
        against the path.
        """
        path = name.replace(".", "/")
        for pattern, level in self.vmodule:
            if fnmatch.fnmatchcase(path if "/" in pattern else path.rpartition("/")[2], pattern):
                return level
        return self.verbosity


_second = (-1, "")


def _header(severity: str, now_ns: int, file: str, line: int) -> str:
    global _second
    sec, nanos = divmod(now_ns, 1_000_000_000)
    second = _second  # once: other threads log as well
    if second[0] != sec:
        _second = second = (sec, time.strftime("%m%d %H:%M:%S", time.localtime(sec)))
    return f"{severity}{second[1]}.{nanos // 1000:06d} {os.getpid():7d} {file}:{line}] "


class Logger:
    """Logs for one module; made by `get_logger`. `enabled` is false when its lines would be dropped."""

    __slots__ = ("_level", "_name", "_v", "enabled")

    def __init__(self, name: str, level: int, v: int = 0) -> None:
        self._name = name
        self._level = level
        self._v = v
        self.enabled = v <= level

    def v(self, level: int) -> Logger:
        """The same logger for lines of verbosity `level`: they appear with `-v=level` or more."""
        if level <= self._level:
            return Logger(self._name, self._level, level)
        return _DROP

    def info(self, msg: str, /, **kv: Any) -> None:
        if self.enabled:
            _emit("I", self._v, msg, kv)

    def warning(self, msg: str, /, **kv: Any) -> None:
        if self.enabled:
            _emit("W", self._v, msg, kv)

    def error(self, msg: str, /, **kv: Any) -> None:
        """An error line; the exception goes into `err` and is shown first."""
        if self.enabled:
            _emit("E", None, msg, kv)


def _lost(lines: int) -> str:
    """The line that tells how many were lost."""
    return f'{_header("W", time.time_ns(), "log.py", 0)}"Log lines dropped" count={lines}\n'


_DROP: Final = Logger("", -1)
_loggers: dict[str, Logger] = {}
_sink = _Sink(False, 0, (), *(LogWriter(None, _lost),) * 2, time.time_ns)


def _emit(severity: str, v: int | None, msg: str, kv: dict[str, Any]) -> None:
    sink = _sink
    try:
        frame = sys._getframe(2)
        path, line = frame.f_code.co_filename, frame.f_lineno
        pairs = list(kv.items())
        if "err" in kv:
            pairs.insert(0, ("err", kv["err"]))
            pairs.pop(1 + list(kv).index("err"))
            if kv["err"] is None:
                pairs.pop(0)
        if sink.as_json:
            text = format_json(sink.now_ns(), f"{'/'.join(path.split('/')[-2:])}:{line}", msg, v, pairs)
        else:
            header = _header(severity, sink.now_ns(), path.rpartition("/")[2], line)
            text = format_text(header, msg, pairs)
        (sink.errors if severity == "E" else sink.infos).write(text)
    except Exception as error:  # a log line must never take down what it reports about
        _emit_failure(sink, msg, error)


def _emit_failure(sink: _Sink, msg: str, error: Exception) -> None:
    try:
        line = (
            f"{_header('E', time.time_ns(), 'log.py', 0)}{go_quote(msg)} logError={go_quote(repr(error))}\n"
        )
        sink.errors.write(line)
    except Exception:
        return


def get_logger(name: str) -> Logger:
    """The logger of module `name` (`__name__`); the same object each time."""
    logger = _loggers.get(name)
    if logger is None:
        logger = _loggers[name] = Logger(name, _sink.level_for(name))
    return logger


def configure(
    format: Literal["text", "json"] = "text",
    verbosity: int = 0,
    vmodule: Sequence[tuple[str, int]] = (),
    stream: IO[str] | None = None,
    info_stream: IO[str] | None = None,
    now_ns: Callable[[], int] = time.time_ns,
    in_thread: bool = False,
) -> None:
    """Set format, verbosity and streams for all loggers, those that exist already included.

    `vmodule` holds (file pattern, verbosity) pairs. Everything goes to `stream` (standard error by default),
    unless `info_stream` is given: then information and warnings go there and errors to `stream`. With
    `in_thread` a thread writes what goes to a file; the last lines are there after `flush`.
    """
    global _sink
    errors = log_writer(stream, _lost, in_thread)
    infos = errors if info_stream is None else log_writer(info_stream, _lost, in_thread)
    _sink = _Sink(format == "json", verbosity, tuple(vmodule), infos, errors, now_ns)
    _set_levels()


def set_verbosity(verbosity: int) -> None:
    """Another verbosity for all loggers from now on; what vmodule patterns say stays."""
    _sink.verbosity = verbosity
    _set_levels()


def _set_levels() -> None:
    for name, logger in list(_loggers.items()):  # a thread may just import a module, with its logger
        logger._level = _sink.level_for(name)


def flush(timeout: float = 1.0) -> None:
    """Write out what a slow reader has not taken yet; for the end of the process. `timeout` in seconds."""
    for writer in {_sink.infos, _sink.errors}:
        writer.flush(timeout)
