"""What a pod's volumes come to on this node: paths, kinds and sizes. Nothing here touches a file."""

from __future__ import annotations

import enum
import posixpath
from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Final, TypeAlias

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.api.containers import all_containers, containers_with_path, regular_containers
from trio_kubelet.api.defaults import HUGE_PAGES_PREFIX
from trio_kubelet.api.quantity import QuantityError
from trio_kubelet.podinfo.amounts import amount, whole
from trio_kubelet.podinfo.context import NodeContext, VolumeMountPoint
from trio_kubelet.podinfo.paths import pod_dir, volume_dir
from trio_kubelet.podinfo.totals import is_limited, pod_limits
from trio_kubelet.volumes.errors import VolumeError

EMPTY_DIR = "kubernetes.io/empty-dir"
HOST_PATH = "kubernetes.io/host-path"
GIT_REPO = "kubernetes.io/git-repo"
IMAGE = "kubernetes.io/image"
CONFIG_MAP = "kubernetes.io/configmap"
SECRET = "kubernetes.io/secret"
DOWNWARD_API = "kubernetes.io/downward-api"
PROJECTED = "kubernetes.io/projected"

# Volumes whose files the agent writes, by field of the spec; only config maps are on disk.
_PROJECTIONS = {
    "config_map": CONFIG_MAP,
    "secret": SECRET,
    "downward_api": DOWNWARD_API,
    "projected": PROJECTED,
}

# Volumes that others make: by field of the spec.
_PERSISTENT = (
    "persistent_volume_claim",
    "ephemeral",
    "csi",
    "nfs",
    "iscsi",
    "fc",
    "flex_volume",
    "aws_elastic_block_store",
    "azure_disk",
    "azure_file",
    "cinder",
    "gce_persistent_disk",
    "portworx_volume",
    "vsphere_volume",
)


_HUGE_PAGES = "HugePages"
_NO_GIT_REPO = (
    "git-repo volume plugin has been disabled; if necessary, it may be re-enabled by enabling the "
    "feature-gate `GitRepoVolumeDriver`"
)


class Medium(enum.StrEnum):
    """What a directory of the agent's own is on."""

    DISK = "disk"
    MEMORY = "memory"
    HUGE_PAGES = "huge pages"


MOST_NESTED: Final = 16384
"""Directories inside a pod's volumes for other mounts at most: a manifest has room for thousands of volumes
mounted at one place (`/a`, `//a`), and for thousands of mounts below it that all of them would need.
"""

_MEDIA = {"": Medium.DISK, "Memory": Medium.MEMORY}


class EmptyDir(msgspec.Struct, frozen=True):
    """A directory that lives as long as the pod.

    `ready_dir` holds the marker that it was set up, `size` limits a memory one (bytes), `page_size` is that
    of huge pages (`2Mi`). What is in one that is `counted` its filesystem counts, if it can. One with a
    `problem` cannot be made, and the user is told so when it should be.
    """

    name: str
    path: str
    ready_dir: str
    medium: Medium
    size: int = 0
    page_size: str = ""
    counted: bool = False
    problem: str = ""


class HostPath(msgspec.Struct, frozen=True):
    """A path of the node; `kind` is what has to be there or is made, "" for no check."""

    name: str
    path: str
    kind: str = ""


class Projection(msgspec.Struct, frozen=True):
    """Files the agent writes into an empty directory of its own."""

    name: str
    directory: EmptyDir
    nested: tuple[str, ...]  # directories other volumes are mounted on, relative to this one


class ImageVolume(msgspec.Struct, frozen=True):
    """An image the runtime mounts itself."""

    name: str


class Persistent(msgspec.Struct, frozen=True):
    """A volume that is not the agent's own to make: a claim, a driver's, a network filesystem."""

    name: str


VolumePlan: TypeAlias = EmptyDir | HostPath | Projection | ImageVolume | Persistent


class PodWide:
    """What plans of a pod's volumes have in common: made once, for a pod may have thousands."""

    def __init__(self, pod: v1.Pod, ctx: NodeContext) -> None:
        """Raises VolumeError."""
        self._pod, self._ctx = pod, ctx
        self.nested = nested_mount_points(pod)

    @cached_property
    def memory(self) -> int:
        """How much any directory in memory may hold, in bytes: the lesser of the node's allocatable memory
        and the pod's memory limit (if all its containers have one; KEP-1967).
        """
        size = whole(amount(self._ctx.allocatable.get("memory", "")))
        pod_level = self._ctx.features.pod_level_resources
        if is_limited(self._pod, "memory", pod_level=pod_level):
            limits = pod_limits(self._pod, pod_level=pod_level)
            size = _lesser(size, whole(limits.get("memory", 0)))
        return size

    @cached_property
    def outside(self) -> dict[str, str]:
        """Where volumes are mounted that are to be outside of their container, by name (kubelet:
        `getNestedMountpoints`).
        """
        places = (
            (mount.name, _clean(mount.mount_path))
            for container in all_containers(self._pod.spec)
            for mount in container.volume_mounts or ()
        )
        found: dict[str, str] = {}
        for name, place in places:
            if place.startswith("../"):
                found.setdefault(name, place)
        return found

    @cached_property
    def page_sizes(self) -> dict[int, str] | str:
        """The sizes of huge pages the pod asks for, or why they cannot be told."""
        try:
            return asked_page_sizes(self._pod, self._ctx)
        except QuantityError as error:
            return str(error)


