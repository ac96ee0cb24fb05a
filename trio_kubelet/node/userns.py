"""Ranges of user ids for pods that do not use the node's (`hostUsers: false`).

Each such pod has a range of its own, written to its directory so that a restarted agent, or a kubelet that
takes over, goes on with it (kubelet: `pkg/kubelet/userns`).
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec
import trio

from trio_kubelet.api import v1
from trio_kubelet.common.deep_json import decode_flat
from trio_kubelet.common.go_words import error_words
from trio_kubelet.common.lanes import NODE_FILES
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.node.subids import ALL_IDS, IDRange, every_id
from trio_kubelet.podinfo.context import RuntimeHandler
from trio_kubelet.podinfo.doors import ConfigError
from trio_kubelet.podinfo.paths import pod_dir, pods_dir
from trio_kubelet.volumes.files import make_dirs

_FILE = "userns"


class _Mapping(msgspec.Struct):
    host_id: int = msgspec.field(name="hostId")
    container_id: int = msgspec.field(name="containerId")
    length: int = msgspec.field(name="length")


class _Record(msgspec.Struct):
    """The file in a pod's directory."""

    uid_mappings: list[_Mapping] = msgspec.field(name="uidMappings")
    gid_mappings: list[_Mapping] = msgspec.field(name="gidMappings")


def free_part(used: Collection[int], ids: IDRange, pick: Callable[[int], int] = random.randrange) -> int:
    """The first id of a part that no pod has, any of them: one that was given back is not soon given again,
    while files with its ids may be left somewhere. `pick` chooses where to begin looking. Raises ConfigError.

    Not the part that ends with the last id of all, which means nobody: Linux maps no range up to it. Kubelet
    v1.36 gives it out, and its pod never starts (kubernetes/kubernetes 139916).
    """
    parts = ids.length // ids.per_pod
    begin = pick(parts)
    for number in range(parts):
        first = ids.first + (begin + number) % parts * ids.per_pod
        if first not in used and first + ids.per_pod < ALL_IDS:
            return first
    raise ConfigError("create user namespace: could not find an empty slot to allocate a user namespace")


def namespace_of(first: int, length: int) -> cri.UserNamespace:
    """The CRI form of a range: users 0… of the pod are `first`… on the node, groups likewise."""
    mapping = cri.IDMapping(host_id=first, container_id=0, length=length)
    return cri.UserNamespace(mode=cri.POD, uids=[mapping], gids=[mapping])


class UserNamespaceRanges:
    """Gives ranges out and remembers them. Files are small and local, so they are read in a thread with no
    more ado; `handlers` says what the runtime can do.
    """

    def __init__(
        self,
        root_dir: str,
        handlers: Callable[[], Mapping[str, RuntimeHandler]],
        ids: IDRange | None = None,
    ) -> None:
        self._root_dir = root_dir
        self._handlers = handlers
        self._ids = ids or every_id()
        self._lock = trio.Lock()

    async def mapping(self, pod: v1.Pod, handler: str) -> cri.UserNamespace | None:
        """The pod's range, None if it uses the node's ids. Raises ConfigError."""
        if pod.spec.host_users is not False:
            return None
        handlers = self._handlers()
        features = handlers.get(handler)
        if features is None or not features.user_namespaces:
            who = f'RuntimeClass handler "{handler}"' if handler else "runtime"
            # One that tells of no handlers at all is merely old.
            unknown = f': the handler "{handler}" is not known' if handlers and features is None else ""
            raise ConfigError(
                f"can't set `spec.hostUsers: false`, {who} does not support user namespaces{unknown}"
            )
        async with self._lock:
            try:
                first = await NODE_FILES.run(self._find_or_take, pod.metadata.uid)
            except OSError as error:
                raise ConfigError(f"user namespace: {error_words(error)}") from error
        return namespace_of(first, self._ids.per_pod)

    def _find_or_take(self, uid: str) -> int:
        own = self._read(uid)
        if own is not None:
            return own
        try:
            others = os.listdir(pods_dir(self._root_dir))
        except FileNotFoundError:
            others = []
        first = free_part({part for other in others for part in self._parts_of(other)}, self._ids)
        self._write(uid, first)
        return first

    def _parts_of(self, uid: str) -> Iterable[int]:
        """The first ids of the parts that a pod has something of, also one from before the ids were changed.
        Its range is its own, but no reason to refuse others; with a kubelet it is one not to start at all
        (kubernetes/kubernetes 137912, 141941).
        """
        if (mapping := self._recorded(uid)) is None:
            return ()
        begin, size = max(0, mapping.host_id - self._ids.first), self._ids.per_pod
        end = min(mapping.host_id + mapping.length - self._ids.first, self._ids.length)
        return range(self._ids.first + begin // size * size, self._ids.first + end, size)

    def _read(self, uid: str) -> int | None:
        """The first id of a pod's range, None if it has none."""
        if (mapping := self._recorded(uid)) is None:
            return None
        if mapping.length != self._ids.per_pod:
            raise ConfigError(f"user namespace: wrong user namespace length {mapping.length}")
        if mapping.host_id % mapping.length:  # it would overlap with two others
            raise ConfigError(f"user namespace: wrong user namespace offset specified {mapping.host_id}")
        if not 0 <= mapping.host_id - self._ids.first < self._ids.length:
            raise ConfigError(f"user namespace: id {mapping.host_id} is out of range")
        return mapping.host_id

    def _recorded(self, uid: str) -> _Mapping | None:
        """A pod's range as it is written down."""
        try:
            with open(f"{pod_dir(self._root_dir, uid)}/{_FILE}", "rb") as file:
                record = decode_flat(file.read(), _Record)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except msgspec.MsgspecError as error:
            raise ConfigError(f"user namespace: invalid mappings file of pod {uid}: {error}") from None
        mapping = record.uid_mappings[0] if len(record.uid_mappings) == 1 else None
        if mapping is None or record.gid_mappings != [mapping] or mapping.container_id != 0:
            raise ConfigError(f"user namespace: mappings file of pod {uid} is not one of the agent's")
        return mapping

    def _write(self, uid: str, first: int) -> None:
        directory = pod_dir(self._root_dir, uid)
        make_dirs(directory)
        mapping = _Mapping(first, 0, self._ids.per_pod)
        temporary = f"{directory}/.{_FILE}"
        with open(temporary, "wb") as file:
            file.write(msgspec.json.encode(_Record([mapping], [mapping])))
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, f"{directory}/{_FILE}")
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)  # the range is the pod's also after the machine lost power
        finally:
            os.close(descriptor)
