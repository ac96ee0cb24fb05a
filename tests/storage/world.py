"""A storage room over the tests' API server and the tests' driver: no containers, but real mounts."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import trio
from prometheus_client import CollectorRegistry

from tests.kube.apiserver import APIServer
from tests.kube.door import SimulatedDoor
from tests.kube.store import Refused, Tree
from tests.storage.drivers import DriverProcess
from trio_kubelet.api import v1
from trio_kubelet.common.clock import SystemClock
from trio_kubelet.grpc.loop import open_asyncio_loop
from trio_kubelet.kube.client import KubeClient
from trio_kubelet.kube.storage_objects import FollowedCSIDrivers, StorageObjects
from trio_kubelet.kube.tokens import TokenStore
from trio_kubelet.plugins.doors import PluginError
from trio_kubelet.plugins.states import PluginInfo
from trio_kubelet.podinfo.recorder import EventRecorder, PodEvent
from trio_kubelet.storage.calls import GrpcCalls
from trio_kubelet.storage.doors import NodeInfo
from trio_kubelet.storage.names import attachment_name, csi_name, unique_name
from trio_kubelet.storage.room import StorageRoom
from trio_kubelet.storage.steps import ReportedVolumes
from trio_kubelet.volumes.doors import Shortfall
from trio_kubelet.volumes.metrics import VolumeMetrics

NODE = "here"
DRIVER = "disks.example"


class Claims:
    """An API server's side of storage: what provisioner, attacher and controllers would write."""

    def __init__(self, server: APIServer | None = None) -> None:
        self.server = server or APIServer(clock=SystemClock())
        self.store = self.server.store
        with contextlib.suppress(Refused):
            self.store.create("serviceaccounts", "default", {"metadata": {"name": "default"}})

    def driver(self, name: str = DRIVER, **spec: Any) -> None:
        """The CSIDriver object, with the fields that an API server fills in."""
        whole = {
            "attachRequired": False,
            "volumeLifecycleModes": ["Persistent", "Ephemeral"],
            "podInfoOnMount": False,
            "requiresRepublish": False,
            "storageCapacity": False,
            "fsGroupPolicy": "ReadWriteOnceWithFSType",
            "seLinuxMount": False,
            **spec,
        }
        self.store.create("csidrivers", "", {"metadata": {"name": name}, "spec": whole})

    def claim(
        self,
        name: str,
        source: Tree | None = None,
        *,
        size: str = "16Mi",
        modes: tuple[str, ...] = ("ReadWriteOnce",),
        mode: str = "Filesystem",
        **volume: Any,
    ) -> None:
        """A claim bound to the volume `pv-NAME`, by default one of the driver with the handle NAME."""
        csi = {"csi": {"driver": DRIVER, "volumeHandle": name, "fsType": "ext4"}}
        claim = self.store.create(
            "persistentvolumeclaims",
            "default",
            {
                "metadata": {"name": name},
                "spec": {
                    "volumeName": f"pv-{name}",
                    "accessModes": list(modes),
                    "volumeMode": mode,
                    "resources": {"requests": {"storage": size}},
                },
            },
        )
        self.store.set_status(
            "persistentvolumeclaims", "default", name, phase="Bound", capacity={"storage": size}
        )
        self.store.create(
            "persistentvolumes",
            "",
            {
                "metadata": {"name": f"pv-{name}", **volume.pop("metadata", {})},
                "spec": {
                    **(source or csi),
                    "accessModes": list(modes),
                    "volumeMode": mode,
                    "capacity": {"storage": size},
                    "claimRef": {"namespace": "default", "name": name, "uid": claim["metadata"]["uid"]},
                    **volume,
                },
            },
        )

    def grow(self, name: str, size: str) -> None:
        """What the controller writes when the volume behind a claim has grown: the node's turn."""
        volume = self.store.get("persistentvolumes", "", f"pv-{name}")
        volume["spec"]["capacity"] = {"storage": size}
        self.store.update("persistentvolumes", "", f"pv-{name}", volume)
        self.store.set_status(
            "persistentvolumeclaims",
            "default",
            name,
            allocatedResources={"storage": size},
            allocatedResourceStatuses={"storage": "NodeResizePending"},
            conditions=[{"type": "FileSystemResizePending", "status": "True"}],
        )

    def attach(self, handle: str, attached: bool = True, node: str = NODE, **status: Any) -> str:
        """A VolumeAttachment of the driver's volume; its name."""
        name = attachment_name(handle, DRIVER, node)
        spec = {"attacher": DRIVER, "nodeName": node, "source": {"persistentVolumeName": f"pv-{handle}"}}
        with contextlib.suppress(Refused):
            self.store.create("volumeattachments", "", {"metadata": {"name": name}, "spec": spec})
        self.store.set_status("volumeattachments", "", name, attached=attached, **status)
        return name


def csi_unique(handle: str) -> str:
    """The driver's volume as the Node's status names it."""
    return unique_name("kubernetes.io/csi", csi_name(DRIVER, handle))


def pod_of(name: str, *claims: str, devices: tuple[str, ...] = (), **spec: Any) -> v1.Pod:
    """A pod that mounts these claims at `/NAME`, and has others as devices."""
    volumes = [{"name": each, "persistentVolumeClaim": {"claimName": each}} for each in (*claims, *devices)]
    main = {
        "name": "main",
        "image": "i",
        "volumeMounts": [{"name": each, "mountPath": f"/{each}"} for each in claims],
        "volumeDevices": [{"name": each, "devicePath": f"/dev/{each}"} for each in devices],
    }
    tree = {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {"containers": [main], "volumes": volumes, "serviceAccountName": "default", **spec},
    }
    return msgspec.convert(tree, v1.Pod)