def used_volumes(pod: v1.Pod) -> list[v1.Volume]:
    """The volumes that some container mounts, in the pod's order; nobody misses the others (kubelet:
    `GetPodVolumeNames`).
    """
    mounted = {
        name
        for container, _ in containers_with_path(pod.spec)
        for name in (
            *(mount.name for mount in container.volume_mounts or ()),
            *(device.name for device in container.volume_devices or ()),
        )
    }
    return [volume for volume in pod.spec.volumes or () if volume.name in mounted]


def plan_volume(
    pod: v1.Pod, volume: v1.Volume, ctx: NodeContext, shared: PodWide | None = None
) -> VolumePlan:
    """One volume; whoever plans several gives what they have in common. Raises VolumeError."""
    shared = shared or PodWide(pod, ctx)
    if volume.empty_dir is not None:
        return _empty_dir(pod, volume.name, volume.empty_dir, ctx, shared)
    if volume.git_repo is not None:
        return _git_repo(pod, volume.name, ctx)
    if volume.host_path is not None:
        if ".." in volume.host_path.path.split("/"):
            raise VolumeError(f"invalid HostPath `{volume.host_path.path}`: must not contain '..'")
        return HostPath(volume.name, volume.host_path.path, volume.host_path.type or "")
    if volume.image is not None:
        return ImageVolume(volume.name)
    if any(getattr(volume, field) is not None for field in _PERSISTENT):
        return Persistent(volume.name)
    plugin = projection_plugin(volume)
    if plugin is None:
        raise VolumeError(
            f'failed to get Plugin from volumeSpec for volume "{volume.name}" err=no volume plugin matched'
        )
    on_disk, outside = plugin == CONFIG_MAP, shared.outside.get(volume.name)
    directory = EmptyDir(
        name=volume.name,
        path=volume_dir(ctx.root_dir, pod.metadata.uid, plugin, volume.name),
        ready_dir=ready_dir(ctx.root_dir, pod.metadata.uid, f"wrapped_{volume.name}"),
        medium=Medium.DISK if on_disk else Medium.MEMORY,
        size=0 if on_disk else shared.memory,
        problem=f"invalid container mount point {outside}" if outside is not None else "",
    )
    return Projection(volume.name, directory, tuple(shared.nested.get(volume.name, ())))


def mount_points(pod: v1.Pod, ctx: NodeContext) -> dict[str, VolumeMountPoint]:
    """Where each volume that some container mounts is on the host; images are the runtime's, persistent ones
    are left out. Raises VolumeError.
    """
    shared = PodWide(pod, ctx)
    points = {volume.name: mount_point(plan_volume(pod, volume, ctx, shared)) for volume in used_volumes(pod)}
    return {name: point for name, point in points.items() if point is not None}


def mount_point(plan: VolumePlan) -> VolumeMountPoint | None:
    """Where a volume is on the host, None for what others know."""
    match plan:
        case EmptyDir():
            return VolumeMountPoint(plan.path, relabel=True)
        case HostPath():
            return VolumeMountPoint(plan.path)
        case Projection():
            return VolumeMountPoint(plan.directory.path, read_only=True, relabel=True)
        case ImageVolume() | Persistent():
            return None


def projection_plugin(volume: v1.Volume) -> str | None:
    """The kubelet's name of the plugin for volumes made of files, None for other volumes."""
    return next((p for field, p in _PROJECTIONS.items() if getattr(volume, field) is not None), None)


def plugin_name(volume: v1.Volume) -> str:
    """The kubelet's name of the plugin for a volume that `plan_volume` takes."""
    if volume.empty_dir is not None:
        return EMPTY_DIR
    if volume.git_repo is not None:
        return GIT_REPO
    if volume.host_path is not None:
        return HOST_PATH
    return projection_plugin(volume) or IMAGE


def source_name(volume: v1.Volume) -> str:
    """The kind of a volume as its spec spells it, "unknown" for an empty one."""
    # What msgspec tells of fields besides their names it finds out anew each time.
    fields = zip(volume.__struct_fields__, volume.__struct_encode_fields__, strict=True)
    given = (shown for field, shown in fields if field != "name" and getattr(volume, field) is not None)
    return next(given, "unknown")


def ready_dir(root_dir: str, uid: str, name: str) -> str:
    """Where the marker of a set-up directory is."""
    return f"{pod_dir(root_dir, uid)}/plugins/{EMPTY_DIR.replace('/', '~')}/{name}"


