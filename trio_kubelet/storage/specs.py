"""A volume as it is to be mounted, from the pod's volume or the persistent volume behind its claim. Pure."""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from trio_kubelet.api import v1

CSI: Final = "kubernetes.io/csi"
LOCAL: Final = "kubernetes.io/local-volume"
NFS: Final = "kubernetes.io/nfs"
ISCSI: Final = "kubernetes.io/iscsi"
FC: Final = "kubernetes.io/fc"
FLEX: Final = "kubernetes.io/flexvolume"
HOST_PATH: Final = "kubernetes.io/host-path"

READ_WRITE_ONCE: Final = "ReadWriteOnce"
READ_WRITE_ONCE_POD: Final = "ReadWriteOncePod"
READ_WRITE_MANY: Final = "ReadWriteMany"
FILESYSTEM: Final = "Filesystem"
BLOCK: Final = "Block"

Source: TypeAlias = (
    v1.CSIPersistentVolumeSource
    | v1.CSIVolumeSource
    | v1.LocalVolumeSource
    | v1.NFSVolumeSource
    | v1.HostPathVolumeSource
    | v1.ISCSIPersistentVolumeSource
    | v1.FCVolumeSource
    | v1.FlexPersistentVolumeSource
    | v1.FlexVolumeSource
)


class ClaimRef(msgspec.Struct, frozen=True):
    """The claim a volume is bound to."""

    namespace: str
    name: str
    uid: str = ""


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """A volume as it is to be mounted.

    `unique_name` names it on this node: plugins that mount once for all pods (`device`) or need attaching
    name it by what it is, others by pod and volume. `api_name` is what the API calls it, where its author may
    call it so or so: an iSCSI portal with its port or without. `name` is that of the persistent volume, or of
    the pod's own volume. `driver` names the CSI or FlexVolume driver, "" for other plugins; `handle` is what
    the driver, or the plugin, knows the volume by. Sizes in bytes: `capacity` is the persistent volume's,
    `claim_size` what the claim's status says. `options` are mount options, `gid` the group its files belong
    to ("" for none).
    """

    unique_name: str
    api_name: str = ""
    name: str
    plugin: str
    source: Source
    driver: str = ""
    handle: str = ""
    ephemeral: bool = False  # a CSI volume that the pod describes itself
    block: bool = False
    device: bool = False
    attachable: bool = False
    read_only: bool = False
    access_modes: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    gid: str = ""
    claim: ClaimRef | None = None
    persistent: bool = False  # there is a PersistentVolume
    uid: str = ""  # that of the PersistentVolume
    nodes: v1.NodeSelector | None = None  # where the persistent volume can be had, None for everywhere
    measured: bool = True  # how full it is can be asked
    migrated: bool = False  # it is described by a type that its CSI driver has replaced
    capacity: int = 0
    claim_size: int = 0

    @property
    def reported_name(self) -> str:
        """The volume as the Node's status names it."""
        return self.api_name or self.unique_name

    @property
    def single_pod(self) -> bool:
        """Whether only one pod may use it (KEP-2485): the only access mode it has is ReadWriteOncePod."""
        return self.access_modes == (READ_WRITE_ONCE_POD,)

    @property
    def access_mode(self) -> str:
        """The mode that drivers are told: the first one."""
        return self.access_modes[0] if self.access_modes else READ_WRITE_ONCE

    @property
    def metrics_plugin(self) -> str:
        """The plugin as metrics name it, with a CSI driver; each FlexVolume driver is a plugin of its own."""
        if self.plugin == FLEX:
            return self.driver
        return f"{self.plugin}:{self.driver}" if self.driver else self.plugin
