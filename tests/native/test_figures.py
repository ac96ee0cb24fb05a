"""Numbers out of text files: what counts, and the C reader against the plain-Python twin."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trio_kubelet import native
from trio_kubelet.native.figures import FigureReader
from trio_kubelet.native.pure_figures import (
    FILE_MOST,
    HUNDREDTHS,
    LINES,
    MAX,
    NUMBER,
    TEXT,
    Figure,
    PureFigureReader,
    read_file,
)

BOTH = pytest.mark.parametrize("cls", [PureFigureReader, FigureReader], ids=["python", "c"])
SAME_DIRECTORY = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300, deadline=None
)

word = st.sampled_from(
    [b"12", b"max", b"maxi", b"-1", b"0.25", b"1.5", b"7", b"9" * 25, b"00", b"\xff", b"a 5"]
)
line = st.builds(bytes.__add__, st.sampled_from([b"a ", b"ab ", b"a b=", b"", b"b="]), word)
content = st.lists(line, max_size=5).map(b"\n".join) | st.binary(max_size=40)
figure = st.builds(
    Figure,
    st.just(""),
    st.just("/file"),
    st.sampled_from(["", "a ", "ab ", "b"]),
    st.sampled_from(["", " ", "b="]),
    st.sampled_from(range(3)),
)


@BOTH
@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"42\n", 42),
        (b"max\n", MAX),
        (b"18446744073709551615", MAX),
        (b"18446744073709551614", MAX - 1),
        (b"18446744073709551616", MAX),
        (b"9" * 6000, MAX),
        (b"0" * 30 + b"7", 7),
        (b"12 34", 12),
        (b"", None),
        (b"\n42", None),
        (b"-1\n", None),
        (b" 1", None),
        (b"+1", None),
        (b"1_0", None),
        (b"1.5", None),
        (b"0x10", None),
        (b"maximum", None),
    ],
)
def test_a_number(cls: type[PureFigureReader], tmp_path: Path, text: bytes, value: int | None) -> None:
    (tmp_path / "file").write_bytes(text)
    (reading,) = cls([Figure("", "/file")]).read([str(tmp_path)])
    assert reading.get(0) == value


@BOTH
def test_a_number_of_a_line(cls: type[PureFigureReader], tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(
        b"total_a 1\na 2\nb 10000 1000\nsome avg10=1.50 total=8\nfull avg10=3.00\n"
    )
    figures = [
        Figure("", "/file", "a "),
        Figure("", "/file", "b ", " "),
        Figure("", "/file", "some ", "avg10=", HUNDREDTHS),
        Figure("", "/file", "full ", "avg10=", HUNDREDTHS),
        Figure("", "/file", "full ", "total="),  # not that of another line
        Figure("", "/file", "total_"),
        Figure("", "/file", "c "),
        Figure("", "/file", kind=LINES),
        Figure("", "/file", kind=TEXT),
    ]
    (reading,) = cls(figures).read([str(tmp_path)])
    expected = [2, 1000, 150, 300, None, None, None, 5]
    assert [reading.get(index) for index in range(8)] == expected
    assert list(reading.values[:7]) == [each or 0 for each in expected[:7]]
    assert reading.text() == (tmp_path / "file").read_bytes()


@BOTH
def test_many_directories_and_texts_of_any_size(cls: type[PureFigureReader], tmp_path: Path) -> None:
    """More than there is room for at once, missing ones, paths that cannot be."""
    sizes = [0, 1, 2047, 2048, FILE_MOST - 1, FILE_MOST, FILE_MOST + 5] * 8
    for number, size in enumerate(sizes):
        directory = tmp_path / str(number)
        directory.mkdir()
        (directory / "big").write_bytes(bytes([number + 1]) * size)
        (directory / "n").write_text(f"{number}\n")
    base = f"{tmp_path}/"
    reader = cls([Figure(base, "/n"), Figure(base, "/big", kind=TEXT), Figure(base, "/n", kind=TEXT)])
    names = [str(number) for number in range(len(sizes))]
    odd = ["none", "x" * 5000, "0\0", "", "\udcff"]
    found = reader.read([*names, *odd, "3"])
    for number, size in enumerate(sizes):
        texts = [bytes([number + 1]) * min(size, FILE_MOST), b"%d\n" % number]
        assert (found[number].get(0), list(found[number].texts)) == (number, texts)
    assert [each.there for each in found[len(sizes) : -1]] == [0] * len(odd)
    assert found[-1].get(0) == 3
    assert reader.read([]) == []


@BOTH
def test_a_file_the_kernel_hands_out_in_pieces(cls: type[PureFigureReader]) -> None:
    """A list that is longer than a page comes page by page."""
    listing = Path("/proc/kallsyms").read_bytes()[: 4 * 4096]
    (reading,) = cls([Figure("/proc", "/kallsyms", kind=TEXT)]).read([""])
    assert reading.text()[: len(listing)] == listing == (read_file("/proc/kallsyms") or b"")[: len(listing)]


@BOTH
def test_a_directory_is_no_file(cls: type[PureFigureReader], tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    assert cls([Figure("", "", kind=TEXT)]).read([str(tmp_path)] * 3)[2].there == 0
    assert len(os.listdir("/proc/self/fd")) == before


@BOTH
def test_plans_that_cannot_be(cls: type[PureFigureReader]) -> None:
    with pytest.raises(ValueError, match="65 figures"):
        cls([Figure("", "/file")] * 65)


@SAME_DIRECTORY
@given(st.lists(figure, min_size=1, max_size=6), content)
def test_both_read_the_same(tmp_path: Path, figures: list[Figure], data: bytes) -> None:
    (tmp_path / "file").write_bytes(data)
    plan = [*figures, Figure("", "/file", kind=TEXT), Figure("", "/none")]
    pure, quick = (cls(plan).read([str(tmp_path)])[0] for cls in (PureFigureReader, FigureReader))
    assert tuple(map(list, (pure.values, pure.texts))) == tuple(map(list, (quick.values, quick.texts)))
    assert pure.there == quick.there


@pytest.mark.skipif(not native.HAVE_C, reason="the C extension is not built")
def test_more_than_c_has_room_for_is_refused_when_the_reader_is_made(tmp_path: Path) -> None:
    """Reading would never have come to an end."""
    for number, kind in ((65, NUMBER), (64, TEXT)):
        with pytest.raises(ValueError, match="figures"):
            FigureReader([Figure(str(tmp_path), f"/{each}", kind=kind) for each in range(number)])
