"""What is read from the machine's apt configuration, and what is asked of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.standalone.packages import (
    AptSource,
    PackagesUnavailable,
    derive_source,
    is_static_elf,
    missing_packages,
    normalize_choice,
    parse_containerd_version,
    parse_deb822_sources,
    parse_one_line_sources,
    read_apt_sources,
)

DEB822 = """\
# a comment
Types: deb deb-src
URIs: http://archive.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian.gpg

Types: deb
URIs: http://archive.example/debian-security
Suites: bookworm-security
Components: main

Types: deb
Enabled: no
URIs: http://off.example/debian
Suites: bookworm
Components: main

Types: deb
URIs: http://keyed.example/debian
Suites: sid
Components: main contrib
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 mQINBF
"""

ONE_LINE = """\
# deb http://no.example/debian bookworm main
deb [arch=amd64 signed-by=/k.gpg] http://a.example/debian bookworm main contrib # comment
deb-src http://b.example/debian bookworm main
deb http://c.example/debian bookworm-security main
  deb http://d.example/debian trixie main
deb
"""


def test_deb822_sources() -> None:
    assert parse_deb822_sources(DEB822) == [
        AptSource(
            "http://archive.example/debian",
            ("bookworm", "bookworm-updates"),
            ("main",),
            "/usr/share/keyrings/debian.gpg",
        ),
        AptSource("http://archive.example/debian-security", ("bookworm-security",), ("main",)),
        AptSource("http://keyed.example/debian", ("sid",), ("main", "contrib")),
    ]


def test_one_line_sources() -> None:
    assert parse_one_line_sources(ONE_LINE) == [
        AptSource("http://a.example/debian", ("bookworm",), ("main", "contrib"), "/k.gpg"),
        AptSource("http://c.example/debian", ("bookworm-security",), ("main",)),
        AptSource("http://d.example/debian", ("trixie",), ("main",)),
    ]


def test_the_newer_suite_comes_from_the_same_archive() -> None:
    sources = parse_deb822_sources(DEB822)
    assert derive_source(sources, "bookworm", "trixie") == (
        "deb [signed-by=/usr/share/keyrings/debian.gpg] http://archive.example/debian trixie main\n"
    )


def test_another_distribution_is_no_source() -> None:
    with pytest.raises(PackagesUnavailable, match="noble"):
        derive_source(parse_deb822_sources(DEB822), "noble", "trixie")


def test_sources_of_both_formats_are_read(tmp_path: Path) -> None:
    parts = tmp_path / "sources.list.d"
    parts.mkdir()
    (tmp_path / "sources.list").write_text("deb http://a.example/debian bookworm main\n")
    (parts / "x.sources").write_text("Types: deb\nURIs: http://b.example/\nSuites: sid\nComponents: main\n")
    (parts / "y.list").write_text("deb http://c.example/debian trixie main\n")
    (parts / "z.list.save").write_text("deb http://d.example/debian trixie main\n")
    assert [source.uri[7] for source in read_apt_sources(tmp_path)] == ["a", "b", "c"]


@given(st.text(max_size=200))
def test_any_text_is_read_without_failing(text: str) -> None:
    parse_one_line_sources(text)
    parse_deb822_sources(text)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("containerd github.com/containerd/containerd 1.7.24~ds1 1.7.24~ds1-6+deb13u1", (1, 7)),
        ("containerd github.com/containerd/containerd/v2 2.1.9+unknown", (2, 1)),
        ("containerd containerd.io v1.6.33 d2d58213", (1, 6)),
        ("what?", (0, 0)),
    ],
)
def test_version_of_containerd(text: str, version: tuple[int, int]) -> None:
    assert parse_containerd_version(text) == version


def test_choices_of_containerd() -> None:
    assert [normalize_choice(text) for text in ("1.6", "1.7.24", "v2.1", "2")] == ["1.6", "1.7", "2", "2"]
    with pytest.raises(ValueError, match=r"1\.5"):
        normalize_choice("1.5")


def test_only_what_is_missing_is_installed() -> None:
    assert missing_packages(lambda name: True, static_busybox=True) == []
    assert missing_packages(lambda name: name != "runc", static_busybox=True) == ["runc"]
    plugins_elsewhere = {"/usr/lib/cni/bridge"}
    assert missing_packages(lambda name: name not in plugins_elsewhere, static_busybox=True) == []
    assert "busybox-static" in missing_packages(lambda name: False, static_busybox=False)


def elf(*segment_types: int) -> bytes:
    header = bytearray(64)
    header[:6] = b"\x7fELF\x02\x01"
    header[32:40] = (64).to_bytes(8, "little")
    header[54:56] = (56).to_bytes(2, "little")
    header[56:58] = len(segment_types).to_bytes(2, "little")
    return bytes(header) + b"".join(kind.to_bytes(4, "little") + bytes(52) for kind in segment_types)


def test_static_binaries() -> None:
    assert is_static_elf(elf(1, 1, 4))
    assert not is_static_elf(elf(6, 3, 1))
    assert not is_static_elf(b"#!/bin/sh\n")
    assert not is_static_elf(b"")