def nested_mount_points(pod: v1.Pod) -> dict[str, dict[str, None]]:
    """Directories inside each volume of files that other mounts of some container cover; only the outermost
    ones. Raises VolumeError for more than there can be room for.
    """
    projections = {volume.name for volume in pod.spec.volumes or () if projection_plugin(volume) is not None}
    found: dict[str, dict[str, None]] = {}
    room = MOST_NESTED
    for container in all_containers(pod.spec):
        # One volume may be at one path in several spellings.
        places = dict.fromkeys((m.name, f"{_clean(m.mount_path)}/") for m in container.volume_mounts or ())
        inside = _directly_inside({path for _, path in places})
        for name, base in places:
            if name not in projections:
                continue
            paths = found.setdefault(name, {})
            for path in inside.get(base, ()):
                relative = path[len(base) : -1]
                if relative in paths or ".." in relative.split("/"):
                    continue
                paths[relative] = None
                room -= relative.count("/") + 1
                if room < 0:
                    raise VolumeError(f"mounts need more than {MOST_NESTED} directories in the pod's volumes")
    return found


def _directly_inside(paths: Collection[str]) -> dict[str, list[str]]:
    """The paths below each one that are below no other one between them; all end with a slash, so that those
    below one follow it when they are sorted.
    """
    inside: dict[str, list[str]] = {}
    around: list[str] = []  # from the outermost
    for path in sorted(paths):
        while around and not path.startswith(around[-1]):
            around.pop()
        if around:
            inside.setdefault(around[-1], []).append(path)
        around.append(path)
    return inside


def _empty_dir(
    pod: v1.Pod, name: str, source: v1.EmptyDirVolumeSource, ctx: NodeContext, shared: PodWide
) -> EmptyDir:
    medium, page_size, problem = _MEDIA.get(source.medium, Medium.DISK), "", ""
    if source.medium == _HUGE_PAGES or source.medium.startswith(f"{_HUGE_PAGES}-"):
        medium, asked = Medium.HUGE_PAGES, shared.page_sizes
        if isinstance(asked, str):
            problem = asked
        else:
            try:
                page_size = huge_page_size(source.medium, asked)
            except (VolumeError, QuantityError) as error:
                problem = str(error)
    elif source.medium not in _MEDIA:
        problem = f'unknown storage medium "{source.medium}"'
    return EmptyDir(
        name=name,
        path=volume_dir(ctx.root_dir, pod.metadata.uid, EMPTY_DIR, name),
        ready_dir=ready_dir(ctx.root_dir, pod.metadata.uid, name),
        medium=medium,
        size=_lesser(shared.memory, whole(amount(source.size_limit or ""))) if medium is Medium.MEMORY else 0,
        page_size=page_size,
        # Users of the host could give their files to another project, and they would not count any more.
        counted=ctx.features.quota_monitoring and medium is Medium.DISK and pod.spec.host_users is False,
        problem=problem,
    )


def _git_repo(pod: v1.Pod, name: str, ctx: NodeContext) -> EmptyDir:
    """The directory a repository would be in. v1.36 knows the kind, but nobody can switch it on any more."""
    return EmptyDir(
        name=name,
        path=volume_dir(ctx.root_dir, pod.metadata.uid, GIT_REPO, name),
        ready_dir=ready_dir(ctx.root_dir, pod.metadata.uid, name),
        medium=Medium.DISK,
        problem=_NO_GIT_REPO,
    )


def asked_page_sizes(pod: v1.Pod, ctx: NodeContext) -> dict[int, str]:
    """The sizes of huge pages a pod asks for, in 10⁻⁹ of a byte, each as the pod spells it. Raises
    QuantityError.
    """
    requests = [c.resources.requests for c in regular_containers(pod.spec)]
    if ctx.features.pod_level_resources and pod.spec.resources is not None:
        requests.append(pod.spec.resources.requests)
    names = {name for each in requests for name in each or () if name.startswith(HUGE_PAGES_PREFIX)}
    sizes = sorted(name.removeprefix(HUGE_PAGES_PREFIX) for name in names)
    return {amount(size): size for size in sizes}


def huge_page_size(medium: str, asked: Mapping[int, str]) -> str:
    """The size of a volume's huge pages: that of the medium (`HugePages-2Mi`), or for `HugePages` the one the
    pod asks for. Raises VolumeError for a pod that does not ask for such pages, or for several sizes,
    QuantityError for a medium whose size is none (kubelet: `getPageSizeMountOption`).
    """
    if medium != _HUGE_PAGES:
        wanted = amount(medium.removeprefix(f"{_HUGE_PAGES}-"))
        asked = {wanted: asked[wanted]} if wanted in asked else {}
    if not asked:
        text = "hugePages storage requested, but there is no resource request for huge pages"
        raise VolumeError(f"medium {medium}: {text}")
    if len(asked) > 1:
        raise VolumeError(f"medium: {medium} can't be used if container requests multiple huge page sizes")
    (found,) = asked.values()
    return found


def _lesser(size: int, limit: int) -> int:
    """The limit if it is there and no more than `size`."""
    return limit if 0 < limit <= size else size


def _clean(path: str) -> str:
    """A path in its shortest spelling."""
    short = posixpath.normpath(path)
    return short[1:] if short.startswith("//") else short  # to POSIX two slashes may be another root
