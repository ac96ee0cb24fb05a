"""The node log query: what `/logs/?query=…` may ask for, as pure functions.

What cannot be read is a 400, what may not be asked a 406, in the words of the API machinery's field errors.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from trio_kubelet.api.validation.problems import shown
from trio_kubelet.common.go_words import parse_integer

MOST_LINES = 100_000
LONGEST_NAME = 256
MOST_SERVICES = 4

_RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", re.ASCII)
_UNSAFE = re.compile(r"[^a-zA-Z\-_.:0-9@]")


class LogQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query: services (units) or files below the log directory, and what to take of the services' logs."""

    services: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    since: datetime.datetime | None = None
    until: datetime.datetime | None = None
    until_text: str = ""
    tail_lines: int | None = None
    boot: int | None = None
    pattern: str = ""

    @property
    def has_options(self) -> bool:
        """Whether more is asked than whole logs."""
        given = (self.since, self.until, self.tail_lines, self.boot)
        return bool(self.pattern) or any(value is not None for value in given)


NOTHING = LogQuery()


def _invalid(field: str, value: object, detail: str) -> str:
    return f"{field}: Invalid value: {shown(value)}: {detail}"


def read_query(query: Mapping[str, Sequence[str]]) -> tuple[LogQuery, list[str]]:
    """The query in a request's parameters, and what of it cannot be read; `NOTHING` when nothing is asked."""
    errors: list[str] = []
    asked = list(query.get("query", ()))
    files = tuple(name for name in asked if "/" in name or "\\" in name)
    services = tuple(name for name in asked if name not in files and name.strip())
    if "query" in query and not files and not services:
        errors.append(_invalid("query", asked, "query cannot be empty"))
    since = _read_time("sinceTime", query, errors)
    until = _read_time("untilTime", query, errors)
    boot = _read_number("boot", query, errors)
    tail_lines = _read_number("tailLines", query, errors)
    return LogQuery(
        services=services,
        files=files,
        since=since,
        until=until,
        until_text=_first(query, "untilTime"),
        tail_lines=tail_lines,
        boot=boot,
        pattern=_first(query, "pattern"),
    ), errors


def _first(query: Mapping[str, Sequence[str]], name: str) -> str:
    return next(iter(query.get(name, ())), "")


def _read_time(name: str, query: Mapping[str, Sequence[str]], errors: list[str]) -> datetime.datetime | None:
    value = _first(query, name)
    if not value:
        return None
    try:
        if not _RFC3339.fullmatch(value) or value[11:13] == "24":  # Python reads 24:00, from 3.14 on
            raise ValueError(value)
        return datetime.datetime.fromisoformat(value).astimezone(datetime.UTC)
    except (ValueError, OverflowError):  # in UTC it may be of a year that is none
        errors.append(_invalid(name, value, "invalid time format"))
        return None


def _read_number(name: str, query: Mapping[str, Sequence[str]], errors: list[str]) -> int | None:
    value = _first(query, name)
    if not value:
        return None
    try:
        return parse_integer(value)
    except ValueError as exc:
        errors.append(_invalid(name, value, str(exc)))
        return None


def validate(query: LogQuery, file_error: str | None) -> list[str]:
    """What may not be asked; `file_error` tells why the one file that is asked for cannot be had."""
    errors = [error for name in query.services if (error := _check_service(name))]
    if len(query.services) > MOST_SERVICES:
        errors.append(f"query: Too many: {len(query.services)}: must have at most {MOST_SERVICES} items")
    errors += _check_choice(query, file_error)
    if query.since is not None and query.until is not None and query.since > query.until:
        errors.append(_invalid("untilTime", query.until_text, "must be after `sinceTime`"))
    if query.boot is not None and query.boot > 0:
        errors.append(_invalid("boot", query.boot, "must be less than 1"))
    if query.tail_lines is not None and not 0 <= query.tail_lines <= MOST_LINES:
        detail = f"must be between 0 and {MOST_LINES}, inclusive"
        errors.append(_invalid("tailLines", query.tail_lines, detail))
    if (error := regexp_fault(query.pattern)) is not None:
        errors.append(_invalid("pattern", query.pattern, error))
    return errors


def _check_service(name: str) -> str | None:
    if len(name.encode("utf-8", "surrogatepass")) > LONGEST_NAME:
        return _invalid("query", name, f"length must be less than {LONGEST_NAME}")
    if _UNSAFE.search(name):
        return _invalid("query", name, "input contains unsupported characters")
    return None


def _check_choice(query: LogQuery, file_error: str | None) -> list[str]:
    files, services = query.files, query.services
    if not files and not services:
        return ["query: Required value: cannot be empty with options"]
    if files and services:
        both = f"[{' '.join(files)}], [{' '.join(services)}]"
        return [_invalid("query", both, "cannot specify a file and service")]
    if len(files) > 1:
        return [_invalid("query", list(files), "cannot specify more than one file")]
    if files and query.has_options:
        return [_invalid("query", list(files), "cannot specify file with options")]
    if files and file_error is not None:
        return [_invalid("query", list(files), file_error)]
    return []


def journal_arguments(query: LogQuery, units: Sequence[str]) -> list[str]:
    """How journalctl is called for a query.

    Times are given in UTC and say so; the kubelet gives the beginning as the end as well.
    """
    arguments = ["--utc", "--no-pager", "--output=short-precise"]
    for name, moment in (("since", query.since), ("until", query.until)):
        if moment is not None:
            arguments.append(f"--{name}={moment:%Y-%m-%d %H:%M:%S} UTC")
    if query.tail_lines is not None:
        arguments += ["--pager-end", f"--lines={query.tail_lines}"]
    arguments += [f"--unit={unit}" for unit in units]
    if query.pattern:
        arguments += [f"--grep={query.pattern}", "--case-sensitive=false"]
    if query.boot is not None:
        arguments += ["--boot", str(query.boot)]
    return arguments


_GO_WORDS: Final = {
    "missing ]": "missing closing ]",
    "missing )": "missing closing )",
    "trailing \\": "trailing backslash at end of expression",
    "no argument for repetition operator": "missing argument to repetition operator",
    "invalid repetition size": "invalid repeat count",
    "bad repetition operator": "invalid nested repetition operator",
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "invalid named capture group": "invalid named capture",
    "pattern too large - compile failed": "expression too large",
}


def regexp_fault(pattern: str) -> str | None:
    """What Go's `regexp` says about a pattern that it does not read; None for one that it does.

    The kubelet checks the pattern so, and then hands it to journalctl, which reads it as PCRE2: what is
    found is not decided here. Go's syntax is RE2's: look-around, back-references and possessive repetition
    are faults. RE2 differs in any byte (`\\C`), which it takes, in long names of Unicode categories, which
    it does not know, and in which of two faults it names. Without RE2 (the extra `go-patterns`) every
    pattern is one, and journalctl says what is wrong with it.
    """
    try:
        import re2  # only a node with the log query enabled pays for it
    except ImportError:
        return None
    options = re2.Options()
    options.log_errors = False
    try:
        re2.compile(pattern.encode("utf-8", "surrogatepass"), options)
    except re2.error as error:
        reason, _, part = error.args[0].decode("utf-8", "replace").partition(": ")
        return f"error parsing regexp: {_GO_WORDS.get(reason, reason)}: `{part}`"
    return None
