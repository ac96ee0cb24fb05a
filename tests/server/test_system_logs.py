"""`/logs/`: files as Go's file server gives them, and the node log query with its refusals."""

from __future__ import annotations

import gzip
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from tests.cancelling import descriptors
from tests.server.test_go_regexp import needs_re2
from trio_kubelet.common.beneath import look_beneath
from trio_kubelet.common.lanes import NODE_LOGS
from trio_kubelet.server.doors import ClosableBody
from trio_kubelet.server.http.messages import Request, Response, parse_target
from trio_kubelet.server.http.ranges import InvalidRange, wanted_ranges
from trio_kubelet.server.logs import system_logs
from trio_kubelet.server.logs.query import journal_arguments, read_query
from trio_kubelet.server.logs.system_logs import SystemLogs

WHEN = 1_767_323_045  # Fri, 02 Jan 2026 03:04:05 GMT


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    directory = tmp_path / "log"
    (directory / "app" / "sub dir&<x>").mkdir(parents=True)
    (directory / "app" / "a.log").write_text("0123456789\nabc\n")
    (directory / "app" / "b.log.gz").write_bytes(gzip.compress(b"old"))
    (directory / "app" / "späce %25.log").write_text("")
    (directory / "app" / "app.log").write_text("app's own\n")
    (directory / "kubelet.log").write_text("kubelet's\n")
    (tmp_path / "secret").write_text("secret")
    os.symlink(tmp_path / "secret", directory / "out")
    os.mkfifo(directory / "pipe")
    os.utime(directory / "app" / "a.log", (WHEN, WHEN))
    return directory


async def ask(logs: Path, target: str, queries: bool = True, **headers: str) -> tuple[Response, str]:
    path, query = parse_target(target)
    named = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    request = Request(method="GET", path=path, target=target, query=query, headers=named)
    answer = await SystemLogs(queries, str(logs), "no-such-journalctl").get(request)
    assert isinstance(answer, Response)
    if isinstance(answer.body, bytes):
        return answer, answer.body.decode()
    return answer, (await taken(answer.body)).decode("latin-1")


async def taken(body: AsyncIterator[bytes]) -> bytes:
    try:
        return b"".join([piece async for piece in body])
    finally:
        if isinstance(body, ClosableBody):
            await body.aclose()


async def test_a_directory(logs: Path) -> None:
    answer, body = await ask(logs, "/logs/app/")
    assert answer.status == 200
    assert body == (
        '<!doctype html>\n<meta name="viewport" content="width=device-width">\n<pre>\n'
        '<a href="a.log">a.log</a>\n<a href="app.log">app.log</a>\n<a href="b.log.gz">b.log.gz</a>\n'
        '<a href="sp%C3%A4ce%20%2525.log">späce %25.log</a>\n'
        '<a href="sub%20dir&%3Cx%3E/">sub dir&amp;&lt;x&gt;/</a>\n</pre>\n'
    )


@pytest.mark.parametrize(
    ("target", "place"),
    [
        ("/logs/app", "app/"),
        ("/logs/app/a.log/", "../a.log"),
        ("/logs/app/index.html", "./"),
        ("/logs/app?foo=1", "app/?foo=1"),
    ],
)
async def test_redirects(logs: Path, target: str, place: str) -> None:
    answer, body = await ask(logs, target)
    assert (answer.status, dict(answer.headers)["Location"], body) == (301, place, "")


@pytest.mark.parametrize(
    ("wanted", "status", "body", "shown"),
    [
        (None, 200, "0123456789\nabc\n", None),
        ("bytes=2-4", 206, "234", "bytes 2-4/15"),
        ("bytes=-3", 206, "bc\n", "bytes 12-14/15"),
        ("bytes=13-", 206, "c\n", "bytes 13-14/15"),
        ("bytes=13-99", 206, "c\n", "bytes 13-14/15"),
        ("bytes=200-400", 416, "invalid range: failed to overlap\n", "bytes */15"),
        ("bytes=200-400,1-2", 206, "12", "bytes 1-2/15"),
        ("bytes=0-,0-", 200, "0123456789\nabc\n", None),
        ("lines=1-2", 416, "invalid range\n", None),
        ("bytes=5-2", 416, "invalid range\n", None),
    ],
)
async def test_ranges(logs: Path, wanted: str | None, status: int, body: str, shown: str | None) -> None:
    answer, given = await ask(logs, "/logs/app/a.log", True, **({"range": wanted} if wanted else {}))
    assert (answer.status, given) == (status, body)
    said = dict(answer.headers)
    assert said.get("Content-Range") == shown
    if status != 416:
        assert said["Content-Length"] == str(len(body))
        assert said["Last-Modified"] == "Fri, 02 Jan 2026 03:04:05 GMT"


