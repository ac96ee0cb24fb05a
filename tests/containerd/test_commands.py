"""`get`, `describe`, `top`, `logs` and `exec` against a whole agent without an API server."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Awaitable, Callable

import trio

from tests.containerd.conftest import NewNode
from tests.containerd.harness import Node, container, pod, wait_until

SLOW = 60.0


def command(node: Node, *words: str) -> list[str]:
    name, *others = words
    at = others.index("--") if "--" in others else len(others)
    where = [f"--root-dir={node.layout.agent_root}"]
    return [sys.executable, "-m", "trio_kubelet", name, *others[:at], *where, *others[at:]]


async def told(node: Node, *words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    with trio.fail_after(SLOW):
        return await trio.run_process(
            command(node, *words), stdin=stdin, capture_stdout=True, capture_stderr=True, check=False
        )


async def lines(node: Node, *words: str) -> list[str]:
    done = await told(node, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode().splitlines()


def says(node: Node, text: str, *words: str) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return any(text in line for line in await lines(node, *words))

    return look


async def test_what_a_user_asks_the_node(new_node: NewNode) -> None:
    async with new_node() as node:
        await node.start_agent(config={"enableServer": False})
        asking = {"requests": {"cpu": "100m", "memory": "16Mi"}}
        script = "trap 'exit 0' TERM; echo begun; while read x < /tmp/say; do echo said $x; done & wait"
        node.write(
            pod("web", container("main", f"mkfifo /tmp/say; {script}", resources=asking), container("other"))
        )
        await node.wait_running("web", "main", "other")
        await wait_until(says(node, "Started", "get", "events"), 30, "the events tell of the start")

        _, row = await lines(node, "get", "node")
        assert row.split()[:2] == [node.name, "Ready"]
        described = await lines(node, "describe", "node")
        assert any(line.split()[:3] == ["default", f"web-{node.name}", "100m"] for line in described)
        assert any("containerd://" in line for line in described)
        await wait_until(says(node, "Mi", "top", "pods"), 30, "what the pod uses is known")
        assert (await lines(node, "top", "node"))[1].split()[0] == node.name
        text = "\n".join(await lines(node, "describe", "pod", "web"))
        assert text.index("Created") < text.index("Story:")

        await logs_and_commands(node)


async def logs_and_commands(node: Node) -> None:
    assert await lines(node, "logs", "web", "-c", "main", "--tail", "1") == ["begun"]
    done = await told(node, "exec", "web", "-c", "main", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.stdout, done.stderr, done.returncode) == (b"out\n", b"err\n", 7)
    done = await told(node, "exec", "-i", "web", "-c", "other", "--", "cat", stdin=b"x" * 300_000)
    assert (len(done.stdout), done.returncode) == (300_000, 0)
    assert (await told(node, "exec", "web", "-c", "main", "--", "/nothing")).returncode == 1
    assert b"no container 'z'" in (await told(node, "logs", "web", "-c", "z")).stderr

    following = await trio.lowlevel.open_process(
        command(node, "logs", "-f", "web", "-c", "main"), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    assert following.stdout is not None
    try:
        with trio.fail_after(SLOW):
            assert await following.stdout.receive_some() == b"begun\n"
            await told(node, "exec", "web", "-c", "main", "--", "sh", "-c", "echo hello > /tmp/say")
            assert await following.stdout.receive_some() == b"said hello\n"
    finally:
        following.kill()
        await following.wait()
        await following.stdout.aclose()
    await a_terminal(node)


async def a_terminal(node: Node) -> None:
    """`exec -it`: keys go in, the size of the window is known, the exit code comes back."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 99, 0, 0))
    before = termios.tcgetattr(theirs)
    shell = await trio.lowlevel.open_process(
        command(node, "exec", "-it", "web", "-c", "other", "--", "sh"),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    said = b""
    async with trio.lowlevel.FdStream(ours) as terminal:
        try:
            with trio.fail_after(SLOW):
                while b"33 99" not in said:
                    await terminal.send_all(b"stty size\r")
                    with trio.move_on_after(0.5):
                        while b"33 99" not in said:
                            said += bytes(await terminal.receive_some())
                await terminal.send_all(b"exit 5\r")
                assert await shell.wait() == 5
        finally:
            shell.kill()
            await shell.wait()
        assert termios.tcgetattr(theirs) == before
        assert os.get_blocking(theirs)
        os.close(theirs)
