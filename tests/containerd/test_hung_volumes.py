"""Volumes that hang, one pod of each kind beside healthy ones: these start, change and end as quickly as
without them, pods over their limits are evicted, the agent's pages answer, and all that hung goes on once it
is answered, though the agent was killed meanwhile.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.containerd.conftest import NewNode
from tests.containerd.harness import PATIENCE, container, wait_until
from tests.containerd.test_persistent_volumes import Scene, scene
from tests.hung_filesystem import HungFilesystem, hung_filesystem
from tests.kube.apiserver import APIServer
from trio_kubelet.server.http.messages import Hijack, Request, Response

HEALTHY = 10
LATER = 1.0 * PATIENCE  # seconds above half as long again that healthy pods may take beside the others
LONGEST_PAGE = 1.0 * PATIENCE
THREADS = 50
PAGES = ("/healthz", "/pods", "/stats/summary", "/metrics", "/metrics/cadvisor")
HUNG_MOUNT = """#!/bin/sh
case " $* " in *" nfs "*)
    while [ -e {flag} ]; do sleep 0.1; done
    for target; do :; done
    exec {mount} -t tmpfs nfs "$target";;
esac
exec {mount} "$@"
"""


class Hanging:
    """All that pods wait for, until it is told to go on."""

    def __init__(self, directory: Path) -> None:
        self.files: dict[str, HungFilesystem] = {}
        self.flag = directory / "hang"
        self._answers = trio.Event()
        self._answers.set()
        tools = directory / "tools"
        tools.mkdir()
        (tools / "mount").write_text(HUNG_MOUNT.format(flag=self.flag, mount=shutil.which("mount")))
        (tools / "mount").chmod(0o755)
        self.path = f"{tools}:{os.environ['PATH']}"

    async def held(self, request: Request) -> None:
        """An API server that has no answer about some objects."""
        if "stuck" in request.target:
            await self._answers.wait()

    def hang(self, s: Scene) -> None:
        self._answers = trio.Event()
        self.flag.touch()
        for each in self.files.values():
            each.hang()
        s.driver.fail(
            NodeStageVolume={"hang": 6000, "volume": "stage"},
            NodePublishVolume={"hang": 6000, "volume": "publish"},
            NodeUnpublishVolume={"hang": 6000, "volume": "unpublish"},
        )

    def go_on(self, s: Scene) -> None:
        self._answers.set()
        self.flag.unlink()
        for each in self.files.values():
            each.go_on()
        s.driver.fail()


@pytest.fixture
def hanging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hanging]:
    made, handle = Hanging(tmp_path), APIServer.handle

    async def handle_or_hang(server: APIServer, request: Request) -> Response | Hijack:
        await made.held(request)
        return await handle(server, request)

    monkeypatch.setattr(APIServer, "handle", handle_or_hang)
    monkeypatch.setenv("PATH", made.path)
    yield made
    made.flag.unlink(missing_ok=True)


def make(s: Scene, name: str, volume: dict[str, Any], script: str = "", *, part: bool = False) -> str:
    """A pod with the volume, or with a part of it, at `/v`; its UID."""
    mount = {"name": "v", "mountPath": "/v", **({"subPath": "part"} if part else {})}
    main = container("a", script, volumeMounts=[mount])
    return str(s.cluster.pod(s.node, name, main, volumes=[{"name": "v", **volume}])["metadata"]["uid"])


def delete(s: Scene, *names: str) -> None:
    for name in names:
        s.cluster.store.delete("pods", "default", f"{name}-{s.node.name}", {"gracePeriodSeconds": 1})


def is_gone(s: Scene, name: str) -> bool:
    return s.cluster.shown(f"{name}-{s.node.name}") is None


async def until_gone(s: Scene, *names: str, timeout: float = 60) -> None:
    await wait_until(lambda: all(is_gone(s, name) for name in names), timeout, f"{names} are gone")


async def healthy_pods(s: Scene, number: int) -> list[float]:
    """Seconds in which healthy pods start, see a change, and end."""
    name, names = f"cm-{number}", [f"healthy-{number}-{each}" for each in range(HEALTHY)]
    s.cluster.put("configmaps", name, {"key": "old"})
    moments = [time.monotonic()]
    pods = s.node.layout.agent_root / "pods"
    uids = [make(s, each, {"configMap": {"name": name}}) for each in names]
    for each in names:
        await s.node.wait_running(each, "a", timeout=60)
    moments.append(time.monotonic())
    s.cluster.put("configmaps", name, {"key": "new"})
    files = [pods / uid / "volumes/kubernetes.io~configmap/v/key" for uid in uids]
    await wait_until(lambda: all(file.read_text() == "new" for file in files), 60, "the change is there")
    moments.append(time.monotonic())
    delete(s, *names)
    await until_gone(s, *names)
    moments.append(time.monotonic())
    return [round(after - before, 2) for before, after in itertools.pairwise(moments)]


async def rounds(s: Scene, what: str, *numbers: int) -> list[float]:
    """The least of some rounds: others may be at work on the machine, too."""
    took = [await healthy_pods(s, number) for number in numbers]
    print(f"{what}: healthy pods start, change, end: {took}")
    return [min(each) for each in zip(*took, strict=True)]


def as_quick(took: list[float], alone: list[float]) -> bool:
    """Whether healthy pods go on as without the others. Who waits for one that hangs waits ten seconds and
    more.
    """
    return all(now < 1.5 * before + LATER for before, now in zip(alone, took, strict=True))


@asynccontextmanager
async def pages_read(s: Scene) -> AsyncIterator[None]:
    """All pages answer meanwhile."""
    longest = dict.fromkeys(PAGES, 0.0)

    async def read() -> None:
        while True:
            for page in PAGES:
                port = s.node.ports.healthz if page == "/healthz" else s.node.ports.read_only
                began = time.monotonic()
                answer = await s.node.get(port, page)
                assert answer.status_code == 200, page
                longest[page] = max(longest[page], time.monotonic() - began)
            await trio.sleep(0.1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        yield
        nursery.cancel_scope.cancel()
    print(f"pages at most: { {page: round(seconds, 3) for page, seconds in longest.items()} }")
    assert max(longest.values()) < LONGEST_PAGE


def threads_of(s: Scene) -> int:
    assert s.node.agent is not None
    return len(os.listdir(f"/proc/{s.node.agent.process.pid}/task"))


async def eviction(s: Scene, name: str) -> float:
    """Seconds until a pod is evicted that writes more than it may."""
    began = time.monotonic()
    script = "head -c 5000000 /dev/zero > /v/file; trap exit TERM; while :; do sleep 3600 & wait $!; done"
    make(s, name, {"emptyDir": {"sizeLimit": "1Mi"}}, script)

    def evicted() -> bool:
        status = (s.cluster.shown(f"{name}-{s.node.name}") or {}).get("status") or {}
        return bool(status.get("reason") == "Evicted")

    await wait_until(evicted, 60, "the greedy pod is evicted")
    return time.monotonic() - began


@pytest.mark.alone
async def test_hung_volumes_cost_nobody_else_anything(
    new_node: NewNode, tmp_path: Path, hanging: Hanging
) -> None:
    volumes: dict[str, dict[str, Any]] = {
        "nfs": {"nfs": {"server": "10.0.0.1", "path": "/x"}},
        "stage": {"persistentVolumeClaim": {"claimName": "stage"}},
        "publish": {"persistentVolumeClaim": {"claimName": "publish"}},
        "config-map": {"configMap": {"name": "stuck"}},
        "secret": {"secret": {"secretName": "stuck"}},
        "path-checked": {"hostPath": {"path": str(tmp_path / "checked"), "type": "Directory"}},
        "path": {"hostPath": {"path": str(tmp_path / "path")}},
        "part": {"hostPath": {"path": str(tmp_path / "part")}},
        "claim": {"persistentVolumeClaim": {"claimName": "stuck"}},
    }
    config = {"volumeStatsAggPeriod": "2s"}
    async with scene(new_node, tmp_path, config=config, verbosity=2) as s:
        with ExitStack() as stack:

            def may_hang(name: str, at: Path) -> None:
                hanging.files[name] = stack.enter_context(hung_filesystem(at))

            for name in ("checked", "path", "part", "ran", "ran-part"):
                may_hang(name, tmp_path / name)
            for name in ("stage", "publish", "unpublish", "away", "stuck"):
                s.claims.claim(name)
            s.cluster.put("configmaps", "stuck", {"key": "v"})
            s.cluster.put("secrets", "stuck", {"key": "v"})
            alone = await rounds(s, "alone", 0, 1, 2)
            usual = await eviction(s, "greedy-0")
            # Pods whose volumes hang when they run: a path, a part of one, a claim whose server is away, one
            # whose driver does not let it go, a mount that somebody made in a volume.
            make(s, "ran", {"hostPath": {"path": str(tmp_path / "ran")}})
            make(s, "ran-part", {"hostPath": {"path": str(tmp_path / "ran-part")}}, part=True)
            inner = make(s, "inner", {"emptyDir": {}})
            away = await s.start("away", "away")
            await s.start("unpublish", "unpublish")
            for name in ("ran", "ran-part", "inner"):
                await s.node.wait_running(name, "a")
            pods = s.node.layout.agent_root / "pods"
            may_hang("inner", pods / inner / "volumes/kubernetes.io~empty-dir/v/inner")
            may_hang("away", pods / away / "volumes/kubernetes.io~csi/pv-away/mount")
            hanging.hang(s)
            for name, volume in volumes.items():
                make(s, name, volume, part=name == "part")
            delete(s, "ran", "ran-part", "unpublish")
            async with pages_read(s):
                beside = await rounds(s, "beside", 10, 11, 12)
                took = await eviction(s, "greedy-1")
            print(f"evicted after {usual:.1f} s alone, {took:.1f} s beside")
            threads = threads_of(s)
            print(f"{threads} threads")
            assert took < usual + 5 * PATIENCE
            assert as_quick(beside, alone)
            assert threads < THREADS
            await until_gone(s, "ran", "ran-part")
            delete(s, "inner")
            await until_gone(s, "inner", timeout=10)
            assert not is_gone(s, "unpublish")
            # Not even the driver's registration is answered.
            assert s.driver.process is not None
            s.driver.process.send_signal(signal.SIGSTOP)
            await s.node.kill_agent()
            began = time.monotonic()
            await s.restart()
            assert time.monotonic() - began < 5 * PATIENCE
            async with pages_read(s):
                after = await rounds(s, "after a restart", 20, 21, 22)
            assert as_quick(after, alone)
            s.driver.process.send_signal(signal.SIGCONT)
            hanging.go_on(s)
            for name in volumes:
                await s.node.wait_running(name, "a", timeout=150)
            delete(s, *volumes, "away")
            await until_gone(s, *volumes, "away", "unpublish", timeout=150)