async def test_several_ranges(logs: Path) -> None:
    answer, given = await ask(logs, "/logs/app/a.log", True, range="bytes=0-1, -3, 900-")
    said = dict(answer.headers)
    kind, _, boundary = said["Content-Type"].partition("; boundary=")
    assert (answer.status, kind) == (206, "multipart/byteranges")
    assert "Content-Range" not in said
    assert said["Content-Length"] == str(len(given))
    text = "Content-Type: text/plain; charset=utf-8"
    assert given == (
        f"--{boundary}\r\nContent-Range: bytes 0-1/15\r\n{text}\r\n\r\n01"
        f"\r\n--{boundary}\r\nContent-Range: bytes 12-14/15\r\n{text}\r\n\r\nbc\n"
        f"\r\n--{boundary}--\r\n"
    )


@pytest.fixture
def far_from_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        yield
    time.tzset()


THEN, BEFORE = "Fri, 02 Jan 2026 03:04:05 GMT", "Fri, 02 Jan 2026 03:04:04 GMT"


@pytest.mark.parametrize(
    ("conditions", "status"),
    [
        ({"if_modified_since": THEN}, 304),
        ({"if_modified_since": "Friday, 02-Jan-26 03:04:05 GMT"}, 304),
        ({"if_modified_since": "Fri Jan  2 03:04:05 2026"}, 304),
        ({"if_modified_since": BEFORE}, 200),
        ({"if_modified_since": "yesterday"}, 200),
        ({"if_none_match": "*"}, 304),
        ({"if_none_match": '"x"'}, 200),
        ({"if_none_match": '"x"', "if_modified_since": THEN}, 200),  # that it is older says nothing then
        ({"if_none_match": "", "if_modified_since": THEN}, 304),
        ({"if_unmodified_since": THEN}, 200),
        ({"if_unmodified_since": BEFORE}, 412),
        ({"if_match": "*"}, 200),
        ({"if_match": "*", "if_unmodified_since": BEFORE}, 200),
        ({"if_match": '"x"'}, 412),
        ({"range": "bytes=2-4", "if_range": THEN}, 206),
        ({"range": "bytes=2-4", "if_range": "Fri Jan  2 03:04:05 2026"}, 206),
        ({"range": "bytes=2-4", "if_range": ""}, 206),
        ({"range": "bytes=2-4", "if_range": BEFORE}, 200),
        ({"range": "bytes=2-4", "if_range": '"x"'}, 200),
    ],
)
@pytest.mark.usefixtures("far_from_utc")
async def test_conditions(logs: Path, conditions: dict[str, str], status: int) -> None:
    """As Go's server answers them; a date is in UTC, wherever the node stands."""
    answer, body = await ask(logs, "/logs/app/a.log", True, **conditions)
    assert answer.status == status
    assert dict(answer.headers)["Last-Modified"] == THEN
    assert (body == "") == (status in (304, 412))


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/logs/nothing", 404),
        ("/logs/kubelet.log/x", 404),
        ("/logs/..%2fsecret", 404),
        ("/logs/app/..%2f..%2fsecret", 404),
        ("/logs/%00", 500),
        ("/logs/pipe", 500),  # not waited for
        ("/logs/" + "x" * 300, 500),
    ],
)
async def test_what_there_is_not(logs: Path, target: str, status: int) -> None:
    with trio.fail_after(60):
        answer, body = await ask(logs, target, queries=False)
    assert answer.status == status
    assert "secret" not in body


