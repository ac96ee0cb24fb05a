"""A device plugin of the tests, as a process of its own.

    python -m tests.devices.sample_plugin DIRECTORY RESOURCE DEVICES [OPTION...]

It reads commands from standard input, one JSON object a line, and writes what it is asked to standard output:
`{"health": {"dev-0": false}}` changes health, `{"devices": 3}` the number of devices, `{"do": "hang"}` what
Allocate does: hang, fail, crash, answer nothing or work. When the agent's socket is made anew it registers
again.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from functools import partial
from typing import Any

import trio

from trio_kubelet.devices.proto import plugin_pb2 as api
from trio_kubelet.grpc.channel import connect
from trio_kubelet.grpc.errors import Code, GrpcError
from trio_kubelet.grpc.loop import AsyncioLoop, open_asyncio_loop
from trio_kubelet.grpc.server import Send, Service, serve


class Plugin:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.directory: str = arguments.directory
        self.resource: str = arguments.resource
        self.devices: int = arguments.devices
        self.endpoint: str = arguments.endpoint
        self.version: str = arguments.version
        self.options = api.DevicePluginOptions(
            pre_start_required=arguments.pre_start, get_preferred_allocation_available=arguments.preferred
        )
        self.nodes: list[int] = arguments.nodes
        self.sick: set[str] = set()
        self.mode: str = arguments.do
        self.changed = trio.Event()

    def say(self, what: str, **more: Any) -> None:
        print(json.dumps({"what": what, **more}), flush=True)

    def listed(self) -> api.ListAndWatchResponse:
        names = [f"dev-{number}" for number in range(self.devices)]
        return api.ListAndWatchResponse(
            devices=[
                api.Device(
                    ID=name,
                    health="Unhealthy" if name in self.sick else "Healthy",
                    topology=api.TopologyInfo(nodes=[api.NUMANode(ID=node) for node in self.nodes]),
                )
                for name in names
            ]
        )

    async def get_options(self, _: api.Empty) -> api.DevicePluginOptions:
        return self.options

    async def list_and_watch(self, _: api.Empty, send: Send) -> None:
        while True:
            changed = self.changed
            await send(self.listed())
            await changed.wait()

    async def preferred(self, request: api.PreferredAllocationRequest) -> api.PreferredAllocationResponse:
        one = request.container_requests[0]
        chosen = sorted(one.available_deviceIDs, reverse=True)[: one.allocation_size]
        must = sorted(one.must_include_deviceIDs)
        self.say("preferred", available=sorted(one.available_deviceIDs), must=must)
        # One that nobody offered: the agent must not give it.
        answer = api.ContainerPreferredAllocationResponse(deviceIDs=["dev-999", *chosen])
        return api.PreferredAllocationResponse(container_responses=[answer])

    async def allocate(self, request: api.AllocateRequest) -> api.AllocateResponse:
        ids = list(request.container_requests[0].devices_ids)
        self.say("allocate", ids=ids)
        match self.mode:
            case "hang":
                await trio.sleep_forever()
            case "crash":
                os._exit(1)
            case "fail":
                raise GrpcError(Code.INTERNAL, "no such luck")
            case "nothing":
                return api.AllocateResponse()
        answer = api.ContainerAllocateResponse(
            envs={"DEVICES": ",".join(ids)},
            mounts=[api.Mount(container_path="/plugin", host_path=self.directory, read_only=True)],
            devices=[api.DeviceSpec(container_path="/dev/given", host_path="/dev/null", permissions="rw")],
            annotations={"example.com/devices": ",".join(ids)},
        )
        return api.AllocateResponse(container_responses=[answer])

    async def pre_start(self, request: api.PreStartContainerRequest) -> api.PreStartContainerResponse:
        self.say("pre-start", ids=list(request.devices_ids))
        return api.PreStartContainerResponse()

    async def run(self) -> None:
        service = Service(
            api.DESCRIPTOR,
            "DevicePlugin",
            {
                "GetDevicePluginOptions": self.get_options,
                "ListAndWatch": self.list_and_watch,
                "GetPreferredAllocation": self.preferred,
                "Allocate": self.allocate,
                "PreStartContainer": self.pre_start,
            },
        )
        async with open_asyncio_loop() as loop, trio.open_nursery() as nursery:
            nursery.start_soon(self.obey)
            while True:
                async with trio.open_nursery() as serving:
                    path = os.path.join(self.directory, self.endpoint)
                    await serving.start(partial(serve, loop, path, [service]))
                    agent = await self.register(loop)
                    while identity(agent[0]) == agent[1]:  # noqa: ASYNC110 (a file is waited for)
                        await trio.sleep(0.05)
                    serving.cancel_scope.cancel()

    async def register(self, loop: AsyncioLoop) -> tuple[str, tuple[int, int] | None]:
        path = os.path.join(self.directory, "kubelet.sock")
        request = api.RegisterRequest(
            version=self.version,
            endpoint=self.endpoint,
            resource_name=self.resource,
            options=self.options,
        )
        while True:
            found = identity(path)
            try:
                with connect(loop, path) as channel:
                    await channel.unary("/v1beta1.Registration/Register", request, api.Empty, deadline=15)
                self.say("registered")
                return path, found
            except GrpcError as exc:
                self.say("refused", error=str(exc))
                await trio.sleep(0.1)

    async def obey(self) -> None:
        async for line in _lines():
            command = json.loads(line)
            self.mode = command.get("do", self.mode)
            self.devices = command.get("devices", self.devices)
            for name, healthy in command.get("health", {}).items():
                (self.sick.discard if healthy else self.sick.add)(name)
            self.changed.set()
            self.changed = trio.Event()
            self.say("obeyed")


async def _lines() -> Any:
    stream, rest = trio.lowlevel.FdStream(os.dup(0)), b""
    async for data in stream:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line


def identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("resource")
    parser.add_argument("devices", type=int)
    parser.add_argument("--endpoint", default="sample.sock")
    parser.add_argument("--do", default="work")
    parser.add_argument("--version", default="v1beta1")
    parser.add_argument("--nodes", type=int, nargs="*", default=[0])
    parser.add_argument("--pre-start", action="store_true")
    parser.add_argument("--preferred", action="store_true")
    trio.run(Plugin(parser.parse_args(sys.argv[1:])).run)


if __name__ == "__main__":
    main()
