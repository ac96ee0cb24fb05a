"""Log lines as klog and component-base write them, and the promises about slow readers and broken values."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests import disks
from trio_kubelet.common import log as logging
from trio_kubelet.common.log import LONGEST_VALUE, configure, describe_error, get_logger, go_quote, shortened

NOON = 1_795_258_800_123_456_789
logger = get_logger("trio_kubelet.some.module")


@pytest.fixture(autouse=True)
def default_logging() -> Iterator[None]:
    yield
    configure()


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Callable[..., io.StringIO]:
    def start(format: str = "text", **options: int) -> io.StringIO:
        stream = io.StringIO()
        configure("json" if format == "json" else "text", stream=stream, now_ns=lambda: NOON, **options)  # type: ignore[arg-type]
        return stream

    return start


def body(stream: io.StringIO) -> str:
    return re.sub(r"^.*?\] ", "", stream.getvalue())


class Ref:
    def __init__(self, namespace: str, name: str) -> None:
        self.namespace, self.name = namespace, name


class Pod:
    metadata = Ref("kube-system", "etcd")


def test_header(lines: Callable[..., io.StringIO], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setattr(os, "getpid", lambda: 12345)
    stream = lines()
    logger.info("a")
    logger.warning("b")
    logger.error("c")
    found = [re.fullmatch(r'([IWE])(\d{4} \d\d:\d\d:\d\d\.123456)   12345 test_log\.py:\d+\] "[abc]"', line)
             for line in stream.getvalue().splitlines()]  # fmt: skip
    assert [match and match[1] for match in found] == ["I", "W", "E"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", '"plain"'),
        ('say "hi"\\', '"say \\"hi\\"\\\\"'),
        ("tab\there\x01\x7f", '"tab\\there\\x01\\x7f"'),
        ("ü\u200b\U000e0001", '"ü\\u200b\\U000e0001"'),
        ("name\udcff", '"name\\xff"'),
        (5, "5"),
        (1.5, "1.5"),
        (True, "true"),
        (None, "null"),
        ([1, "a"], '[1,"a"]'),
        ({"a": {"b": 1}}, '{"a":{"b":1}}'),
        (b"a\xffb\n", '"a\\xffb\\n"'),
        (Ref("ns", "n"), '"ns/n"'),
        (Ref("", "node"), '"node"'),
        (Pod(), '"kube-system/etcd"'),
        ([Pod(), Ref("a", "b")], '"[kube-system/etcd a/b]"'),
        ([], "[]"),
        (ValueError("bad"), '"bad"'),
        ("a\nb", "<\n\ta\n\tb\n >"),
        ("a\n", "<\n\ta\n >"),
    ],
)
def test_values_in_text(lines: Callable[..., io.StringIO], value: object, text: str) -> None:
    stream = lines()
    logger.info("m", key=value, z=1)
    assert body(stream) == f'"m" key={text} z=1\n'


MUCH = "x" * 1_400_000


@pytest.mark.parametrize("value", [MUCH, MUCH.encode(), ValueError(MUCH), {"a": MUCH}, [MUCH], MUCH + "\n"])
@pytest.mark.parametrize("format", ["text", "json"])
def test_of_a_long_value_a_line_shows_the_beginning_and_how_long_it_is(
    lines: Callable[..., io.StringIO], format: str, value: object
) -> None:
    stream = lines(format)
    logger.info("m", key=value, z=1)
    line = stream.getvalue()
    assert LONGEST_VALUE < len(line) < LONGEST_VALUE + 200
    assert re.search(r"xxx\.\.\.\(14000\d\d characters\)", line)
    if format == "json":
        assert json.loads(line)["z"] == 1


def test_what_is_shortened_stays_as_it_is() -> None:
    assert shortened("x" * 100, 100) == "x" * 100
    short = shortened("x" * 101, 100)
    assert (short, len(short)) == ("x" * 81 + "...(101 characters)", 100)
    assert shortened(short, 100) == short


def test_the_error_comes_first(lines: Callable[..., io.StringIO]) -> None:
    stream = lines()
    logger.error("Failed", pod=Pod(), err=ValueError("line 1\nline 2"))
    assert body(stream) == '"Failed" err=<\n\tline 1\n\tline 2\n > pod="kube-system/etcd"\n'


def test_a_text_of_several_lines_does_nothing_to_a_terminal(lines: Callable[..., io.StringIO]) -> None:
    """Pods have a say in what is logged: names of images, what a probe printed."""
    stream = lines()
    logger.error("Failed", err='a\tb "é\\\r\n\x1b]0;title\x07\x1b[2J\x9b1m\u202e')
    said = '\ta\tb "é\\\\r\n\t\\x1b]0;title\\a\\x1b[2J\\u009b1m\\u202e\n'
    assert body(stream) == f'"Failed" err=<\n{said} >\n'


def test_no_error_is_no_pair(lines: Callable[..., io.StringIO]) -> None:
    stream = lines()
    logger.error("Failed", key=1, err=None)
    assert body(stream) == '"Failed" key=1\n'


def test_json(lines: Callable[..., io.StringIO]) -> None:
    stream = lines("json", verbosity=2)
    logger.info("Info", pod=Pod(), count=3, pods=[Ref("", "node")])
    logger.v(2).info("Detail", text='q"\n')
    logger.error("Error", key=[1], err=OSError(2, "No such file", "/x"))
    first, second, third = map(json.loads, stream.getvalue().splitlines())
    assert list(first) == ["ts", "caller", "msg", "v", "pod", "count", "pods"]
    assert first["ts"] == pytest.approx(NOON / 1e6)
    assert re.fullmatch(r"common/test_log\.py:\d+", first["caller"])
    assert (first["msg"], first["v"], first["count"]) == ("Info", 0, 3)
    assert first["pod"] == {"name": "etcd", "namespace": "kube-system"}
    assert first["pods"] == [{"name": "node"}]
    assert (second["v"], second["text"]) == (2, 'q"\n')
    assert list(third) == ["ts", "caller", "msg", "err", "key"]
    assert third["err"] == "/x: No such file"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("x"), "x"),
        (KeyError("x"), "KeyError: 'x'"),
        (RuntimeError(), "RuntimeError"),
        (TimeoutError(), "i/o timeout"),
        (trio.TooSlowError(), "context deadline exceeded"),
        (OSError(13, "Permission denied", b"/a"), "/a: permission denied"),
        (OSError(2, "No such file or directory", "/a", None, "/b"), "/a /b: no such file or directory"),
        (OSError(111, "Connection refused"), "connection refused"),
        (OSError("all attempts to connect failed"), "all attempts to connect failed"),
        (ExceptionGroup("g", [ValueError("a"), ExceptionGroup("h", [ValueError("b")])]), "[a, b]"),
    ],
)
def test_errors_say_what_they_are(error: Exception, text: str) -> None:
    assert describe_error(error) == text


def test_verbosity(lines: Callable[..., io.StringIO]) -> None:
    stream = lines(verbosity=2)
    assert logger.v(2).enabled
    assert not logger.v(3).enabled
    logger.v(3).info("no")
    logger.v(3).error("no")
    logger.v(2).info("yes")
    assert body(stream) == '"yes"\n'


def test_vmodule_by_base_name_and_by_path(lines: Callable[..., io.StringIO]) -> None:
    other, inner = get_logger("trio_kubelet.other"), get_logger("trio_kubelet.pods.workers")
    configure(verbosity=1, vmodule=[("oth*", 5), ("*/pods/*", 3)], stream=io.StringIO())
    assert other.v(5).enabled
    assert inner.v(3).enabled
    assert not inner.v(4).enabled
    assert not logger.v(2).enabled
    configure(verbosity=0, stream=io.StringIO())
    assert not other.v(1).enabled


@pytest.mark.parametrize("format", ["text", "json"])
def test_credentials_are_not_written(lines: Callable[..., io.StringIO], format: str) -> None:
    stream = lines(format)
    logger.info(
        "m", token="s3cret", Authorization="Bearer s3cret", headers={"a": "s3cret"}, password=b"s3cret"
    )
    assert "s3cret" not in stream.getvalue()
    assert stream.getvalue().count("<redacted>") == 4


class Broken:
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("format", ["text", "json"])
def test_a_broken_value_does_not_reach_the_caller(lines: Callable[..., io.StringIO], format: str) -> None:
    stream = lines(format)
    logger.info("Message", key=Broken())
    assert "Message" in stream.getvalue()
    assert "no text" in stream.getvalue()


def test_a_stream_that_fails_does_not_reach_the_caller() -> None:
    stream = io.StringIO()
    configure(stream=stream)
    stream.close()
    logger.info("nobody reads this")
    assert stream.closed


def test_errors_and_information_on_two_streams() -> None:
    errors, infos = io.StringIO(), io.StringIO()
    configure(stream=errors, info_stream=infos)
    logger.info("i")
    logger.warning("w")
    logger.error("e")
    assert infos.getvalue().count("\n") == 2
    assert errors.getvalue().count("\n") == 1


def test_a_reader_that_stands_still_costs_lines_but_never_time() -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as source, os.fdopen(writer, "w") as sink:
        configure(stream=sink)
        text = "x" * 10_000
        for _ in range(300):
            logger.info(text)
        os.set_blocking(reader, False)
        received = b""
        while chunk := source.read(1 << 16):
            received += chunk
            logging.flush(0)
        logger.info("after")
        received += source.read() or b""
    lines_read = received.decode().splitlines()
    assert all(text in line for line in lines_read[:-2])
    assert 100 < len(lines_read) < 300
    dropped = re.search(r'"Log lines dropped" count=(\d+)', received.decode())
    assert dropped is not None
    assert len(lines_read) - 2 + int(dropped[1]) == 300
    assert "after" in lines_read[-2] + lines_read[-1]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk that `fsfreeze` can have stand still."""
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        pytest.skip("needs root and mkfs.ext4")
    at = tmp_path / "disk"
    with disks.disk(at, tmp_path / "disk.img", 16, ["mkfs.ext4", "-q"]):
        yield at


