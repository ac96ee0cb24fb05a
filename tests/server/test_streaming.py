"""Exec, attach, port-forward, run and logs of a node: who is meant, and what is refused in which words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
import trio

from tests.server.stream_clients import ask, unchunked
from tests.slowness import within_cpu
from trio_kubelet.api import v1
from trio_kubelet.common.clock import SystemClock
from trio_kubelet.common.lanes import CONTAINER_FILES, Lane
from trio_kubelet.cri.doors import ExecResult
from trio_kubelet.cri.errors import CRIError, NotFound, ResourceExhausted, Unknown
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.cri.services import RuntimeService
from trio_kubelet.observed.types import ContainerState, ContainerStatus, PodStatus
from trio_kubelet.server.http.messages import Request, Response, parse_target
from trio_kubelet.server.http.router import Route, Router, WebService
from trio_kubelet.server.http.serve import serve
from trio_kubelet.server.logs.container_logs import ContainerLogs
from trio_kubelet.server.logs.watch import LogWatch
from trio_kubelet.server.streams.options import BadStreamOptions, read_ports
from trio_kubelet.server.streams.streaming import Streaming

LINE = b"2016-10-06T00:17:09.669794202Z stdout F hello\n"


class FakeRuntime:
    """Two lives of a container `main`, one sandbox, and a list of what was asked for."""

    def __init__(self, error: CRIError | None = None, result: ExecResult | None = None) -> None:
        self.asked: list[Any] = []
        self.error = error
        self.result = result or ExecResult(b"", b"", 0)

    async def list_containers(self, filter: cri.ContainerFilter) -> list[cri.Container]:
        assert filter.state.state == cri.CONTAINER_RUNNING
        assert dict(filter.label_selector) == {"io.kubernetes.pod.uid": "u"}
        meta = cri.ContainerMetadata(name="main")
        return [cri.Container(id=f"c{at}", metadata=meta, created_at=at) for at in (1, 3, 2)]

    async def list_pod_sandboxes(self, filter: cri.PodSandboxFilter) -> list[cri.PodSandbox]:
        assert filter.state.state == cri.SANDBOX_READY
        return [cri.PodSandbox(id=f"s{at}", created_at=at) for at in (1, 2)]

    async def exec(self, request: cri.ExecRequest) -> str:
        return self._answer(request)

    async def attach(self, request: cri.AttachRequest) -> str:
        return self._answer(request)

    async def port_forward(self, sandbox_id: str, ports: Sequence[int] = ()) -> str:
        return self._answer((sandbox_id, list(ports)))

    async def exec_sync(self, container_id: str, cmd: Sequence[str]) -> ExecResult:
        self._answer((container_id, list(cmd)))
        return self.result

    async def container_status(self, container_id: str) -> cri.ContainerStatusResponse:
        raise NotFound("no such container")

    def _answer(self, asked: Any) -> str:
        self.asked.append(asked)
        if self.error is not None:
            raise self.error
        return "http://127.0.0.1:1/nobody"


def pod(**container: Any) -> v1.Pod:
    return v1.Pod(
        metadata=v1.ObjectMeta(name="p", namespace="n", uid="u"),
        spec=v1.PodSpec(containers=[v1.Container(name="main", **container)]),
    )


class OnePod:
    def __init__(self, known: v1.Pod) -> None:
        self._pod = known

    def get_by_name(self, namespace: str, name: str) -> v1.Pod | None:
        return self._pod if (namespace, name) == ("n", "p") else None


async def answer(
    kind: str, query: str, runtime: FakeRuntime, known: v1.Pod | None = None, **params: str
) -> tuple[int, bytes]:
    """Status and body; a request that passes every check fails to reach the runtime's URL, or to upgrade."""
    streaming = Streaming(pods=OnePod(known or pod()), runtime=cast(RuntimeService, runtime))
    found = {"podNamespace": "n", "podID": "p", "containerName": "main", **params}
    request = Request(
        method="POST",
        path="/",
        target="/",
        query=parse_target(f"/?{query}")[1],
        headers=(("connection", "Upgrade"), ("upgrade", "SPDY/3.1")),
        params=found,
    )
    given = await getattr(streaming, kind)(request)
    assert isinstance(given, Response)
    assert isinstance(given.body, bytes)
    return given.status, given.body


