"""Log lines against the kubelet's rules, and the C copy of them against the plain-Python twin."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trio_kubelet.native import crilog
from trio_kubelet.native.crilog import LogFilter
from trio_kubelet.native.pure_crilog import (
    EVERYTHING,
    BadLine,
    LogOptions,
    PureLogFilter,
    UnsupportedLog,
    read_json,
    read_stamp,
)

OUT = b"2016-10-06T00:17:09.669794202Z stdout F one\n"
ERR = b"2016-10-06T00:17:10.5Z stderr F two\n"
PART = b"2016-10-06T00:17:11Z stdout P thr\n"
REST = b"2016-10-06T00:17:12+02:00 stdout F ee\n"
LOG = OUT + ERR + PART + REST
SECOND = 1_000_000_000
BOTH = pytest.mark.parametrize("cls", [PureLogFilter, LogFilter], ids=["python", "c"])


def whole(cls: type[PureLogFilter], data: bytes, **options: object) -> bytes:
    return cls(LogOptions(**options)).copy(data, final=True).output  # type: ignore[arg-type]


@BOTH
def test_lines_are_joined_and_stamped(cls: type[PureLogFilter]) -> None:
    """A partial line loses its newline, and only the beginning of a line has a time."""
    assert whole(cls, LOG) == b"one\ntwo\nthree\n"
    assert whole(cls, LOG, timestamps=True) == (
        b"2016-10-06T00:17:09.669794202Z one\n"
        b"2016-10-06T00:17:10.500000000Z two\n"
        b"2016-10-06T00:17:11.000000000Z three\n"
    )
    assert whole(cls, REST, timestamps=True) == b"2016-10-06T00:17:12.000000000+02:00 ee\n"


@BOTH
def test_streams_moments_and_limits(cls: type[PureLogFilter]) -> None:
    assert whole(cls, LOG, stderr=False) == b"one\nthree\n"
    assert whole(cls, LOG, stdout=False) == b"two\n"
    since = read_stamp("2016-10-06T00:17:10.5Z")[0]
    assert whole(cls, OUT + ERR, since_ns=since) == b"two\n"
    assert whole(cls, OUT + ERR, since_ns=since + 1) == b""
    assert whole(cls, LOG, limit_bytes=5) == b"one\nt"
    assert whole(cls, LOG, lines=3) == b"one\ntwo\nthr"
    # What another stream wrote counts as a line and not as bytes.
    assert whole(cls, LOG, lines=2, stderr=False) == b"one\n"
    assert whole(cls, ERR + OUT, limit_bytes=3, stderr=False) == b"one"


@BOTH
def test_a_line_without_end_waits(cls: type[PureLogFilter]) -> None:
    reader = cls(LogOptions())
    assert reader.copy(OUT + ERR[:-1]) == (b"one\n", len(OUT), False)
    assert reader.copy(ERR[:-1], final=True) == (b"two", len(ERR) - 1, False)


@BOTH
def test_broken_lines_are_left_out(cls: type[PureLogFilter]) -> None:
    reader = cls(LogOptions())
    broken = b"\n2016-13-06T00:17:09Z stdout F no\n2016-10-06T00:17:09Z other F no\nstdout\n"
    assert reader.copy(OUT + broken + ERR).output == b"one\ntwo\n"


@BOTH
def test_json_lines(cls: type[PureLogFilter]) -> None:
    data = (
        b'{"log":"a\\u00e4\\n","stream":"stdout","time":"2016-10-20T18:39:20.57606443Z"}\n'
        b'{"log":"b\\n","stream":"stderr","time":"2016-10-20T18:39:21Z"}\n' + OUT
    )
    assert whole(cls, data) == "aä\nb\n".encode()
    assert whole(cls, data, timestamps=True, stderr=False) == "2016-10-20T18:39:20.576064430Z aä\n".encode()


@BOTH
def test_a_line_of_no_stream_ends_a_log_of_json(cls: type[PureLogFilter]) -> None:
    """As of the kubelet's reader; null is as if a member were not there."""
    log_filter = cls(LogOptions(since_ns=1))
    assert log_filter.copy(b'{"log":null,"stream":"x","time":null}\n').output == b""  # older than asked for
    assert log_filter.copy(b'{"log":"a","stream":"stdout","time":"2016-10-20T18:39:20Z"}\n').output == b"a"
    with pytest.raises(UnsupportedLog, match='unexpected stream type "x"'):
        log_filter.copy(b'{"log":"b","stream":"x","time":"2016-10-20T18:39:20Z"}\n')


@BOTH
def test_neither_format(cls: type[PureLogFilter]) -> None:
    with pytest.raises(UnsupportedLog, match=r'unsupported log format: "hello\\n"'):
        cls(LogOptions()).copy(b"hello\n")


