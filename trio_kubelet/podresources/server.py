"""The pod resources service on its unix socket, `<root>/pod-resources/kubelet.sock`.

A connection is one task with small bounds; too many calls are refused as the kubelet refuses them, and too
many connections wait in the kernel's queue.
"""

from __future__ import annotations

import contextlib
import os
from typing import Final

import trio

from trio_kubelet.common.log import get_logger
from trio_kubelet.common.token_bucket import TokenBucket
from trio_kubelet.common.unix_socket import listen_at
from trio_kubelet.grpc.errors import Code, GrpcError
from trio_kubelet.podresources.service import PodResourcesService

log = get_logger(__name__)

QPS: Final = 100
BURST: Final = 10
_CONNECTIONS: Final = 64
_READ: Final = 4096  # a small piece at a time: what a peer can make HTTP/2 do with it is bounded
_SEND_SECONDS: Final = 10.0
_REQUEST_SECONDS: Final = 30.0  # for the first request, and the rest of one that has begun
_IDLE_SECONDS: Final = 600.0  # between requests
_MODE: Final = 0o755


def socket_path(root_dir: str) -> str:
    """Where monitoring agents look for the service."""
    return os.path.join(root_dir, "pod-resources", "kubelet.sock")


class PodResourcesServer:
    """Serves one service on a unix socket."""

    def __init__(self, service: PodResourcesService, path: str) -> None:
        self._service = service
        self._path = path
        self._bucket = TokenBucket(QPS, BURST)
        self._slots = trio.Semaphore(_CONNECTIONS)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serves until it is cancelled. Raises OSError if the socket cannot be made."""
        os.makedirs(os.path.dirname(self._path), 0o750, exist_ok=True)
        listening = listen_at(self._path, _MODE)
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
        async with listener, trio.open_nursery() as nursery:
            log.info("Serving the pod resources service", path=self._path)
            task_status.started()
            while True:
                await self._slots.acquire()
                try:
                    stream = await listener.accept()
                except OSError as exc:  # out of file descriptors: wait rather than die
                    self._slots.release()
                    log.error("Cannot accept a connection", err=exc)
                    await trio.sleep(0.1)
                    continue
                nursery.start_soon(self._serve, stream)

    async def _serve(self, stream: trio.SocketStream) -> None:
        # With the first connection: HTTP/2, which nobody else may need.
        from trio_kubelet.podresources.exchange import Broken, Exchange

        exchange = Exchange(self._call)
        try:
            await self._send(stream, exchange.begin())
            while not exchange.ended:
                wait = _IDLE_SECONDS if exchange.idle() else _REQUEST_SECONDS
                with trio.move_on_after(wait) as scope:
                    data = await stream.receive_some(_READ)
                if scope.cancelled_caught or not data:
                    return
                await self._send(stream, exchange.received(bytes(data)))
        except Broken as exc:
            log.v(4).info("A peer does not speak HTTP/2", err=exc.__cause__)
            with contextlib.suppress(trio.BrokenResourceError, trio.TooSlowError):
                await self._send(stream, exc.args[0])
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError) as exc:
            log.v(4).info("Connection ended", err=exc)
        except Exception as exc:  # it ends this connection; the others are served
            log.error("Connection failed", path=self._path, err=exc)
        finally:
            self._slots.release()
            await trio.aclose_forcefully(stream)

    async def _send(self, stream: trio.SocketStream, data: bytes) -> None:
        if data:
            with trio.fail_after(_SEND_SECONDS):
                await stream.send_all(data)

    def _call(self, path: str, request: bytes) -> bytes:
        if not self._bucket.try_take(trio.current_time()):
            raise GrpcError(Code.RESOURCE_EXHAUSTED, "rejected by rate limit")
        return self._service.call(path, request)
