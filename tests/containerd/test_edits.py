"""Static pods that are edited, removed and put back while they run."""

from __future__ import annotations

import os

import trio

from tests.containerd.harness import PATIENCE, Manifest, Node, container, wait_until
from tests.containerd.scenes import Journal, living, log_links, uid_of, until_nothing_left
from trio_kubelet.standalone import cni

SLOW_END, SLOWER_END = 1.5, 3.0
"""Seconds that a container takes to end; the longer time is for what has to happen meanwhile."""


def version(journal: Journal, number: int, name: str = "edited", end: float = SLOW_END) -> Manifest:
    """A pod that says its version and takes a while to end."""
    main = container("main", living(f"v{number}", f"sleep {end}; exit 0"))
    return journal.pod(name, main, terminationGracePeriodSeconds=20)


async def test_an_edit_replaces_the_pod_and_never_runs_two(node: Node) -> None:
    journal = Journal.of(node, "edit")
    node.write(version(journal, 1))
    await journal.until("v1")
    [before] = await node.wait_running("edited")
    node.write(version(journal, 2))
    await journal.until("v1-end", "v2")
    assert journal.words() == ["v1", "v1-end", "v2"]
    ended, begun = journal.times("v1-end")[0] + SLOW_END, journal.times("v2")[0]
    assert 0 <= begun - ended + 0.02 < 2.5 * PATIENCE
    [after] = await node.wait_running("edited", besides=[before.id])
    assert after.labels["io.kubernetes.pod.uid"] != before.labels["io.kubernetes.pod.uid"]
    await wait_until(lambda: not node.pod_traces(before.labels["io.kubernetes.pod.uid"]), 20, "old one gone")


async def test_of_three_edits_within_the_grace_only_the_last_runs(node: Node) -> None:
    journal = Journal.of(node, "three")
    node.write(version(journal, 1, end=SLOWER_END))
    await journal.until("v1")
    await node.wait_running("edited")
    for number in (2, 3, 4):
        node.write(version(journal, number))
        await trio.sleep(0.3)
    await journal.until("v4")
    await trio.sleep(1)
    assert journal.words() == ["v1", "v1-end", "v4"]


async def test_an_edit_taken_back_restarts_the_pod_once_at_most(node: Node) -> None:
    journal = Journal.of(node, "back")
    node.write(version(journal, 1, end=SLOWER_END))
    await journal.until("v1")
    [before] = await node.wait_running("edited")
    node.write(version(journal, 2))
    await journal.until("v1-end")
    node.write(version(journal, 1, end=SLOWER_END))
    await journal.until("v1", "v1")
    await node.wait_running("edited", besides=[before.id])
    await trio.sleep(1)
    assert journal.words() == ["v1", "v1-end", "v1"]
    assert len(await node.running("edited")) == 1


async def test_a_manifest_removed_and_put_back_starts_once_after_the_end(node: Node) -> None:
    journal = Journal.of(node, "again")
    node.write(version(journal, 1, end=SLOWER_END))
    await journal.until("v1")
    await node.wait_running("edited")
    node.remove("edited")
    await journal.until("v1-end")
    node.write(version(journal, 1, end=SLOWER_END))
    await journal.until("v1", "v1")
    await trio.sleep(1)
    assert journal.words() == ["v1", "v1-end", "v1"]
    assert journal.times("v1")[1] - journal.times("v1-end")[0] > SLOWER_END - 0.1
    node.remove("edited")
    await node.wait_gone("edited")
    node.write(version(journal, 1, end=SLOWER_END))
    await journal.until("v1", "v1", "v1")


async def test_nothing_is_left_of_a_removed_pod(node: Node) -> None:
    journal = Journal.of(node, "gone")
    mounts = [
        {"name": "disk", "mountPath": "/disk"},
        {"name": "memory", "mountPath": "/memory"},
        {"name": "disk", "mountPath": "/part", "subPath": "a/b"},
        {"name": "facts", "mountPath": "/facts"},
    ]
    facts = [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]
    volumes = [
        {"name": "disk", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory"}},
        {"name": "facts", "downwardAPI": {"items": facts}},
    ]
    crash = container("crash", "exit 1")
    main = container("main", living("main"), volumeMounts=mounts)
    links = set(await cni.links(node.layout.bridge))
    node.write(journal.pod("gone", main, crash, volumes=volumes))
    await journal.until("main")
    [running] = await node.wait_running("gone")
    uid = await uid_of(node, "gone")
    kinds = {
        "directory": node.layout.agent_root / "pods" / uid,
        "logs": node.layout.pod_logs / f"default_gone-{node.name}_{uid}",
    }
    assert all(path.is_dir() for path in kinds.values())
    traces = node.pod_traces(uid)
    assert any("volumes/kubernetes.io~empty-dir/memory" in trace for trace in traces)
    assert any("kubepods/besteffort/pod" in trace for trace in traces)
    await wait_until(
        lambda: any(running.id in link for link in log_links(node, "gone")), 20, "a link to its log"
    )
    assert set(await cni.links(node.layout.bridge)) - links
    addresses = set(os.listdir(node.layout.cni_ipam_dir / node.layout.bridge))
    node.remove("gone")
    await until_nothing_left(node, "gone", uid)
    assert set(await cni.links(node.layout.bridge)) <= links | {node.layout.bridge}
    assert len(set(os.listdir(node.layout.cni_ipam_dir / node.layout.bridge))) < len(addresses)
