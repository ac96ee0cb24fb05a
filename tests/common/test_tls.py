"""A TLS connection that is over is freed at once, without the collector."""

from __future__ import annotations

import gc
import ssl
from collections.abc import Iterator

import pytest
import trio
import trio.testing

from trio_kubelet.common.tls import close_for_good


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def encrypted(transport: trio.abc.Stream) -> trio.SSLStream[trio.abc.Stream]:
    return trio.SSLStream(transport, ssl.create_default_context(), server_hostname="node")


async def test_what_is_of_openssl_goes_at_once() -> None:
    """From Python 3.12 on frames may hold the stream itself until the collector comes."""
    here, _ = trio.testing.memory_stream_pair()
    stream = encrypted(here)
    openssl = stream._ssl_object
    await close_for_good(stream)
    del stream
    assert openssl._sslobj is None  # type: ignore[attr-defined]


async def test_it_may_be_closed_again() -> None:
    here, _ = trio.testing.memory_stream_pair()
    stream = encrypted(here)
    await trio.aclose_forcefully(stream)
    await close_for_good(stream)
    await close_for_good(stream)


async def test_whoever_still_waits_for_it_hears_that_it_is_closed() -> None:
    here, _ = trio.testing.memory_stream_pair()
    stream = encrypted(here)

    async def wait() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await stream.receive_some(10)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        await close_for_good(stream)


async def test_a_connection_without_tls_is_closed_as_ever() -> None:
    here, there = trio.testing.memory_stream_pair()
    await close_for_good(here)
    assert await there.receive_some(1) == b""
