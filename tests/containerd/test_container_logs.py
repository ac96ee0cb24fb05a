"""Logs of containers of a real containerd, by the node's `/containerLogs`."""

from __future__ import annotations

import os
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from tests.containerd.harness import Node, container, pod, wait_until
from tests.containerd.node_streams import Endpoints, endpoints
from tests.server.stream_clients import ask, unchunked
from trio_kubelet.cri.proto import api_pb2 as cri

FOLLOWERS = 200


async def read(here: Endpoints, pod_name: str, query: str = "") -> bytes:
    status, _, body = await ask(here.port, "GET", here.path("containerLogs", pod_name, f"main?{query}"))
    assert status == 200, body
    return unchunked(body)


@asynccontextmanager
async def seen(node: Node, name: str) -> AsyncIterator[Endpoints]:
    """Endpoints that know the pod's container by the agent's status."""

    async def known() -> bool:
        status = await node.pod_status(name)
        return any(c.get("containerID") for c in status.get("containerStatuses", []))

    await wait_until(known, 30, f"{name} has a container")
    with trio.fail_after(600):
        async with endpoints(node) as found:
            yield found


async def test_what_was_written(node: Node) -> None:
    """Both streams in order, the last lines, a limit of bytes, times, one stream alone."""
    node.write(
        pod(
            "writer", container("main", "for i in 1 2 3 4; do echo out $i; echo err $i >&2; done; sleep 3600")
        )
    )
    await node.wait_running("writer")
    async with seen(node, "writer") as here:

        async def written() -> bool:
            return (await read(here, "writer")).count(b"\n") == 8

        await wait_until(written, 10, "all is written")
        whole = (await read(here, "writer")).splitlines(keepends=True)
        assert sorted(whole) == sorted(b"%b %d\n" % (s, i) for s in (b"out", b"err") for i in (1, 2, 3, 4))
        assert await read(here, "writer", "tailLines=3") == b"".join(whole[-3:])
        assert await read(here, "writer", "limitBytes=8") == b"".join(whole)[:8]
        assert await read(here, "writer", "stream=Stderr") == b"err 1\nerr 2\nerr 3\nerr 4\n"
        assert await read(here, "writer", "sinceSeconds=3600") == b"".join(whole)
        stamped = (await read(here, "writer", "timestamps=true")).splitlines()
        assert all(len(line.split()[0]) == len("2006-01-02T15:04:05.000000000Z") for line in stamped)
        # Containerd stamps a line before it waits for its turn to write: two streams can swap a moment.
        times = [line.split()[0] for line in stamped]
        not_older = [line for time, line in zip(times, whole, strict=True) if time >= times[4]]
        since = times[4].decode()
        assert await read(here, "writer", f"sinceTime={since}") == b"".join(not_older)


async def test_a_follower_ends_with_the_container(node: Node) -> None:
    """It sees what comes, and its answer ends when the container has ended and everything was read."""
    script = "i=0; while [ $i -lt 15 ]; do echo $i; i=$((i+1)); sleep 0.1; done"
    node.write(pod("ender", container("main", script), restartPolicy="Never"))
    async with seen(node, "ender") as here:
        assert await read(here, "ender", "follow=true") == b"".join(b"%d\n" % i for i in range(15))