async def test_the_newest_running_container_is_meant() -> None:
    runtime = FakeRuntime()
    query = "command=sh&command=-c&command=a%20b&input=1&output=1&error=1&tty=1"
    status, body = await answer("exec", query, runtime)
    assert status == 500
    assert body.startswith(b"error dialing backend: ")
    (asked,) = runtime.asked
    assert (asked.container_id, list(asked.cmd)) == ("c3", ["sh", "-c", "a b"])
    assert (asked.stdin, asked.stdout, asked.stderr, asked.tty) == (True, True, False, True)


async def test_the_pod_says_whether_attach_has_a_terminal() -> None:
    runtime = FakeRuntime()
    await answer("attach", "output=1", runtime, pod(tty=True))
    await answer("attach", "output=1&error=1&tty=1", runtime, pod())
    first, second = runtime.asked
    assert (first.tty, first.stderr) == (True, False)
    assert (second.tty, second.stderr) == (False, False)


async def test_forwarding_goes_to_the_newest_sandbox() -> None:
    runtime = FakeRuntime()
    await answer("port_forward", "", runtime)
    assert runtime.asked == [("s2", [])]


@pytest.mark.parametrize(
    ("kind", "query", "params", "status", "body"),
    [
        ("exec", "", {}, 400, b"you must specify at least 1 of stdin, stdout, stderr"),
        ("exec", "output=1", {"podID": "q"}, 404, b"pod does not exist"),
        ("exec", "output=1", {"containerName": "x"}, 500, b'container not found ("x")'),
        ("attach", "output=1", {"containerName": "x"}, 500, b"container x not found in pod p_n"),
        ("attach", "output=1", {"uid": "other"}, 500, b"pod p_n not found"),
        ("port_forward", "", {"podNamespace": "m"}, 404, b"pod does not exist"),
        ("port_forward", "", {"uid": "other"}, 404, b"pod not found"),
        ("run", "cmd=true", {"containerName": "x"}, 500, b'container not found ("x")'),
    ],
)
async def test_refusals(kind: str, query: str, params: dict[str, str], status: int, body: bytes) -> None:
    assert await answer(kind, query, FakeRuntime(), None, **params) == (status, body)


@pytest.mark.parametrize(
    ("method", "headers", "status", "body"),
    [
        ("POST", {"sec-websocket-key": "k"}, 405, b"bad method"),
        ("GET", {}, 400, b"mismatch challenge/response"),
        (
            "GET",
            {"sec-websocket-key": "k", "sec-websocket-version": "8"},
            400,
            b"missing or bad WebSocket Version",
        ),
    ],
)
async def test_bad_websocket_handshakes(
    method: str, headers: dict[str, str], status: int, body: bytes
) -> None:
    """Of clients whose protocol is translated here; others are for the runtime to judge."""
    streaming = Streaming(pods=OnePod(pod()), runtime=cast(RuntimeService, FakeRuntime()))
    offered = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-protocol": "v5.channel.k8s.io"}
    request = Request(
        method=method,
        path="/",
        target="/",
        query={"output": ["1"]},
        headers=tuple({**offered, **headers}.items()),
        params={"podNamespace": "n", "podID": "p", "containerName": "main"},
    )
    given = await streaming.exec(request)
    assert isinstance(given, Response)
    assert (given.status, given.body) == (status, body)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (NotFound("gone", "Exec"), 404),
        (ResourceExhausted("busy", "Exec"), 429),
        (Unknown("odd", "Exec"), 500),
    ],
)
async def test_errors_of_the_runtime(error: CRIError, status: int) -> None:
    for kind in ("exec", "attach", "port_forward"):
        assert await answer(kind, "output=1", FakeRuntime(error)) == (status, str(error).encode())


