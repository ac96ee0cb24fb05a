"""What editors, scripts and operators do to the manifest directory, and what the pods notice of it."""

from __future__ import annotations

import os
import shutil
import time

import trio
import yaml

from tests.containerd.conftest import NewNode
from tests.containerd.harness import Manifest, Node, container, wait_until
from tests.containerd.scenes import Journal, living


def one(journal: Journal, word: str, name: str = "web") -> Manifest:
    return journal.pod(name, container("main", living(word)))


def text_of(manifest: Manifest) -> str:
    return yaml.safe_dump(manifest, sort_keys=False)


def said_in_log(node: Node, *parts: str) -> bool:
    """Whether one line of the agent's log has all of these."""
    assert node.agent is not None
    return any(all(part in line for part in parts) for line in node.agent.log_text().splitlines())


async def test_a_manifest_written_in_chunks_ends_nothing(node: Node) -> None:
    journal = Journal.of(node, "chunks")
    path = node.write(one(journal, "v1"))
    await journal.until("v1")
    text = text_of(one(journal, "v2"))
    size = len(text) // 5
    with path.open("w") as file:
        # A piece is far from settled when the next one comes, all of them together take longer than that.
        for number in range(4):
            file.write(text[number * size : (number + 1) * size])
            file.flush()
            await trio.sleep(0.5)
        assert journal.words() == ["v1"]
        file.write(text[4 * size :])
    await journal.until("v1-end", "v2")
    await trio.sleep(1)
    assert journal.words() == ["v1", "v1-end", "v2"]


def vim_save(directory: str, name: str, text: str) -> None:
    """The system calls of vim's `:w` with its defaults: swap file, probe file, backup by rename, new file."""
    path, swap = f"{directory}/{name}", f"{directory}/.{name}.swp"
    backup, probe = f"{path}~", f"{directory}/4913"
    with open(swap, "wb") as file:
        file.write(b"b0VIM 9.0")
    time.sleep(0.2)
    with open(probe, "wb"):
        pass
    os.chmod(probe, 0o644)
    os.unlink(probe)
    os.rename(path, backup)
    with open(path, "w") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    os.chmod(path, 0o644)
    os.unlink(backup)
    os.unlink(swap)


async def test_a_save_without_a_change_restarts_nothing_with_one_once(node: Node) -> None:
    journal = Journal.of(node, "vim")
    path = node.write(one(journal, "v1"))
    await journal.until("v1")
    for _ in range(3):
        await trio.to_thread.run_sync(vim_save, str(path.parent), path.name, path.read_text())
        await trio.sleep(0.4)
    await trio.sleep(1)
    assert journal.words() == ["v1"]
    await trio.to_thread.run_sync(vim_save, str(path.parent), path.name, text_of(one(journal, "v2")))
    await journal.until("v2")
    await trio.sleep(1)
    assert journal.words() == ["v1", "v1-end", "v2"]


async def test_a_backup_copy_does_not_take_the_place_of_its_original(node: Node) -> None:
    journal = Journal.of(node, "backup")
    node.write(one(journal, "original"), "a.yaml")
    await journal.until("original")
    node.write(one(journal, "copy"), "a.yaml.bak")
    await wait_until(lambda: said_in_log(node, '/a.yaml"', '/a.yaml.bak"'), 10, "a warning names both files")
    (node.manifests / "a.yaml.bak").unlink()
    await trio.sleep(2)
    assert journal.words() == ["original"]


async def test_a_bad_manifest_leaves_the_last_good_version(node: Node) -> None:
    journal = Journal.of(node, "bad")
    path = node.write(one(journal, "good"), "bad.yaml")
    other = node.write(one(journal, "other", "other"), "other.yaml")
    await journal.until("good", "other")
    broken = one(journal, "bad")
    broken["spec"]["containers"][0]["image"] = ""
    path.write_text(text_of(broken))
    await wait_until(lambda: said_in_log(node, str(path), ".image: "), 10, "the error names file and field")
    path.write_text("}{")
    await trio.sleep(3)
    assert sorted(journal.words()) == ["good", "other"]
    node.write(one(journal, "other-2", "other"), other.name)
    await journal.until("other-2")
    node.write(one(journal, "better"), path.name)
    await journal.until("good-end", "better")
    path.write_text("}{")
    await trio.sleep(2)
    path.unlink()
    await journal.until("better-end")


async def test_a_directory_that_was_moved_away_and_back(new_node: NewNode) -> None:
    """Operators stop a control plane so."""
    async with new_node() as node:
        journal = Journal.of(node, "moved")
        await node.start_agent()
        node.write(one(journal, "web"))
        await journal.until("web")
        await node.wait_running("web")
        away = node.manifests.with_name("away")
        shutil.move(node.manifests, away)
        await journal.until("web-end")
        await node.wait_gone("web")
        shutil.move(away, node.manifests)
        await journal.until("web", "web")
        node.write(one(journal, "second", "second"))
        await journal.until("second")
        assert journal.words() == ["web", "web-end", "web", "second"]