@pytest.mark.parametrize(
    ("query", "status", "body"),
    [
        ("query=", 400, 'query: Invalid value: [""]: query cannot be empty'),
        ("query=%20", 400, 'query: Invalid value: [" "]: query cannot be empty'),
        (
            "query=a&tailLines=x",
            400,
            'tailLines: Invalid value: "x": strconv.Atoi: parsing "x": invalid syntax',
        ),
        ("query=a&boot=x", 400, 'boot: Invalid value: "x": strconv.Atoi: parsing "x": invalid syntax'),
        ("query=a&sinceTime=y", 400, 'sinceTime: Invalid value: "y": invalid time format'),
        (
            "query=a&sinceTime=0001-01-01T00:00:00%2B14:00",
            400,
            'sinceTime: Invalid value: "0001-01-01T00:00:00+14:00": invalid time format',
        ),
        (
            "query=a&sinceTime=2024-01-01T24:00:00Z",
            400,
            'sinceTime: Invalid value: "2024-01-01T24:00:00Z": invalid time format',
        ),
        (
            "query=a&boot=x&untilTime=2024-01-01",
            400,
            '[untilTime: Invalid value: "2024-01-01": invalid time format, '
            'boot: Invalid value: "x": strconv.Atoi: parsing "x": invalid syntax]',
        ),
        ("tailLines=3", 406, "query: Required value: cannot be empty with options"),
        (
            "query=a/b&query=c/d",
            406,
            'query: Invalid value: ["a/b","c/d"]: cannot specify more than one file',
        ),
        ("query=a/b&query=c", 406, 'query: Invalid value: "[a/b], [c]": cannot specify a file and service'),
        (
            "query=foo/bar.log",
            406,
            'query: Invalid value: ["foo/bar.log"]: statat foo/bar.log: no such file or directory',
        ),
        (
            "query=../secret",
            406,
            'query: Invalid value: ["../secret"]: statat ../secret: path escapes from parent',
        ),
        ("query=./out", 406, 'query: Invalid value: ["./out"]: statat ./out: path escapes from parent'),
        (
            "query=app/a.log&boot=0",
            406,
            'query: Invalid value: ["app/a.log"]: cannot specify file with options',
        ),
        (
            "query=app/a.log&pattern=x",
            406,
            'query: Invalid value: ["app/a.log"]: cannot specify file with options',
        ),
        (
            "query=app%5Ca.log",
            406,
            r'query: Invalid value: ["app\\a.log"]: statat app\a.log: no such file or directory',
        ),
        (
            f"query={'a' * 257}",
            406,
            f'query: Invalid value: "{"a" * 257}": length must be less than 256',
        ),
        (
            "query=a&tailLines=-1",
            406,
            "tailLines: Invalid value: -1: must be between 0 and 100000, inclusive",
        ),
        ("query=a&boot=1", 406, "boot: Invalid value: 1: must be less than 1"),
        pytest.param(
            "query=a&pattern=(%3F%3Da)b%2B%2B",
            406,
            'pattern: Invalid value: "(?=a)b++": error parsing regexp: invalid or unsupported Perl syntax: '
            "`(?=`",
            marks=needs_re2,
        ),
        ("query=a%20b", 406, 'query: Invalid value: "a b": input contains unsupported characters'),
        ("query=a&query=b&query=c&query=d&query=e", 406, "query: Too many: 5: must have at most 4 items"),
        (
            "query=a&sinceTime=2024-01-02T00:00:00Z&untilTime=2024-01-01T00:00:00Z",
            406,
            'untilTime: Invalid value: "2024-01-01T00:00:00Z": must be after `sinceTime`',
        ),
    ],
)
async def test_refused_queries(logs: Path, query: str, status: int, body: str) -> None:
    answer, said = await ask(logs, f"/logs/?{query}")
    assert (answer.status, said) == (status, body + "\n")


async def test_a_path_and_a_query_do_not_go_together(logs: Path) -> None:
    answer, body = await ask(logs, "/logs/app?query=kubelet")
    assert (answer.status, body) == (406, "path not allowed in query mode\n")
    answer, _ = await ask(logs, "/logs/app?query=kubelet", queries=False)
    assert answer.status == 301