def test_a_disk_that_stands_still_costs_lines_but_never_time(disk: Path) -> None:
    log, text = disk / "log", "x" * 10_000
    with log.open("w") as sink:
        configure(stream=sink, in_thread=True)
        logger.info("before")
        logging.flush(30)
        assert "before" in log.read_text()
        subprocess.run(["fsfreeze", "-f", disk], check=True)
        try:
            began = time.monotonic()
            for number in range(300):
                logger.info(text, number=number)
            took = time.monotonic() - began
            logging.flush(0.1)  # gives up
            assert time.monotonic() - began < took + 10
        finally:
            subprocess.run(["fsfreeze", "-u", disk], check=True)
        assert took < 10
        logging.flush(30)
        logger.info("after")
        logging.flush(30)
    said = log.read_text().splitlines()
    kept = [int(line.rpartition("=")[2]) for line in said if text in line]
    assert kept == sorted(set(kept))
    assert 100 < len(kept) < 300
    dropped = [int(line.rpartition("=")[2]) for line in said if '"Log lines dropped"' in line]
    assert sum(dropped) == 300 - len(kept)
    assert said[-1].endswith('] "after"')


def test_a_file_gets_its_lines_in_order_and_at_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("w") as sink:
        configure(stream=sink, in_thread=True)
        for number in range(1000):
            logger.info("line", number=number)
            if number % 100 == 0:
                time.sleep(0.03)
    logging.flush(30)
    assert [int(line.rpartition("=")[2]) for line in log.read_text().splitlines()] == list(range(1000))
    logger.info("one more")
    until = time.monotonic() + 30
    while "one more" not in log.read_text():
        assert time.monotonic() < until
        time.sleep(0.005)


def test_a_reader_that_left_does_not_matter() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as sink:
        configure(stream=sink)
        logger.info("nobody")
        logging.flush(0.1)
        assert logger.enabled


@given(st.text())
def test_quoted_text_has_no_raw_control_characters_and_reads_back(text: str) -> None:
    quoted = go_quote(text)
    assert quoted.isprintable()
    assert quoted[0] == quoted[-1] == '"'
    if text.isascii():
        assert quoted[1:-1].encode().decode("unicode_escape") == text


@given(
    st.dictionaries(st.from_regex(r"[a-z]{1,8}", fullmatch=True).filter(lambda key: key != "err"), st.text())
)
def test_any_text_makes_a_line_in_both_formats(values: dict[str, str]) -> None:
    stream = io.StringIO()
    configure("json", stream=stream)
    logger.info("m", **values)
    record = json.loads(stream.getvalue())
    assert set(values) <= set(record)
    configure("text", stream=stream)
    logger.info("m", **values)
    assert stream.getvalue().endswith("\n")