async def test_a_follower_loses_nothing_in_rotations(node: Node) -> None:
    """The log is renamed and opened anew three times while the container writes, for some two seconds."""
    burst = "echo $i; i=$((i+1)); [ $((i % 100)) -ne 0 ] || sleep 0.03"
    script = f"i=0; while [ $i -lt 6000 ]; do {burst}; done; sleep 0.5; echo over; sleep 3600"
    node.write(pod("rotated", container("main", f"sleep 1; {script}")))
    (found,) = await node.wait_running("rotated")
    path = (await node.container_status(found.id)).log_path
    async with seen(node, "rotated") as here:
        said = bytearray()
        stream = await trio.open_tcp_stream("127.0.0.1", here.port)
        async with stream:
            target = here.path("containerLogs", "rotated", "main?follow=true")
            await stream.send_all(f"GET {target} HTTP/1.1\r\nHost: node\r\n\r\n".encode())

            async def rotate() -> None:
                for number in range(3):
                    os.rename(path, f"{path}.2026010{number}-000000")
                    request = cri.ReopenContainerLogRequest(container_id=found.id)
                    await node.call("ReopenContainerLog", request, cri.ReopenContainerLogResponse)
                    await trio.sleep(0.5)

            async def hear(wanted: bytes) -> None:
                while wanted not in said:
                    data = await stream.receive_some()
                    assert data
                    said.extend(data)

            await hear(b"99\n")  # a reader begins in the file that is the log when it comes
            async with trio.open_nursery() as nursery:
                nursery.start_soon(rotate)
                await hear(b"over\n")
        body = bytes(said).partition(b"\r\n\r\n")[2].partition(b"over\n")[0] + b"over\n\r\n0\r\n\r\n"
        assert unchunked(body) == b"".join(b"%d\n" % i for i in range(6000)) + b"over\n"


async def test_the_container_before(node: Node) -> None:
    node.write(
        pod(
            "crasher",
            container(
                "main",
                "[ -e /d/x ] && echo second && exec sleep 3600; echo first; touch /d/x; exit 1",
                volumeMounts=[{"name": "d", "mountPath": "/d"}],
            ),
            volumes=[{"name": "d", "emptyDir": {}}],
        )
    )
    await node.wait_running("crasher")

    async def restarted() -> bool:
        status = await node.pod_status("crasher")
        return any(c["restartCount"] and "running" in c["state"] for c in status.get("containerStatuses", []))

    async with seen(node, "crasher") as here:
        await wait_until(restarted, 60, "restarted")
        await here.pods.look()
        assert await read(here, "crasher", "previous=true") == b"first\n"

        async def second() -> bool:
            return await read(here, "crasher") == b"second\n"

        await wait_until(second, 10, "the container that runs has said its line")
        target = here.path("containerLogs", "crasher", "other")
        status, _, body = await ask(here.port, "GET", target)
        assert status == 404
        assert body == f'container "other" not found in pod "crasher-{node.name}"'.encode()


async def test_two_hundred_followers(node: Node) -> None:
    """All see the new line at once, cost little while nothing is written, and leave no descriptor."""
    node.write(pod("crowd", container("main", "while read x; do echo $x; done; sleep 3600", stdin=True)))
    (found,) = await node.wait_running("crowd")
    async with seen(node, "crowd") as here:
        target = here.path("containerLogs", "crowd", "main?follow=true&tailLines=0")
        streams = list[trio.SocketStream]()
        for _ in range(FOLLOWERS):
            streams.append(await trio.open_tcp_stream("127.0.0.1", here.port))
            await streams[-1].send_all(f"GET {target} HTTP/1.1\r\nHost: node\r\n\r\n".encode())
        for stream in streams:
            assert b"200 OK" in await stream.receive_some()
        await trio.sleep(1)
        before = resource.getrusage(resource.RUSAGE_SELF)
        await trio.sleep(3)
        after = resource.getrusage(resource.RUSAGE_SELF)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(f"{FOLLOWERS} silent followers: {used / 3:.1%} of a core")
        assert used / 3 < 0.5
        await node.exec(found.id, "sh", "-c", "echo news > /proc/1/fd/1")
        with trio.fail_after(60):
            for stream in streams:
                said = b""
                while b"news\n" not in said:
                    data = await stream.receive_some()
                    assert data
                    said += data
        async with trio.open_nursery() as nursery:
            for stream in streams:
                nursery.start_soon(stream.aclose)
        await wait_until(lambda: not _open_logs(), 10, "every log is closed")


def _open_logs() -> list[str]:
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
        if path.endswith("/0.log"):
            found.append(path)
    return found