@pytest.mark.parametrize(
    ("query", "body"),
    [
        ("query=kubelet", "kubelet's\n"),
        ("query=app", "app's own\n"),
        ("query=kubelet&query=app", "kubelet's\napp's own\n"),
        ("query=nothing", "\nlog not found for nothing\n"),
        ("query=out", "\nerror getting log for out: openat out: path escapes from parent\n"),
        ("query=pipe", "\nerror getting log for pipe: openat pipe: not a regular file\n"),
        (
            "query=kubelet&tailLines=3",
            "\noptions present and query resolved to log files for [kubelet]\n"
            "try without specifying options\n",
        ),
        *(
            (
                f"query=kubelet&{option}",
                "\noptions present and query resolved to log files for [kubelet]\n"
                "try without specifying options\n",
            )
            for option in (
                "sinceTime=2024-01-01T00:00:00Z",
                "untilTime=2024-01-01T00:00:00Z",
                "sinceTime=2024-01-01T00:00:00Z&untilTime=2024-01-01T00:00:00Z",
                "tailLines=0",
                "tailLines=100000",
            )
        ),
        ("query=app&query=app&query=app&query=app", "app's own\n" * 4),
        (
            f"query={'a' * 256}",
            f"\nerror getting log for {'a' * 256}: openat {'a' * 256}: file name too long\n",
        ),
        ("query=app/a.log", "0123456789\nabc\n"),
    ],
)
async def test_queries_without_a_journal(logs: Path, query: str, body: str) -> None:
    answer, said = await ask(logs, f"/logs/?{query}")
    assert (answer.status, said) == (200, body)


async def test_a_query_is_packed_when_asked(logs: Path) -> None:
    answer, body = await ask(logs, "/logs/?query=kubelet", accept_encoding="gzip")
    assert ("Content-Encoding", "gzip") in answer.headers
    assert gzip.decompress(body.encode("latin-1")) == b"kubelet's\n"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, "--utc --no-pager --output=short-precise --pager-end --lines=2 --unit=kubelet\n"),
        ({"pattern": ["\0"]}, "\nerror: journal output not available\n"),
        (
            {"query": ["app", "kubelet"], "tailLines": []},
            "--utc --no-pager --output=short-precise --unit=kubelet\napp's own\n",
        ),
        (
            {"query": ["app", "kubelet"], "boot": ["0"], "tailLines": []},
            "--utc --no-pager --output=short-precise --unit=kubelet --boot 0\n"
            "\noptions present and query resolved to log files for [app]\ntry without specifying options\n",
        ),
    ],
)
async def test_units_of_the_journal(
    logs: Path, tmp_path: Path, more: dict[str, list[str]], said: str
) -> None:
    journalctl = tmp_path / "journalctl"
    journalctl.write_text('#!/bin/sh\ncase "$1" in --field) echo kubelet.service;; *) echo "$@";; esac\n')
    journalctl.chmod(0o755)
    request = Request(
        method="GET",
        path="/logs/",
        target="/logs/",
        query={"query": ["kubelet"], "tailLines": ["2"], **more},
        headers=(),
    )
    answer = await SystemLogs(True, str(logs), str(journalctl)).get(request)
    assert isinstance(answer, Response)
    assert isinstance(answer.body, AsyncIterator)
    assert await taken(answer.body) == said.encode()


async def test_a_journal_that_goes_on_for_ever_is_ended(
    logs: Path, tmp_path: Path, still_clock: trio.testing.MockClock
) -> None:
    journalctl, pid = tmp_path / "journalctl", tmp_path / "pid"
    journalctl.write_text(
        '#!/bin/sh\n[ "$1" = --field ] && exec echo app.service\n'
        f"echo $$ >{pid}\necho line\nexec sleep 1000\n"
    )
    journalctl.chmod(0o755)
    request = Request(method="GET", path="/logs/", target="/logs/", query={"query": ["app"]}, headers=())
    answer = await SystemLogs(True, str(logs), str(journalctl)).get(request)
    assert isinstance(answer, Response)
    assert isinstance(answer.body, AsyncIterator)
    assert await anext(answer.body) == b"line\n"
    still_clock.jump(system_logs.JOURNAL_SECONDS)
    assert await taken(answer.body) == b""
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_how_the_journal_is_asked() -> None:
    query, errors = read_query(
        {
            "query": ["kubelet"],
            "sinceTime": ["2024-01-02T01:00:00+01:00"],
            "untilTime": ["2024-01-03T00:00:00Z"],
            "pattern": ["a b"],
            "boot": ["-1"],
        }
    )
    assert errors == []
    assert journal_arguments(query, ["kubelet"])[3:] == [
        "--since=2024-01-02 00:00:00 UTC",
        "--until=2024-01-03 00:00:00 UTC",
        "--unit=kubelet",
        "--grep=a b",
        "--case-sensitive=false",
        "--boot",
        "-1",
    ]