@pytest.mark.parametrize(
    ("text", "ns", "stamp"),
    [
        ("1970-01-01T00:00:00Z", 0, "1970-01-01T00:00:00.000000000Z"),
        ("1970-01-01T1:00:00,5Z", 3600 * SECOND + SECOND // 2, "1970-01-01T01:00:00.500000000Z"),
        ("1970-01-01T00:00:00.1234567899Z", 123456789, "1970-01-01T00:00:00.123456789Z"),
        ("1970-01-01T02:00:00+02:00", 0, "1970-01-01T02:00:00.000000000+02:00"),
        ("1969-12-31T23:00:00-01:00", 0, "1969-12-31T23:00:00.000000000-01:00"),
        ("1970-01-01T00:00:00+00:00", 0, "1970-01-01T00:00:00.000000000Z"),
        ("0001-01-01T00:00:00Z", -62135596800 * SECOND, "0001-01-01T00:00:00.000000000Z"),
    ],
)
def test_stamps(text: str, ns: int, stamp: str) -> None:
    assert read_stamp(text) == (ns, stamp)


@pytest.mark.parametrize("text", ["", "2016-02-30T00:00:00Z", "2016-10-06T24:00:00Z", "2016-10-06T00:00:60Z"])
def test_bad_stamps(text: str) -> None:
    with pytest.raises(BadLine):
        read_stamp(text)


def test_a_line_of_docker_s_that_is_nested_deeper_than_a_decoder_goes() -> None:
    with pytest.raises(BadLine):
        read_json(b'{"a":' + b"[" * 5000)


digits = st.integers(0, 99).map(lambda n: f"{n:02d}")
stamps = st.builds(
    lambda year, month, day, hour, minute, second, fraction, zone: (
        f"{year}-{month}-{day}T{hour}:{minute}:{second}{fraction}{zone}"
    ),
    st.sampled_from(["2016", "2000", "1900", "1969", "0000", "9999", "20x6"]),
    st.sampled_from(["01", "02", "12", "10", "13", "00"]),
    st.sampled_from(["01", "28", "29", "30", "31", "32", "00"]),
    st.sampled_from(["00", "23", "24", "7"]),
    st.sampled_from(["00", "59", "60"]),
    st.sampled_from(["00", "59", "60"]),
    st.sampled_from(["", ".5", ".669794202", ".6697942021", ".", ",25"]),
    st.sampled_from(["Z", "+00:00", "-00:00", "+02:00", "-11:30", "+24:00", "z", ""]),
)
usual = st.sampled_from(
    ["2016-10-06T00:17:09.669794202Z", "2016-10-06T00:17:10+01:00", "2016-10-06T00:17:11Z"]
)
lines = st.one_of(
    st.builds(
        lambda stamp, stream, tags, content: f"{stamp} {stream} {tags} ".encode() + content + b"\n",
        st.one_of(usual, usual, stamps),
        st.sampled_from(["stdout", "stderr", "stdin", "stdouts"]),
        st.sampled_from(["F", "P", "P:x", "PF", "", "F:P"]),
        st.binary(max_size=12).map(lambda data: data.replace(b"\n", b"")),
    ),
    st.binary(max_size=20),
)
options = st.builds(
    LogOptions,
    stdout=st.booleans(),
    stderr=st.booleans(),
    since_ns=st.one_of(
        st.none(), st.just(read_stamp("2016-10-06T00:17:10Z")[0]), st.integers(-(2**62), 2**62)
    ),
    timestamps=st.booleans(),
    lines=st.one_of(st.just(EVERYTHING), st.integers(0, 5)),
    limit_bytes=st.one_of(st.just(EVERYTHING), st.integers(1, 80)),
)


@pytest.mark.skipif(crilog.LogFilter is PureLogFilter, reason="the extension is not built")
@given(st.lists(lines, max_size=12).map(b"".join), options, st.lists(st.integers(0, 200), max_size=4))
@example(LOG, LogOptions(timestamps=True, limit_bytes=40), [3, 50])
def test_c_and_python_agree(data: bytes, wanted: LogOptions, cuts: list[int]) -> None:
    """On whatever a file holds, in pieces cut anywhere, with the format settled by a good first line."""
    data = OUT + data
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    slow, quick = PureLogFilter(wanted), LogFilter(wanted)
    rest = b""
    for start, end in itertools.pairwise(edges):
        block = rest + data[start:end]
        expected = slow.copy(block, final=end == len(data))
        assert quick.copy(block, final=end == len(data)) == expected
        rest = block[expected.consumed :]
    for name in ("lines_left", "bytes_left", "new_line"):
        assert getattr(quick, name) == getattr(slow, name), name
