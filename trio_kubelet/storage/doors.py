"""What this room needs from others: objects of the API server, calls to drivers, the plugins of volumes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TypeVar

import msgspec
from google.protobuf.message import Message

from trio_kubelet.api import v1
from trio_kubelet.podinfo.doors import GrantedToken
from trio_kubelet.storage.specs import Spec
from trio_kubelet.storage.world import PodMount

M = TypeVar("M", bound=Message)


class DriverCalls(Protocol):
    """Calls over the sockets of drivers."""

    async def call(
        self, endpoint: str, method: str, request: Message, response: type[M], timeout: float
    ) -> M:
        """One call to the driver at a socket; `method` is like `/csi.v1.Node/NodeGetInfo`. Raises
        GrpcError.
        """
        ...

    def forget(self, endpoint: str) -> None:
        """No driver is behind the socket any more: what is kept for it goes, calls under way fail."""
        ...


class StorageObjectsDoor(Protocol):
    """Reads the objects of the API server that volumes are made of, one by one.

    None: there is no such object. Raises ObjectError for what cannot be had now.
    """

    async def claim(self, namespace: str, name: str) -> v1.PersistentVolumeClaim | None: ...

    async def volume(self, name: str) -> v1.PersistentVolume | None: ...

    async def attachment(self, name: str) -> v1.VolumeAttachment | None: ...

    async def driver(self, name: str) -> v1.CSIDriver | None: ...

    async def secret(self, namespace: str, name: str) -> v1.Secret | None: ...

    async def token(self, pod: v1.Pod, audience: str, seconds: int | None) -> GrantedToken: ...

    async def patch_claim_status(
        self, claim: v1.PersistentVolumeClaim, patch: Mapping[str, Any]
    ) -> v1.PersistentVolumeClaim:
        """Changes the claim's status by a strategic merge patch; the claim as it is then."""
        ...


class Mounting(Protocol):
    """A plugin of volumes. Steps may be repeated, and go on where the last one stopped. All of them raise
    OperationError.
    """

    async def wait_for_attach(self, spec: Spec) -> None:
        """Checks that the volume is attached, as far as that is told elsewhere than on the Node."""
        ...

    async def mount_device(self, spec: Spec, pod: v1.Pod) -> None:
        """Mounts the volume once for the node."""
        ...

    async def set_up(self, spec: Spec, pod: v1.Pod, *, keep: bool) -> None:
        """Mounts the volume for a pod. `keep`: it may be mounted already, a failure leaves that alone."""
        ...

    async def tear_down(self, mount: PodMount) -> None:
        """Unmounts the volume of a pod."""
        ...

    async def unmount_device(self, spec: Spec) -> None:
        """Unmounts the volume from the node."""
        ...

    def path(self, spec: Spec, uid: str) -> str:
        """Where a pod's mount is."""
        ...

    def device_path(self, spec: Spec) -> str:
        """Where the volume is mounted for the node, "" for one that never is."""
        ...

    def relabels(self, spec: Spec, uid: str) -> bool:
        """Whether the files of a volume that a pod may write are the pod's to be labelled for."""
        ...

    async def requires_remount(self, spec: Spec) -> bool:
        """Whether the volume is to be set up again at each sync of its pod."""
        ...


class Attaching(Protocol):
    """A plugin whose volumes the agent attaches itself where no controller does. Raises OperationError."""

    async def attach(self, spec: Spec) -> None:
        """Gives the volume to this node."""
        ...

    async def detach(self, spec: Spec) -> None:
        """Undoes `attach`."""
        ...


class BlockMapping(Protocol):
    """A plugin of volumes that can be block devices. All steps raise OperationError."""

    async def wait_for_attach(self, spec: Spec) -> None: ...

    async def set_up_device(self, spec: Spec, pod: v1.Pod) -> None:
        """Makes the device ready for the node."""
        ...

    async def map_pod_device(self, spec: Spec, pod: v1.Pod) -> str:
        """Makes the device ready for a pod; the path of the device."""
        ...

    async def unmap_pod_device(self, mount: PodMount) -> None:
        """Undoes `map_pod_device`."""
        ...

    async def tear_down_device(self, spec: Spec) -> None:
        """Undoes `set_up_device`."""
        ...

    def global_map(self, spec: Spec) -> str:
        """The directory where each pod's device is bound to a file called like the pod's UID."""
        ...


class Expanding(Protocol):
    """A plugin whose volumes can grow while they are used."""

    async def expand(self, spec: Spec, uid: str, size: int) -> None:
        """Makes filesystem or device use `size` bytes. Raises OperationError, ExpansionRefused,
        NotSupported.
        """
        ...


class NodeInfoWriter(Protocol):
    """Writes what a driver says of the node into CSINode and Node. Raises PluginError."""

    async def install(self, driver: str, info: NodeInfo) -> None: ...

    async def update(self, driver: str, info: NodeInfo) -> None:
        """What a driver that is known says later; the Node is left alone."""
        ...

    async def uninstall(self, driver: str) -> None: ...


class ReadsBack(Protocol):
    """A plugin that finds its volumes on the disk."""

    def read_back(self, root_dir: str, table: frozenset[str], /) -> Iterable[tuple[Spec, str]]:
        """See `reconstruct.OTHERS`."""
        ...


class Disks(Protocol):
    """A kind of such disks. What it does raises OperationError."""

    @property
    def plugin(self) -> str:
        """The plugin's name."""
        ...

    def directory(self, spec: Spec) -> str:
        """The disk's directory, below that of its plugin."""
        ...

    def fs_type(self, spec: Spec) -> str:
        """The filesystem that is asked for."""
        ...

    async def attach(self, spec: Spec, directory: str) -> str:
        """The disk is there afterwards; its device. What `detach` has to know may be kept in the
        directory.
        """
        ...

    async def detach(self, spec: Spec, directory: str) -> None:
        """The node gives the disk up, which nothing is mounted from."""
        ...

    def read_back(self, directory: str, block: bool) -> Iterable[tuple[str, Spec]]:
        """Directories that disks have below that of the plugin, with what their names say. Blocking."""
        ...


class NodeInfo(msgspec.Struct, frozen=True):
    """What a driver says of the node: its id there, how many volumes (0: not said), where it is."""

    node_id: str
    limit: int = 0
    topology: dict[str, str] = {}
