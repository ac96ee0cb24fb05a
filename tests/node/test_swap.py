"""What may get to a disk although it is kept in memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trio_kubelet.config.types import KubeletConfiguration
from trio_kubelet.node import swap
from trio_kubelet.node.events import start_events
from trio_kubelet.node.swap import swap_is_on, tmpfs_stays_in_memory

HEAD = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"


@pytest.mark.parametrize(
    ("text", "on"), [(HEAD, False), (HEAD + "/swap.img file 1048572 0 -2\n", True), (None, False)]
)
def test_swap_is_a_line_below_the_head(tmp_path: Path, text: str | None, on: bool) -> None:
    path = tmp_path / "swaps"
    if text is not None:
        path.write_text(text)
    assert swap_is_on(str(path)) is on


@pytest.mark.parametrize("works", [True, False])
@pytest.mark.parametrize(
    ("release", "asked"),
    [("6.4.0-1-amd64", 0), ("7.0", 0), ("6.3.9", 1), ("5.14.0-503.el9.x86_64", 1), ("", 1)],
)
def test_only_an_old_kernel_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str, asked: int, works: bool
) -> None:
    calls = []

    def mount(source: str, target: str, fs_type: str, options: str) -> None:
        calls.append((Path(target).parent, fs_type, options))
        if not works:
            raise OSError(22, "Invalid argument", target)

    monkeypatch.setattr(swap, "mount", mount)
    monkeypatch.setattr(swap, "unmount", lambda place: None)
    assert tmpfs_stays_in_memory(str(tmp_path), release, "/dev/null/none") is (works or not asked)
    assert calls == [(tmp_path, "tmpfs", "noswap")] * asked
    assert os.listdir(tmp_path) == []


def test_a_user_namespace_has_no_such_tmpfs(tmp_path: Path) -> None:
    uid_map = tmp_path / "uid_map"
    uid_map.write_text("0 1000 65536\n")
    assert not tmpfs_stays_in_memory(str(tmp_path), "6.9", str(uid_map))


def test_it_is_told_at_the_start() -> None:
    first, second, *_ = start_events(KubeletConfiguration(), cgroup_v2=True, swaps_tmpfs=True)
    assert (first.type, first.reason) == ("Warning", "PossibleMemoryBackedVolumesOnDisk")
    assert "might be swapped to disk" in first.message
    assert second.reason == "Starting"