async def test_run() -> None:
    runtime = FakeRuntime(result=ExecResult(b"out", b"err", 0))
    assert await answer("run", "cmd=ls%20-l", runtime) == (200, b"outerr")
    assert runtime.asked == [("c3", ["ls", "-l"])]
    failed = FakeRuntime(result=ExecResult(b"", b"bad", 2))
    assert await answer("run", "cmd=ls", failed) == (500, b"command 'ls' exited with 2: bad")
    assert await answer("run", "cmd=ls", FakeRuntime(Unknown("odd"))) == (
        500,
        b"rpc error: code = Unknown desc = odd",
    )


async def test_run_quotes_so_much_of_what_a_failed_command_said() -> None:
    failed = FakeRuntime(result=ExecResult(b"", b"\xff" * (1 << 20), 1))
    _, body = await answer("run", "cmd=ls", failed)
    assert body == b"command 'ls' exited with 1: " + "\ufffd".encode() * (64 << 10)


@pytest.mark.parametrize("digits", [6, 5000])
def test_a_port_of_many_digits(digits: int) -> None:
    with pytest.raises(BadStreamOptions, match="value out of range"):
        read_ports({"port": ["8" * digits]})
    with pytest.raises(BadStreamOptions, match="invalid syntax"):
        read_ports({"port": ["8" * digits + "x"]})
    with pytest.raises(BadStreamOptions, match="must be > 0"):
        read_ports({"port": ["0" * digits]})
    assert read_ports({"port": ["0" * digits + "65535"]}) == [65535]


def test_a_port_that_is_none_of_many_zeros_is_told_at_once() -> None:
    """As many as a request's head has room for took nine seconds, in which nobody else had a turn."""
    for _ in within_cpu(0.2):
        with pytest.raises(BadStreamOptions, match="invalid syntax"):
            read_ports({"port": ["0" * 60_000 + "x"]})


class Seen:
    """The runtime's pod as it was last observed."""

    def __init__(self, *containers: ContainerStatus) -> None:
        self._status = PodStatus(uid="u", name="p", namespace="n", containers=containers)

    def get(self, uid: str) -> PodStatus | None:
        return self._status


class Told:
    """The pod's status."""

    def __init__(self, state: v1.ContainerState) -> None:
        shown = v1.ContainerStatus(name="main", container_id="containerd://c1", state=state)
        self._status = v1.PodStatus(container_statuses=[shown])

    def get(self, uid: str) -> v1.PodStatus | None:
        return self._status


RUNNING = v1.ContainerState(running=v1.ContainerStateRunning())
CREATING = v1.ContainerState(waiting=v1.ContainerStateWaiting(reason="ContainerCreating"))


async def logs(
    target: str,
    log_path: str = "",
    state: v1.ContainerState = RUNNING,
    split_streams: bool = True,
    version: str = "1.1",
) -> tuple[int, bytes]:
    """The answer to `/containerLogs` + target, unchunked where its client knows chunks."""
    seen = ContainerStatus(id="c1", name="main", state=ContainerState.EXITED, log_path=log_path)
    handler = ContainerLogs(
        pods=OnePod(pod()),
        statuses=Told(state),
        observed=Seen(seen) if log_path else Seen(),
        runtime=cast(RuntimeService, FakeRuntime()),
        watch=LogWatch(),
        clock=SystemClock(),
        split_streams=split_streams,
    )
    router = Router()
    route = Route("GET", "/{podNamespace}/{podID}/{containerName}", handler.get)
    router.add(WebService("/containerLogs", [route]))
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        await nursery.start(serve, listeners, router)
        with trio.fail_after(60):
            port = listeners[0].socket.getsockname()[1]
            status, headers, body = await ask(port, "GET", f"/containerLogs{target}", version=version)
        nursery.cancel_scope.cancel()
    chunked = version != "1.0" and headers.get("transfer-encoding") == "chunked"
    return status, unchunked(body) if chunked else body


