"""Loop devices of others on the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from trio_kubelet.storage import loop


def test_a_file_of_others_whose_name_is_no_text_hides_no_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, backing in (("loop0", b"/tmp/\xff\xfe.img\n"), ("loop1", b"/data/disk.img\n"), ("sda", b"")):
        (tmp_path / name / "loop").mkdir(parents=True)
        (tmp_path / name / "loop" / "backing_file").write_bytes(backing)
    monkeypatch.setattr(loop, "_SYS", str(tmp_path))
    assert loop.devices_of("/data/disk.img") == ["/dev/loop1"]