class World:
    """The room under test, with everything around it."""

    def __init__(self, root: Path, claims: Claims, driver: DriverProcess) -> None:
        self.root = root
        self.claims = claims
        self.process = driver
        self.events: list[PodEvent] = []
        self.object_events: list[tuple[str, str, str, str]] = []  # kind, name, reason, message
        self.view = ReportedVolumes()
        self.room: StorageRoom = None  # type: ignore[assignment]
        self.objects: StorageObjects = None  # type: ignore[assignment]
        self.metrics = CollectorRegistry()
        self.told: list[NodeInfo] = []

    async def install(self, driver: str, info: NodeInfo) -> None:
        """What a driver says of the node (`storage.doors.NodeInfoWriter`)."""
        self.told.append(info)

    async def update(self, driver: str, info: NodeInfo) -> None:
        """What it says later."""
        self.told.append(info)

    async def uninstall(self, driver: str) -> None:
        """The driver has gone."""

    async def set_up(self, pod: v1.Pod, patience: float = 30.0) -> Shortfall:
        """What the pod's worker does."""
        return await self.room.volumes.set_up(pod, pod.spec.volumes or [], patience)

    async def gives_up(self, pod: v1.Pod, reason: str = "FailedMount") -> Shortfall:
        """What the pod's worker does not get, having waited in vain and been told why by such an event."""
        with trio.fail_after(30):
            while True:
                short = await self.set_up(pod, patience=0.3)
                if self.reasons(reason):
                    return short

    async def tear_down(self, pod: v1.Pod) -> None:
        """What happens when the pod has ended."""
        await self.room.volumes.tear_down(pod.metadata.uid)

    def path(self, pod: v1.Pod, volume: str) -> Path:
        """Where the pod has a volume."""
        return Path(self.room.volumes.mounts(pod.metadata.uid)[volume].host_path)

    def device(self, pod: v1.Pod, volume: str) -> Path:
        """Where the pod has a block device."""
        return Path(self.room.volumes.devices(pod.metadata.uid)[volume].path)

    def node_says(self, *handles: str) -> None:
        """The Node's status calls these volumes in use and attached."""
        names = [csi_unique(handle) for handle in handles]
        self.view = ReportedVolumes(frozenset(names), dict.fromkeys(names, ""))
        self.room.volumes.node_changed()

    async def register(self) -> None:
        """The plugin watcher has found the driver."""
        await self.room.csi_plugins.register(self.plugin)

    async def try_register(self) -> bool:
        """As `register`; whether it went well."""
        try:
            await self.register()
        except PluginError:
            return False
        return True

    async def deregister(self) -> None:
        """The driver's socket has gone."""
        await self.room.csi_plugins.deregister(self.plugin)

    @property
    def plugin(self) -> PluginInfo:
        return PluginInfo(
            type="CSIPlugin", name=self.process.name, endpoint=str(self.process.socket), versions=("1.0.0",)
        )

    def reasons(self, reason: str) -> list[str]:
        """Messages of the events with a reason."""
        return [event.message for event in self.events if event.reason == reason]

    def left(self) -> list[str]:
        """Everything below `plugins` and `pods` that volumes left behind."""
        return [
            f"{directory}/{name}"
            for part in ("plugins/kubernetes.io", "pods")
            for directory, _, names in os.walk(self.root / part)
            for name in names
        ]

    @asynccontextmanager
    async def failing(self, pod: v1.Pod) -> AsyncIterator[None]:
        """Until the end of the block the pod waits for its volumes, which could not be mounted."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.set_up, pod)
            await self.until(lambda: self.reasons("FailedMount"))
            yield
            nursery.cancel_scope.cancel()

    async def until(self, condition: Any, seconds: float = 30.0) -> None:
        """Waits until it holds."""
        with trio.fail_after(seconds):
            while not condition():  # noqa: ASYNC110 - what others have mounted tells nobody
                await trio.sleep(0.01)


@asynccontextmanager
async def running_world(
    directory: Path,
    *,
    claims: Claims | None = None,
    driver: DriverProcess | None = None,
    register: bool = True,
    sync_frequency: float = math.inf,
) -> AsyncIterator[World]:
    """A running room. A second one over the same directory is the agent after a restart."""
    claims = claims or Claims()
    root = directory / "root"
    root.mkdir(exist_ok=True)
    if driver is None:
        driver = DriverProcess(DRIVER, directory / "driver")
    if not driver.running:
        driver.start()
    world = World(root, claims, driver)
    clock = SystemClock()
    recorder = EventRecorder(clock)
    recorder.pod_events.listen(world.events.append)
    recorder.object_events.listen(
        lambda about, type, reason, text: world.object_events.append((about.kind, about.name, reason, text))
    )
    door = SimulatedDoor(claims.server)
    followed = FollowedCSIDrivers(door)
    objects = world.objects = StorageObjects(
        KubeClient(door), followed, TokenStore(door, clock, lambda uids: None)
    )
    async with open_asyncio_loop() as loop, trio.open_nursery() as nursery:
        calls = GrpcCalls(loop)
        world.room = StorageRoom(
            root_dir=str(root),
            node_name=NODE,
            objects=objects,
            calls=calls,
            node=lambda: world.view,
            writer=world,
            events=recorder,
            clock=clock,
            registry=world.metrics,
            metrics=VolumeMetrics(world.metrics),
            volume_plugin_dir=str(directory / "flex"),
            health=True,
            sync_frequency=sync_frequency,
        )
        nursery.start_soon(followed.run)
        await nursery.start(world.room.run)
        if register:
            await world.register()
        try:
            yield world
        finally:
            nursery.cancel_scope.cancel()
            calls.__exit__()


def read_json(path: Path) -> Any:
    """A file's JSON."""
    return json.loads(path.read_text())