async def test_a_log(tmp_path: Any) -> None:
    path = tmp_path / "0.log"
    path.write_bytes(LINE)
    assert await logs("/n/p/main", str(path)) == (200, b"hello\n")
    # Its container has ended, so there is nothing to wait for.
    assert await logs("/n/p/main?follow=true", str(path)) == (200, b"hello\n")
    assert await logs("/n/p/main?stream=Stderr", str(path)) == (200, b"")


async def test_a_client_of_http_1_0_reads_no_chunks(tmp_path: Any) -> None:
    """It took the lengths of chunks for lines of the log."""
    path = tmp_path / "0.log"
    path.write_bytes(LINE)
    assert await logs("/n/p/main", str(path), version="1.0") == (200, b"hello\n")
    words = b"unable to retrieve container logs for containerd://c1"
    assert await logs("/n/p/main", version="1.0") == (200, words)


@pytest.mark.parametrize("query", ["", "?follow=true", "?stream=Stderr", "?tailLines=1"])
async def test_a_log_is_read_for_its_pod(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, query: str) -> None:
    """So that many who read one pod's log do not hold up those of another's."""
    owners = set()
    run = Lane.run

    async def seen(lane: Lane, function: Any, *args: Any, **more: Any) -> Any:
        if lane is CONTAINER_FILES:
            owners.add(more.get("owner"))
        return await run(lane, function, *args, **more)

    monkeypatch.setattr(Lane, "run", seen)
    path = tmp_path / "0.log"
    path.write_bytes(LINE)
    await logs(f"/n/p/main{query}", str(path))
    assert owners == {"u"}


async def test_one_stream_without_the_gate(tmp_path: Any) -> None:
    path = tmp_path / "0.log"
    path.write_bytes(LINE)
    assert await logs("/n/p/main?stream=All", str(path), split_streams=False) == (200, b"hello\n")
    status, body = await logs("/n/p/main?stream=Stdout", str(path), split_streams=False)
    assert status == 400
    assert body.endswith(b"Please enable PodLogsQuerySplitStreams feature gate in kubelet")
    absent = (404, b'container "x" not found in pod "p"')
    assert await logs("/n/p/x?stream=Stdout", split_streams=False) == absent


@pytest.mark.parametrize(
    ("target", "status", "body"),
    [
        ("/n/p/main?tailLines=x", 400, b'{"message": "Unable to decode query."}'),
        ("/n/p/main?limitBytes=0", 422, b'{"message": "Invalid request."}'),
        ("/n/q/main", 404, b'pod "q" does not exist'),
        ("/n/p/x", 404, b'container "x" not found in pod "p"'),
        (
            "/n/p/main?previous=true",
            400,
            b'previous terminated container "main" in pod "p" not found',
        ),
        # Whose log it is, is known: the answer has begun.
        ("/n/p/main", 200, b"unable to retrieve container logs for containerd://c1"),
        ("/n/p/main?stream=Stderr", 400, b"unable to retrieve container logs for containerd://c1"),
    ],
)
async def test_refused_logs(target: str, status: int, body: bytes) -> None:
    assert await logs(target) == (status, body)


async def test_no_log_yet(tmp_path: Any) -> None:
    words = b'container "main" in pod "p" is waiting to start: ContainerCreating'
    assert await logs("/n/p/main", state=CREATING) == (400, words)
    missing = str(tmp_path / "0.log")
    said = f'failed to try resolving symlinks in path "{missing}": lstat {missing}: no such file or directory'
    assert await logs("/n/p/main", missing) == (200, said.encode())
