"""`trio-kubelet standalone` as a user runs it, and a private node that comes to an early or violent end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import trio

from tests.containerd.harness import wait_until
from trio_kubelet.standalone import cleanup
from trio_kubelet.standalone.command import BASE
from trio_kubelet.standalone.layout import NodeLayout
from trio_kubelet.standalone.node import Provisions, new_layout, private_node
from trio_kubelet.standalone.packages import DEFAULT_CONTAINERD

EXAMPLES = Path(__file__).parents[2] / "examples/manifests"


async def layout_of(name: str) -> NodeLayout:
    return await new_layout(name, BASE / name)


def show(log: Path) -> None:
    """For a failed test."""
    print(log.read_text())


@asynccontextmanager
async def standalone(name: str, manifests: Path, log: Path, *flags: str) -> AsyncIterator[trio.Process]:
    """The command as a process; its output goes to `log`. It is killed if the test did not end it."""
    cleanup.become_subreaper()
    with log.open("ab") as out:
        process = await trio.lowlevel.open_process(
            [sys.executable, "-m", "trio_kubelet", "standalone", str(manifests), "--name", name, *flags],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            env={**os.environ, "XDG_STATE_HOME": str(log.parent)},
        )
    try:
        yield process
    except BaseException:
        show(log)
        raise
    finally:
        if process.returncode is None:
            with trio.CancelScope(shield=True):
                process.kill()
                await process.wait()
                await cleanup.take_down(await layout_of(name))


async def until_said(log: Path, *texts: str, timeout: float = 60) -> None:
    def all_said() -> bool:
        said = log.read_text()
        assert "Traceback" not in said
        return all(text in said for text in texts)

    await wait_until(all_said, timeout, f"{texts} in the output")


@pytest.fixture
def ready(provisions: Callable[[str], Provisions]) -> Provisions:
    """Skips where no private node can run."""
    return provisions(DEFAULT_CONTAINERD)


@pytest.fixture
def name() -> str:
    return f"s{os.getpid()}"


async def test_examples_run_and_ctrl_c_leaves_nothing(ready: Provisions, name: str, tmp_path: Path) -> None:
    log = tmp_path / "out"
    async with standalone(name, EXAMPLES, log) as process:
        await until_said(
            log,
            f"web-{name}/httpd: Running",
            f"init-{name}/fetch: Completed",
            f"init-{name}/build: Completed",
            f"init-{name}/main: Running",
            f"sidecar-{name}/logger: Running",
            f"sidecar-{name}/app: Running",
            f"crash-{name}/main: CrashLoopBackOff, restarts 1, back-off 10s",
        )
        address = re.search(r"^page: (http://127\.0\.0\.1:\d+/[\w-]+/)$", log.read_text(), re.MULTILINE)
        assert address is not None
        async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
            assert "page.js" in (await client.get(address[1])).text
        process.send_signal(signal.SIGINT)
        with trio.fail_after(90):
            assert await process.wait() == 0
    assert "nothing is left of the node" in log.read_text()
    assert await cleanup.leftovers(await layout_of(name)) == []


async def test_manifests_are_edited_added_and_removed(ready: Provisions, name: str, tmp_path: Path) -> None:
    log, manifests = tmp_path / "out", tmp_path / "manifests"
    manifests.mkdir()
    pod = (EXAMPLES / "init.yaml").read_text().partition("  initContainers:")[0]
    pod += "  containers:\n    - {name: main, image: 'localhost/busybox:1', command: [sleep, '%d']}\n"
    async with standalone(name, manifests, log) as process:
        await until_said(log, "manifests:")
        (manifests / "a.yaml").write_text(pod % 1000)
        await until_said(log, f"init-{name}/main: Running")
        (manifests / "a.yaml").write_text(pod % 2000)
        # Not every state in between has to be seen; but the new pod has an address of its own.
        address = re.compile(rf"init-{name}: Running, ([\d.]+)")
        await wait_until(lambda: len(set(address.findall(log.read_text()))) > 1, 60, "replaced")
        (manifests / "a.yaml").unlink()
        await until_said(log, f"init-{name}: gone")
        process.send_signal(signal.SIGTERM)
        with trio.fail_after(90):
            assert await process.wait() == 0


async def test_a_killed_run_is_cleared_away_by_the_next(ready: Provisions, name: str, tmp_path: Path) -> None:
    log = tmp_path / "out"
    async with standalone(name, EXAMPLES, log) as process:
        await until_said(log, f"web-{name}/httpd: Running")
        process.kill()
        await process.wait()
        assert any(line.startswith("process") for line in await cleanup.leftovers(await layout_of(name)))
        log.write_text("")
        async with standalone(name, EXAMPLES, log) as process:
            await until_said(log, f"web-{name}/httpd: Running")
            process.send_signal(signal.SIGINT)
            with trio.fail_after(90):
                assert await process.wait() == 0
    assert "nothing is left of the node" in log.read_text()
    # What the killed run left became children of this process, and only it can reap them.
    assert await cleanup.take_down(await layout_of(name)) == []


async def test_without_a_runtime_containers_are_simulated(name: str, tmp_path: Path) -> None:
    log = tmp_path / "out"
    async with standalone(name, EXAMPLES, log, "--simulated") as process:
        await until_said(log, "simulated runtime", f"web-{name}/httpd: Running")
        process.send_signal(signal.SIGINT)
        with trio.fail_after(90):
            assert await process.wait() == 0


@pytest.mark.parametrize("seconds", [0.0, 0.02, 0.05, 0.1, 0.2])
async def test_a_node_cancelled_while_it_comes_up_leaves_nothing(
    ready: Provisions, name: str, tmp_path: Path, seconds: float
) -> None:
    layout = await new_layout(name, Path(f"/tmp/tk-{name}"))
    with trio.move_on_after(seconds):
        async with private_node(layout, ready):
            await trio.sleep_forever()
    assert await cleanup.leftovers(layout) == []
    assert not layout.base.exists()