@pytest.mark.parametrize(
    ("header", "size", "ranges"),
    [
        ("", 10, []),
        ("bytes=3-4", 10, [(3, 2)]),
        ("bytes= 3 - 4 ,\t-2,", 10, [(3, 2), (8, 2)]),
        ("bytes=", 10, []),
        ("bytes=,", 10, []),
        ("bytes=3-9223372036854775807", 10, [(3, 7)]),
        ("bytes=-99", 10, [(0, 10)]),
        ("bytes=-0", 10, [(10, 0)]),
        ("bytes=10-x,0-0", 10, [(0, 1)]),
        ("bytes=0-8,8-9", 10, []),  # more than there is
        ("bytes=" + ",".join(["0-0"] * 200), 200, [(0, 1)] * 200),
        ("bytes=" + ",".join(["0-0"] * 201), 999, []),
        ("bytes=5-", 0, []),
        ("bytes=-5", 0, [(0, 0)]),
    ],
)
def test_which_bytes_are_asked_for(header: str, size: int, ranges: list[tuple[int, int]]) -> None:
    """As Go's server has it, for better or worse."""
    assert list(wanted_ranges(header, size)) == ranges


@pytest.mark.parametrize(
    ("header", "overlaps"),
    [
        *(("3-4", True), ("Bytes=3-4", True), ("bytes=3", True), ("bytes=-", True)),
        *(("bytes=--3", True), ("bytes=3-2", True), ("bytes=0-1,x-2", True), ("bytes=0-" + "9" * 5000, True)),
        *(("bytes=10-,99-100", False), ("bytes=-9223372036854775808", True)),
    ],
)
def test_what_is_no_range(header: str, overlaps: bool) -> None:
    with pytest.raises(InvalidRange) as found:
        wanted_ranges(header, 10)
    assert found.value.overlaps is overlaps


@pytest.mark.parametrize(
    ("target", "status", "body"),
    [
        ("/logs/app/%2e%2e/kubelet.log", 200, "kubelet's\n"),
        ("/logs/%2e%2e/%2E%2e/kubelet.log", 200, "kubelet's\n"),  # not above the directory
        ("/logs/%2e%2e%2fsecret", 404, "404 page not found\n"),
        ("/logs/app%2Fapp.log", 200, "app's own\n"),
        ("/lo%67s/kubelet.log", 404, "404 page not found\n"),
    ],
)
async def test_encoded_paths(logs: Path, target: str, status: int, body: str) -> None:
    answer, said = await ask(logs, target)
    assert (answer.status, said) == (status, body)


async def test_encoded_dots_for_a_directory(logs: Path) -> None:
    answer, _ = await ask(logs, "/logs/app/%2e%2e")
    assert (answer.status, dict(answer.headers)["Location"]) == (301, "../")


async def test_a_directory_with_an_index(logs: Path) -> None:
    (logs / "app" / "index.html").write_text("<p>see elsewhere")
    answer, said = await ask(logs, "/logs/app/")
    assert (answer.status, said) == (200, "<p>see elsewhere")
    assert dict(answer.headers)["Content-Type"] == "text/html; charset=utf-8"
    answer, _ = await ask(logs, "/logs/app/index.html?")
    assert (answer.status, dict(answer.headers)["Location"]) == (301, "./")


async def test_no_redirect_from_an_encoded_slash(logs: Path) -> None:
    answer, _ = await ask(logs, "/logs/app%2Fsub%20dir&<x>")
    assert answer.status == 404


