"""Reading the kernel's text files: what is no number counts as not there, whatever is in the file."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.stats.trees import NET_DEV
from trio_kubelet.machine import text
from trio_kubelet.machine.values import MAX, DiskIO

anything = st.binary(max_size=200) | st.none()


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (b"42\n", 42),
        (b"max\n", MAX),
        (b"-1\n", None),
        (b"99999999999999999999999", MAX),
        (b"", None),
        (None, None),
        (b"0x10", None),
        (b"1.5", None),
        (b"12 34", None),
    ],
)
def test_a_file_with_one_number(content: bytes | None, value: int | None) -> None:
    assert text.number(content) == value


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,12}", fullmatch=True), st.integers(0, MAX), max_size=8))
def test_each_field_is_found_and_none_that_only_ends_like_it(fields: dict[str, int]) -> None:
    content = "".join(f"{name} {value}\n" for name, value in fields.items()).encode()
    for name, value in fields.items():
        assert text.field(content, name.encode()) == value
        if name[1:] not in fields:
            assert text.field(content, name[1:].encode()) == 0


@given(anything)
def test_no_content_is_an_error(content: bytes | None) -> None:
    assert text.number(content) is None or 0 <= text.number(content) <= MAX  # type: ignore[operator]
    assert 0 <= text.field(content or b"", b"a") <= MAX
    for device in (*text.disk_io_v1(content, content), *text.disk_io_v2(content)):
        assert 0 <= device.read_bytes <= MAX
    for each in text.interfaces(content):
        assert each.rx_bytes is None or 0 <= each.rx_bytes <= MAX


def test_disks_of_both_versions() -> None:
    moved = b"254:0 Read 8192\n254:0 Write 4096\n254:0 Total 12288\nTotal 12288\n"
    done = b"254:0 Read 2\n254:0 Write 1\n"
    assert text.disk_io_v1(moved, done) == (DiskIO("254:0", 8192, 4096, 2, 1, (("Total", 12288),)),)
    assert text.disk_io_v2(b"254:0 rbytes=8192 wbytes=4096 rios=2 wios=1 dbytes=0\n7:0 \n") == (
        DiskIO("254:0", 8192, 4096, 2, 1),
    )


def test_interfaces_are_those_that_are_not_loopback_or_a_containers_end() -> None:
    listing = (
        NET_DEV + "vethab12: 1 1 1 1 0 0 0 0 1 1 1 1 0 0 0 0\n  Docker0: 1 1 1 1 0 0 0 0 1 1 1 1 0 0 0 0\n"
    )
    (eth0,) = text.interfaces(listing.encode())
    assert (eth0.name, eth0.rx_bytes, eth0.rx_packets, eth0.rx_errors, eth0.rx_dropped) == (
        "eth0",
        2026,
        23,
        1,
        2,
    )
    assert (eth0.tx_bytes, eth0.tx_packets, eth0.tx_errors, eth0.tx_dropped) == (612, 8, 3, 4)
