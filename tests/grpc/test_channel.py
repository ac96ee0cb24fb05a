"""Calls through the door: a server and a client of our own, errors as Go tells them, streams, bounds."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.slowness import within_cpu
from trio_kubelet.devices.proto import plugin_pb2 as api
from trio_kubelet.grpc.channel import Channel, connect
from trio_kubelet.grpc.errors import Code, GrpcError
from trio_kubelet.grpc.loop import AsyncioLoop, open_asyncio_loop
from trio_kubelet.grpc.server import Answer, Send, Service, serve

OPTIONS = "/v1beta1.DevicePlugin/GetDevicePluginOptions"
ALLOCATE = "/v1beta1.DevicePlugin/Allocate"
WATCH = "/v1beta1.DevicePlugin/ListAndWatch"
SOON = 0.2
PATIENT = 60.0


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "plugin.sock")


@asynccontextmanager
async def served(loop: AsyncioLoop, path: str, answers: Mapping[str, Answer]) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        await nursery.start(serve, loop, path, [Service(api.DESCRIPTOR, "DevicePlugin", answers)])
        yield
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def plugin(path: str, **answers: Answer) -> AsyncIterator[Channel]:
    """A channel to a device plugin with these answers."""
    with trio.fail_after(PATIENT):
        async with open_asyncio_loop() as loop, served(loop, path, answers):
            with connect(loop, path) as channel:
                yield channel


async def options(channel: Channel, deadline: float = PATIENT) -> api.DevicePluginOptions:
    return await channel.unary(OPTIONS, api.Empty(), api.DevicePluginOptions, deadline=deadline)


async def can_prefer(request: api.Empty) -> api.DevicePluginOptions:
    return api.DevicePluginOptions(get_preferred_allocation_available=True)


async def test_a_call_is_answered(path: str) -> None:
    async with plugin(path, GetDevicePluginOptions=can_prefer) as channel:
        assert (await options(channel)).get_preferred_allocation_available
        assert (await options(channel)).get_preferred_allocation_available
        assert channel.connections == 1
        assert channel.open_streams == 0
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert os.listdir(os.path.dirname(path)) == []


async def test_errors_are_told_as_go_tells_them(path: str) -> None:
    async def refuse(request: api.Empty) -> api.DevicePluginOptions:
        raise GrpcError(Code.FAILED_PRECONDITION, "no device: 100 % busy")

    async def break_down(request: api.AllocateRequest) -> api.AllocateResponse:
        raise KeyError("odd")

    async with plugin(path, GetDevicePluginOptions=refuse, Allocate=break_down) as channel:
        with pytest.raises(GrpcError) as refused:
            await options(channel)
        assert str(refused.value) == "rpc error: code = FailedPrecondition desc = no device: 100 % busy"
        assert refused.value.method == OPTIONS
        with pytest.raises(GrpcError, match="code = Unknown desc = 'odd'"):
            await channel.unary(ALLOCATE, api.AllocateRequest(), api.AllocateResponse, deadline=PATIENT)
        preferred = "/v1beta1.DevicePlugin/GetPreferredAllocation"
        with pytest.raises(
            GrpcError,
            match=r"code = Unimplemented desc = unknown method GetPreferredAllocation for service v1beta1\.D",
        ):
            await channel.unary(
                preferred, api.PreferredAllocationRequest(), api.PreferredAllocationResponse, deadline=PATIENT
            )


async def test_errors_of_any_length_are_told_in_no_time(path: str) -> None:
    async def refuse(request: api.AllocateRequest) -> api.AllocateResponse:
        raise GrpcError(Code.NOT_FOUND, "x" * (1 << 20))

    async def break_down(request: api.Empty) -> api.DevicePluginOptions:
        raise KeyError("x" * (1 << 20))

    async with plugin(path, Allocate=refuse, GetDevicePluginOptions=break_down) as channel:
        for _ in within_cpu(1.0):
            with pytest.raises(GrpcError, match=r"NotFound desc = x*\.\.\.\(1048576 characters\)$"):
                await channel.unary(ALLOCATE, api.AllocateRequest(), api.AllocateResponse, deadline=PATIENT)
            with pytest.raises(GrpcError, match=r"Unknown desc = 'x*\.\.\.\(1048578 characters\)$"):
                await options(channel)


async def test_what_is_no_message_is_told_as_go_tells_it(path: str) -> None:
    async def odd(request: api.Empty) -> bytes:
        return b"\x0a\xff\xff\xff"

    async with plugin(path, GetDevicePluginOptions=odd) as channel:
        with pytest.raises(GrpcError) as caught:
            await options(channel)
    assert str(caught.value) == (
        "rpc error: code = Internal desc = grpc: failed to unmarshal the received message: "
        "proto: cannot parse invalid wire-format data"
    )


async def test_nobody_there(path: str) -> None:
    async with open_asyncio_loop() as loop:
        with connect(loop, path) as channel:
            with pytest.raises(GrpcError) as caught:
                await options(channel)
            assert caught.value.code is Code.UNAVAILABLE
            assert str(caught.value) == (
                "rpc error: code = Unavailable desc = connection error: desc = "
                f'"transport: Error while dialing: dial unix {path}: connect: no such file or directory"'
            )
            dead = socket.socket(socket.AF_UNIX)
            dead.bind(path)
            dead.close()
            with pytest.raises(GrpcError, match="connect: connection refused"):
                async with channel.stream(WATCH, api.Empty(), api.ListAndWatchResponse, opening=PATIENT):
                    pass


async def test_a_deadline_ends_the_call_on_both_sides(path: str) -> None:
    ended = trio.Event()

    async def hang(request: api.Empty) -> api.DevicePluginOptions:
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    async with plugin(path, GetDevicePluginOptions=hang) as channel:
        with pytest.raises(GrpcError, match="code = DeadlineExceeded desc = context deadline exceeded"):
            await options(channel, SOON)
        await ended.wait()
        assert channel.open_streams == 0


async def test_a_cancelled_call_is_cancelled_in_the_server(path: str) -> None:
    began, ended = trio.Event(), trio.Event()

    async def hang(request: api.Empty) -> api.DevicePluginOptions:
        began.set()
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    async with plugin(path, GetDevicePluginOptions=hang) as channel:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(options, channel)
            await began.wait()
            nursery.cancel_scope.cancel()
        await ended.wait()


def devices(number: int) -> api.ListAndWatchResponse:
    return api.ListAndWatchResponse(devices=[api.Device(ID=f"d{number}", health="Healthy")])


async def test_a_stream_brings_its_messages_in_order_and_ends(path: str) -> None:
    async def watch(request: api.Empty, send: Send) -> None:
        for number in range(100):
            await send(devices(number))

    async with (
        plugin(path, ListAndWatch=watch) as channel,
        channel.stream(WATCH, api.Empty(), api.ListAndWatchResponse, opening=PATIENT, capacity=3) as news,
    ):
        assert [each.devices[0].ID async for each in news] == [f"d{number}" for number in range(100)]


async def test_a_stream_that_fails_says_why_after_what_came(path: str) -> None:
    async def watch(request: api.Empty, send: Send) -> None:
        await send(devices(1))
        raise GrpcError(Code.ABORTED, "unplugged")

    async with plugin(path, ListAndWatch=watch) as channel:
        seen = []
        with pytest.raises(GrpcError, match="code = Aborted desc = unplugged"):  # noqa: PT012
            async with channel.stream(WATCH, api.Empty(), api.ListAndWatchResponse, opening=PATIENT) as news:
                async for each in news:
                    seen.append(each.devices[0].ID)
        assert seen == ["d1"]


async def test_leaving_a_stream_ends_it_in_the_server(path: str) -> None:
    ended = trio.Event()

    async def watch(request: api.Empty, send: Send) -> None:
        try:
            await send(devices(1))
            await trio.sleep_forever()
        finally:
            ended.set()

    async with plugin(path, ListAndWatch=watch) as channel:
        async with channel.stream(WATCH, api.Empty(), api.ListAndWatchResponse, opening=PATIENT) as news:
            assert (await anext(aiter(news))).devices[0].ID == "d1"
        await ended.wait()
        assert channel.open_streams == 0


async def test_who_reads_slowly_holds_a_bounded_number_of_messages(path: str) -> None:
    """The rest waits with the sender, whom HTTP/2 gives no more room."""
    sent = 0

    async def watch(request: api.Empty, send: Send) -> None:
        nonlocal sent
        message = api.ListAndWatchResponse(devices=[api.Device(ID="x" * 100_000)])
        while True:
            await send(message)
            sent += 1

    async with plugin(path, ListAndWatch=watch) as channel:
        stream = channel.stream(WATCH, api.Empty(), api.ListAndWatchResponse, opening=PATIENT, capacity=2)
        async with stream as news:
            before = -1
            while before != sent:
                before = sent
                await trio.sleep(SOON)
            assert sent < 60  # a window of 4 MiB and what sockets hold
            for _ in range(100):
                await anext(aiter(news))
            assert sent > 60


async def test_a_message_that_is_too_large_is_not_taken(path: str) -> None:
    size = (4 << 20) + 10

    async def allocate(request: api.AllocateRequest) -> api.AllocateResponse:
        response = api.ContainerAllocateResponse(annotations={"large": "x" * size})
        return api.AllocateResponse(container_responses=[response])

    async with plugin(path, Allocate=allocate, GetDevicePluginOptions=can_prefer) as channel:
        text = r"code = ResourceExhausted desc = grpc: received message larger than max \(\d+ vs. 4194304\)"
        with pytest.raises(GrpcError, match=text):
            await channel.unary(ALLOCATE, api.AllocateRequest(), api.AllocateResponse, deadline=PATIENT)
        assert channel.open_streams == 0
        await options(channel)
        assert channel.connections == 1


async def test_a_request_that_is_too_large_is_not_taken(path: str) -> None:
    taken = []

    async def allocate(request: api.AllocateRequest) -> api.AllocateResponse:
        taken.append(request)
        return api.AllocateResponse()

    large = api.ContainerAllocateRequest(devices_ids=["x" * (5 << 20)])
    async with plugin(path, Allocate=allocate, GetDevicePluginOptions=can_prefer) as channel:
        request = api.AllocateRequest(container_requests=[large])
        with pytest.raises(GrpcError):
            await channel.unary(ALLOCATE, request, api.AllocateResponse, deadline=PATIENT)
        await options(channel)
    assert taken == []


async def test_a_channel_connects_anew(path: str) -> None:
    with trio.fail_after(PATIENT):
        async with open_asyncio_loop() as loop:
            with connect(loop, path) as channel:
                for round_number in (1, 2):
                    async with served(loop, path, {"GetDevicePluginOptions": can_prefer}):
                        await options(channel)
                        assert channel.connections == round_number
                    with pytest.raises(GrpcError) as caught:
                        await options(channel)
                    assert caught.value.code is Code.UNAVAILABLE


async def test_a_server_that_goes_away_ends_streams(path: str) -> None:
    async def watch(request: api.Empty, send: Send) -> None:
        await send(devices(1))
        await trio.sleep_forever()

    with trio.fail_after(PATIENT):
        async with open_asyncio_loop() as loop, open_asyncio_loop() as other:
            with connect(loop, path) as channel:
                async with trio.open_nursery() as nursery:
                    services = [Service(api.DESCRIPTOR, "DevicePlugin", {"ListAndWatch": watch})]
                    await nursery.start(serve, other, path, services)
                    stream = channel.stream(WATCH, api.Empty(), api.ListAndWatchResponse, opening=PATIENT)
                    async with stream as news:
                        await anext(aiter(news))
                        nursery.cancel_scope.cancel()
                        with trio.CancelScope(shield=True), pytest.raises(GrpcError) as caught:
                            await anext(aiter(news))
                        assert caught.value.code in (Code.UNAVAILABLE, Code.INTERNAL)


async def test_more_calls_at_once_than_a_server_takes_streams(path: str) -> None:
    async with plugin(path, GetDevicePluginOptions=can_prefer) as channel, trio.open_nursery() as nursery:
        for _ in range(300):
            nursery.start_soon(options, channel)


async def test_a_silent_peer_costs_the_deadline_and_no_more(path: str) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    with listener:
        async with open_asyncio_loop() as loop:
            with connect(loop, path) as channel:
                with pytest.raises(GrpcError, match="DeadlineExceeded"):
                    await options(channel, SOON)
                with pytest.raises(GrpcError, match="DeadlineExceeded"):
                    async with channel.stream(WATCH, api.Empty(), api.ListAndWatchResponse, opening=SOON):
                        pytest.fail("nothing was said")


async def test_what_is_at_a_servers_path_is_replaced(path: str) -> None:
    Path(path).touch()  # noqa: ASYNC240
    async with plugin(path, GetDevicePluginOptions=can_prefer) as channel:
        await options(channel)
