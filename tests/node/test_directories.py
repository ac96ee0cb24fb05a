"""The directories of pods: made once, and again when somebody else removed them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.pods.build import make_pod
from trio_kubelet.api import v1
from trio_kubelet.node.directories import PodDirectories
from trio_kubelet.volumes.files import make_dirs


async def test_made_once_and_again_when_somebody_removed_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def make(path: str) -> None:
        asked.append(path)
        make_dirs(path)

    monkeypatch.setattr("trio_kubelet.node.directories.make_dirs", make)
    pods, pod = PodDirectories(str(tmp_path)), make_pod("web", "uid-1")
    await pods.make(pod)
    assert (tmp_path / "pods/uid-1/volumes").is_dir()
    once = len(asked)
    await pods.make(pod)
    assert await pods.pods() == ["uid-1"]
    await pods.make(pod)
    assert len(asked) == once
    shutil.rmtree(tmp_path / "pods/uid-1")
    assert await pods.pods() == []
    await pods.make(pod)
    assert (tmp_path / "pods/uid-1/plugins").is_dir()


async def test_removed_ones_are_made_again(tmp_path: Path) -> None:
    pods, pod = PodDirectories(str(tmp_path)), make_pod("web", "uid-1")
    for _ in range(2):
        await pods.make(pod)
        assert (tmp_path / "pods/uid-1/volumes").is_dir()
        await pods.remove("uid-1")
        assert not (tmp_path / "pods/uid-1").exists()


@pytest.mark.parametrize("uid", ["", ".", "..", "../..", "a/../..", "/", "a\0"])
async def test_a_uid_that_leads_elsewhere_has_no_directory(tmp_path: Path, uid: str) -> None:
    """A manifest may name any, and a runtime may list sandboxes of any."""
    pods = PodDirectories(str(tmp_path / "root"))
    await pods.make(make_pod("web", "uid-1"))
    key = tmp_path / "root/pki/key"
    key.parent.mkdir()
    key.touch()
    with pytest.raises(OSError, match="UID of a pod must be"):
        await pods.remove(uid)
    with pytest.raises(OSError, match="UID of a pod must be"):
        await pods.make(v1.Pod(metadata=v1.ObjectMeta(name="odd", uid=uid)))
    assert key.exists()
    assert (tmp_path / "root/pods/uid-1/volumes").is_dir()
