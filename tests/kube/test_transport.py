"""httpx's requests over httpcore."""

from __future__ import annotations

import base64
from functools import partial

import httpcore
import httpx
import pytest
import trio

from tests.kube.test_direct import ANSWER
from trio_kubelet.kube.transport import Transport, errors_of_httpx, transport


async def ask(http: Transport, url: str) -> None:
    answer = await http.handle_async_request(httpx.Request("GET", url))
    assert await answer.aread() == b"ok"


async def test_errors_are_httpxs_also_in_the_middle_of_a_body() -> None:
    async def breaks_off(stream: trio.SocketStream) -> None:
        await stream.receive_some(1 << 16)
        await stream.send_all(ANSWER[:-1])
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, breaks_off, 0, host="127.0.0.1"))
        url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}/"
        async with transport(None, None) as http:
            with pytest.raises(httpx.RemoteProtocolError):
                await ask(http, url)
        nursery.cancel_scope.cancel()
    async with transport(None, None) as http:
        with pytest.raises(httpx.ConnectError):
            await ask(http, url)


def test_every_error_of_httpcore_is_one_of_httpx() -> None:
    errors = [
        each
        for name in httpcore.__all__
        if isinstance(each := getattr(httpcore, name), type) and issubclass(each, Exception)
    ]
    assert len(errors) > 10
    for each in errors:
        if issubclass(each, httpcore.ConnectionNotAvailable):  # between the pool and its connections
            continue
        with pytest.raises(getattr(httpx, each.__name__)), errors_of_httpx():
            raise each("said")


async def test_a_proxy_is_asked_with_the_user_of_its_url() -> None:
    said: list[bytes] = []

    async def proxy(stream: trio.SocketStream) -> None:
        said.append(bytes(await stream.receive_some(1 << 16)))
        await stream.send_all(ANSWER)

    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, proxy, 0, host="127.0.0.1"))
        port = listener.socket.getsockname()[1]
        async with transport(None, f"http://me:se%40cret@127.0.0.1:{port}") as http:
            await ask(http, "http://far.example/pods")
        nursery.cancel_scope.cancel()
    assert said[0].startswith(b"GET http://far.example/pods HTTP/1.1\r\n")
    assert base64.b64encode(b"me:se@cret") in said[0]
