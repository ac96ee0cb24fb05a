"""Watches on the directories of plugins: each is closed, whatever becomes of its directory or its look."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import trio

from tests.cancelling import descriptors
from trio_kubelet.common.lanes import MANIFESTS
from trio_kubelet.plugins import watcher
from trio_kubelet.plugins.sockets import Found, list_sockets
from trio_kubelet.plugins.watcher import SocketWatcher, look_and_watch


def test_a_directory_that_goes_while_its_watch_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub").mkdir()
    before, lists = descriptors(), [list_sockets(str(tmp_path)), Found({}, (str(tmp_path),))]
    monkeypatch.setattr(watcher, "list_sockets", lambda root: lists.pop(0))
    look = look_and_watch(str(tmp_path), {})
    assert list(look.watches) == [str(tmp_path)]
    look.watches[str(tmp_path)].close()
    assert descriptors() == before


async def test_a_look_that_ends_too_late_leaves_no_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, hung, going = descriptors(), threading.Event(), threading.Event()

    def listing(root: str) -> Found:
        hung.set()
        going.wait()
        return list_sockets(root)

    monkeypatch.setattr(watcher, "list_sockets", listing)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(SocketWatcher(str(tmp_path), lambda sockets: None).run)
        with trio.fail_after(10):
            while not hung.is_set():  # noqa: ASYNC110 (a thread sets no Trio event)
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    going.set()
    with trio.fail_after(10):
        while MANIFESTS.left_behind or descriptors() != before:  # noqa: ASYNC110
            await trio.sleep(0.01)