async def test_a_link_with_an_absolute_target_leads_out_wherever_it_leads(logs: Path) -> None:
    """As with Go's `os.Root`; one with a relative target is followed as long as it stays inside."""
    os.symlink(logs / "kubelet.log", logs / "absolute.log")
    os.symlink("../kubelet.log", logs / "app" / "relative.log")
    _, said = await ask(logs, "/logs/?query=absolute")
    assert said == "\nerror getting log for absolute: openat absolute.log: path escapes from parent\n"
    answer, said = await ask(logs, "/logs/?query=./absolute.log")
    assert (answer.status, said.count("statat ./absolute.log: path escapes from parent")) == (406, 1)
    answer, said = await ask(logs, "/logs/?query=app/relative.log")
    assert (answer.status, said) == (200, "kubelet's\n")


async def test_a_fifo_is_neither_waited_for_nor_opened(logs: Path) -> None:
    with trio.fail_after(20):
        for name in ("pipe", "./pipe"):
            for _ in range(60):  # more than there are threads
                answer, said = await ask(logs, f"/logs/?query={name}")
                assert answer.status == (200 if name == "pipe" else 500), said
    with pytest.raises(OSError):  # nobody has it open: a writer finds no reader
        os.open(logs / "pipe", os.O_WRONLY | os.O_NONBLOCK)


@pytest.mark.parametrize("name", ["app/swapped.log", "app/"])
async def test_a_link_that_is_swapped_in_leads_nowhere(
    logs: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the check of a query and the opening, and between the opening and the reading."""
    swapped = logs / "app" / ("index.html" if name == "app/" else "swapped.log")
    look, read = look_beneath, os.pread

    def swap() -> None:
        swapped.unlink(missing_ok=True)
        swapped.symlink_to(logs.parent / "secret")

    def look_then_swap(root: str, name: str) -> int:
        found = look(root, name)
        swap()
        return found

    def swap_then_read(descriptor: int, size: int, offset: int) -> bytes:
        swap()
        return read(descriptor, size, offset)

    swapped.write_text("mine")
    with monkeypatch.context() as patch:
        patch.setattr(system_logs, "look_beneath", look_then_swap)
        answer, said = await ask(logs, f"/logs/?query={name}")
        assert "secret" not in said
    swapped.unlink()
    swapped.write_text("mine")
    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", swap_then_read)
        answer, said = await ask(logs, f"/logs/?query={name}")
    assert (answer.status, said) == (200, "mine")


async def test_answers_that_nobody_takes_leave_no_file_open(logs: Path) -> None:
    before = descriptors()
    for target in ("/logs/kubelet.log", "/logs/?query=app/a.log"):
        path, query = parse_target(target)
        request = Request(method="GET", path=path, target=target, query=query, headers=())
        answer = await SystemLogs(True, str(logs), "no-such-journalctl").get(request)
        assert isinstance(answer, Response)
        assert isinstance(answer.body, ClosableBody)
        assert descriptors() != before
        await answer.body.aclose()
        assert descriptors() == before


@pytest.mark.parametrize(
    ("queries", "target", "opener", "status"),
    [
        (False, "/logs/kubelet.log", "follow_links", 500),
        (True, "/logs/?query=app/a.log", "look_beneath", 406),
        (True, "/logs/?query=kubelet", "open_beneath", 200),
    ],
)
async def test_a_log_that_opens_too_late_is_closed(
    logs: Path, monkeypatch: pytest.MonkeyPatch, queries: bool, target: str, opener: str, status: int
) -> None:
    """The file system hangs beyond the lane's deadline and then goes on: nobody has the descriptor."""
    before, going, real = descriptors(), threading.Event(), getattr(system_logs, opener)

    def hangs(function: Callable[..., Any]) -> Callable[..., Any]:
        def opens(*args: str) -> Any:
            going.wait()
            return function(*args)

        return opens

    monkeypatch.setattr(NODE_LOGS, "deadline", 0.05)
    instead = (lambda root: hangs(real(root))) if opener == "follow_links" else hangs(real)
    monkeypatch.setattr(system_logs, opener, instead)
    answer, _ = await ask(logs, target, queries)
    assert answer.status == status
    assert NODE_LOGS.left_behind == 1
    going.set()
    with trio.fail_after(30):
        while NODE_LOGS.left_behind or descriptors() != before:  # noqa: ASYNC110 (a thread sets no event)
            await trio.sleep(0.002)
