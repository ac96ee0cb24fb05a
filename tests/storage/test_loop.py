"""Loop devices of others on the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from trio_kubelet.storage import loop
from trio_kubelet.volumes.linux import MS_BIND, MS_RDONLY, MS_REMOUNT, mount, unmount


def test_a_file_of_others_whose_name_is_no_text_hides_no_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, backing in (("loop0", b"/tmp/\xff\xfe.img\n"), ("loop1", b"/data/disk.img\n"), ("sda", b"")):
        (tmp_path / name / "loop").mkdir(parents=True)
        (tmp_path / name / "loop" / "backing_file").write_bytes(backing)
    monkeypatch.setattr(loop, "_SYS", str(tmp_path))
    assert loop.devices_of("/data/disk.img") == ["/dev/loop1"]


def test_what_can_only_be_read_is_a_loop_device_that_can_only_be_read(tmp_path: Path) -> None:
    """A disk that is write-protected, as one that was attached to be read by many nodes."""
    image = tmp_path / "disk.img"
    with image.open("wb") as file:
        file.truncate(1 << 20)
    mount(str(tmp_path), str(tmp_path), flags=MS_BIND)
    try:
        mount("", str(tmp_path), flags=MS_BIND | MS_REMOUNT | MS_RDONLY)
        device = loop.attach(str(image))
        try:
            assert Path(f"/sys/block/{Path(device).name}/ro").read_text() == "1\n"
        finally:
            loop.detach(str(image))
    finally:
        unmount(str(tmp_path))
