"""Opens the door to a real runtime: from the configured endpoints to the two services."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from trio_kubelet.cri import deadlines
from trio_kubelet.cri.caller import CallHook
from trio_kubelet.cri.doors import BeginSpan
from trio_kubelet.cri.grpc import GrpcCaller
from trio_kubelet.cri.services import ImageService, RuntimeService
from trio_kubelet.grpc.loop import open_asyncio_loop


def socket_path(endpoint: str) -> str:
    """The unix socket's path. Raises ValueError, saying what is wrong, for anything that is not a unix
    socket.
    """
    if not endpoint:
        raise ValueError("container runtime endpoint is empty")
    if endpoint.startswith("/"):
        return endpoint
    parts = urlsplit(endpoint)
    if parts.scheme != "unix":
        raise ValueError(f"container runtime endpoint {endpoint!r}: only unix socket endpoints are supported")
    path = unquote(parts.path)
    if parts.netloc or not path.startswith("/"):
        raise ValueError(f"container runtime endpoint {endpoint!r}: the socket's path must be absolute")
    return path


class CRIServices(NamedTuple):
    """The two halves of a runtime."""

    runtime: RuntimeService
    images: ImageService


@asynccontextmanager
async def open_cri(
    endpoint: str,
    image_endpoint: str = "",
    *,
    request_timeout: float = deadlines.DEFAULT_REQUEST_TIMEOUT,
    on_call: CallHook | None = None,
    use_streaming: bool = True,
    direct: bool = False,
    begin_span: BeginSpan | None = None,
) -> AsyncIterator[CRIServices]:
    """The services behind an endpoint, until the context is left.

    `image_endpoint` is the runtime's if empty; `request_timeout` in seconds. Raises ValueError for an
    endpoint that is not a unix socket. Nothing is connected yet: the first call does that, so a runtime that
    is down shows as `Unavailable` there.
    """
    path, image_path = socket_path(endpoint), socket_path(image_endpoint or endpoint)
    async with open_asyncio_loop() as loop:
        caller = GrpcCaller(loop, path, on_call, direct, begin_span)
        image_caller = caller
        if image_path != path:
            image_caller = GrpcCaller(loop, image_path, on_call, direct, begin_span)
        try:
            yield CRIServices(
                RuntimeService(caller, request_timeout, use_streaming),
                ImageService(image_caller, request_timeout, use_streaming),
            )
        finally:
            caller.close()
            image_caller.close()
