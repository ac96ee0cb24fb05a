"""The objects of the test API server: versions, watches, deletion with grace, compaction, restored backups.

Plain dictionaries as JSON has them. It behaves like the API server on etcd where an agent could notice;
what nobody on a node can see (quotas, admission, most validation) is left out.
"""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

import msgspec
import trio

from tests.kube.merge import strategic_merge
from trio_kubelet.api.timestamps import parse_rfc3339, rfc3339
from trio_kubelet.common.clock import NANOSECONDS, Clock, TrioClock
from trio_kubelet.config.load import merge_patch

Tree: TypeAlias = dict[str, Any]

EPOCH_NS = 1_763_700_000 * NANOSECONDS
"""The wall time at Trio time 0, when no other clock is given."""


class Kind(NamedTuple):
    """A resource of the API."""

    group_version: str
    kind: str
    namespaced: bool = True
    has_status: bool = False


KINDS = {
    "configmaps": Kind("v1", "ConfigMap"),
    "endpoints": Kind("v1", "Endpoints"),
    "events": Kind("v1", "Event"),
    "namespaces": Kind("v1", "Namespace", False, True),
    "nodes": Kind("v1", "Node", False, True),
    "persistentvolumeclaims": Kind("v1", "PersistentVolumeClaim", True, True),
    "persistentvolumes": Kind("v1", "PersistentVolume", False, True),
    "pods": Kind("v1", "Pod", True, True),
    "secrets": Kind("v1", "Secret"),
    "serviceaccounts": Kind("v1", "ServiceAccount"),
    "services": Kind("v1", "Service", True, True),
    "certificatesigningrequests": Kind(
        "certificates.k8s.io/v1", "CertificateSigningRequest", False, True
    ),
    "clustertrustbundles": Kind("certificates.k8s.io/v1beta1", "ClusterTrustBundle", False),
    "podcertificaterequests": Kind("certificates.k8s.io/v1beta1", "PodCertificateRequest", True, True),
    "csinodes": Kind("storage.k8s.io/v1", "CSINode", False),
    "csidrivers": Kind("storage.k8s.io/v1", "CSIDriver", False),
    "volumeattachments": Kind("storage.k8s.io/v1", "VolumeAttachment", False, True),
    "leases": Kind("coordination.k8s.io/v1", "Lease"),
    "runtimeclasses": Kind("node.k8s.io/v1", "RuntimeClass", False),
    "resourceclaims": Kind("resource.k8s.io/v1", "ResourceClaim", True, True),
    "resourceslices": Kind("resource.k8s.io/v1", "ResourceSlice", False),
}  # fmt: skip


class Refused(Exception):
    """An answer that is a Status."""

    def __init__(self, code: int, reason: str, message: str, retry_after: int = 0, name: str = "") -> None:
        super().__init__(message)
        self.code = code
        details: Tree = {"retryAfterSeconds": retry_after} if retry_after else {}
        if name:
            details["name"] = name
        self.status: Tree = {
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": reason, "details": details, "code": code,
        }  # fmt: skip


class Selector(NamedTuple):
    """Which objects a list or watch is about."""

    resource: str
    namespace: str = ""
    fields: tuple[tuple[str, str, bool], ...] = ()  # path, value, wanted or unwanted
    labels: tuple[tuple[str, str], ...] = ()

    def matches(self, thing: Tree | None) -> bool:
        if thing is None or (self.namespace and thing["metadata"].get("namespace") != self.namespace):
            return False
        labels = thing["metadata"].get("labels") or {}
        return all((_field(thing, path) == value) is wanted for path, value, wanted in self.fields) and all(
            labels.get(key) == value for key, value in self.labels
        )


def _field(thing: Tree, path: str) -> str:
    value: Any = thing
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return "" if value is None else str(value)


def selector(resource: str, namespace: str = "", fields: str = "", labels: str = "") -> Selector:
    """A Selector from the query parameters."""
    wanted = []
    for term in filter(None, fields.split(",")):
        path, _, value = term.partition("=")
        wanted.append((path.removesuffix("!"), value.removeprefix("="), not path.endswith("!")))
    pairs = [term.partition("=")[::2] for term in filter(None, labels.split(","))]
    return Selector(resource, namespace, tuple(wanted), tuple((k, v.removeprefix("=")) for k, v in pairs))


class Change(NamedTuple):
    """One step of the store's history: what was there, what is there now."""

    version: int
    resource: str
    old: Tree | None
    new: Tree | None


class Store:
    """All objects. Versions are consecutive numbers, as with etcd."""

    def __init__(self, clock: Clock | None = None, rng: random.Random | None = None) -> None:
        """`rng` makes the UIDs, for runs that must be the same twice."""
        self._random = rng or random.Random()
        self.version = 1000
        self.compacted = 0
        self.history: list[Change] = []
        self.restored_at = 0
        self._objects: dict[tuple[str, str, str], Tree] = {}
        self._clock = clock or TrioClock(EPOCH_NS)
        self._changed: dict[str, trio.Event] = {}  # by resource, for those who wait
        self.on_change: Callable[[Change], None] = lambda change: None

    # --- reading -----------------------------------------------------------------------------------

    def get(self, resource: str, namespace: str, name: str) -> Tree:
        """The object; raises Refused 404."""
        thing = self._objects.get((resource, namespace, name))
        if thing is None:
            raise Refused(404, "NotFound", f'{resource} "{name}" not found', name=name)
        return thing

    def list(self, wanted: Selector) -> list[Tree]:
        """The objects of a selector, by namespace and name."""
        return [
            thing
            for key, thing in sorted(self._objects.items())
            if key[0] == wanted.resource and wanted.matches(thing)
        ]

    async def wait_for_change(self, resource: str) -> None:
        """Returns when something of this resource was written."""
        await self._changed.setdefault(resource, trio.Event()).wait()

    # --- writing -----------------------------------------------------------------------------------

    def create(self, resource: str, namespace: str, new: Tree) -> Tree:
        """A new object; raises Refused 409, 422."""
        kind = KINDS[resource]
        thing: Tree = copied(new)
        metadata = thing.setdefault("metadata", {})
        if kind.namespaced:
            metadata["namespace"] = metadata.get("namespace") or namespace or "default"
        place = (resource, metadata.get("namespace", ""))
        if not metadata.get("name"):
            if not metadata.get("generateName"):
                raise Refused(422, "Invalid", f"{kind.kind} is invalid: metadata.name: Required value")
            names = (metadata["generateName"] + self._uuid().hex[:5] for _ in itertools.count())
            metadata["name"] = next(name for name in names if (*place, name) not in self._objects)
        key = (*place, metadata["name"])
        if key in self._objects:
            raise Refused(409, "AlreadyExists", f'{resource} "{metadata["name"]}" already exists')
        metadata["uid"] = str(self._uuid())
        metadata["creationTimestamp"] = rfc3339(self._clock.now_ns())
        metadata["managedFields"] = [
            {"manager": "test", "operation": "Update", "apiVersion": kind.group_version,
             "fieldsV1": {"f:spec": {f"f:{key}": {} for key in thing.get("spec") or {}}}}
        ]  # fmt: skip
        thing = {"kind": kind.kind, "apiVersion": kind.group_version, **thing}
        if resource == "pods":
            thing.setdefault("status", {}).setdefault("phase", "Pending")
        return self._write(key, thing)

    def update(self, resource: str, namespace: str, name: str, thing: Tree, subresource: str = "") -> Tree:
        """Replaces an object or its status; raises Refused 404, 409."""
        old = self.get(resource, namespace, name)
        metadata = thing.get("metadata") or {}
        self._check(old, resource, metadata.get("uid"), metadata.get("resourceVersion"), 409)
        return self._replace(resource, old, copied(thing), subresource)

    def patch(
        self, resource: str, namespace: str, name: str, patch: Tree, strategic: bool, subresource: str = ""
    ) -> Tree:
        """Patches an object or its status; raises Refused 404, 409 (version), 422 (uid)."""
        old = self.get(resource, namespace, name)
        metadata = patch.get("metadata") or {}
        self._check(old, resource, metadata.get("uid"), metadata.get("resourceVersion"), 422)
        merge = strategic_merge if strategic else merge_patch
        return self._replace(resource, old, merge(old, patch), subresource)

    def delete(self, resource: str, namespace: str, name: str, options: Tree | None = None) -> Tree:
        """Deletes, or begins to; raises Refused 404, 409."""
        old = self.get(resource, namespace, name)
        options = options or {}
        conditions = options.get("preconditions") or {}
        self._check(old, resource, conditions.get("uid"), conditions.get("resourceVersion"), 409)
        grace = self._grace(resource, old, options.get("gracePeriodSeconds"))
        metadata = old["metadata"]
        if not grace and not metadata.get("finalizers"):
            return self._remove((resource, metadata.get("namespace", ""), name))
        known = metadata.get("deletionGracePeriodSeconds")
        if known is not None and (metadata.get("finalizers") or known <= grace):
            return old
        new = copied(old)
        began = self._clock.now_ns()
        if known is not None:
            began = parse_rfc3339(metadata["deletionTimestamp"]) - known * NANOSECONDS
        new["metadata"]["deletionTimestamp"] = rfc3339(began + grace * NANOSECONDS)
        new["metadata"]["deletionGracePeriodSeconds"] = grace
        return self._write((resource, metadata.get("namespace", ""), name), new)

    def set_status(self, resource: str, namespace: str, name: str, **status: Any) -> Tree:
        """For tests: a strategic merge of some status fields."""
        return self.patch(resource, namespace, name, {"status": status}, True, "status")

    # --- an operator's doings ----------------------------------------------------------------------

    def compact(self) -> None:
        """Forgets the history: versions before now have expired."""
        self.compacted = self.version

    def advance(self, versions: int = 1) -> None:
        """Something nobody here watches has been written; all watches look again."""
        self.version += versions
        for resource in list(self._changed):
            self._wake(resource)

    def backup(self) -> tuple[int, dict[tuple[str, str, str], Tree]]:
        """What `restore` takes."""
        return self.version, _all_copied(self._objects)

    def restore(self, saved: tuple[int, dict[tuple[str, str, str], Tree]]) -> None:
        """etcd put back to an older state: the version goes back, watches learn nothing of it."""
        self.version, objects = saved
        self._objects = _all_copied(objects)
        self.history = [change for change in self.history if change.version <= self.version]
        self.restored_at = len(self.history)

    # --- helpers -----------------------------------------------------------------------------------

    def _check(self, old: Tree, resource: str, uid: str | None, version: str | None, uid_code: int) -> None:
        metadata = old["metadata"]
        name = metadata["name"]
        if uid and uid != metadata["uid"]:
            if uid_code == 422:
                raise Refused(422, "Invalid", f'{resource} "{name}" is invalid: metadata.uid: Invalid value')
            message = (
                f'Operation cannot be fulfilled on {resource} "{name}": Precondition failed: '
                f"UID in precondition: {uid}, UID in object meta: {metadata['uid']}"
            )
            raise Refused(409, "Conflict", message)
        if version and version != metadata["resourceVersion"]:
            raise Refused(
                409, "Conflict",
                f'Operation cannot be fulfilled on {resource} "{name}": the object has been modified; '
                "please apply your changes to the latest version and try again",
            )  # fmt: skip

    def _replace(self, resource: str, old: Tree, new: Tree, subresource: str) -> Tree:
        """Writes what the (sub)resource may change and keeps the rest."""
        kept = old["metadata"]
        metadata = {**(new.get("metadata") or {})}
        for field in (
            "name", "namespace", "uid", "creationTimestamp", "deletionTimestamp",
            "deletionGracePeriodSeconds", "managedFields",
        ):  # fmt: skip
            metadata.pop(field, None)
            if field in kept:
                metadata[field] = kept[field]
        if subresource:
            merged = {**old, "status": new.get("status") or {}}
            if resource == "nodes":
                merged["metadata"] = metadata
        else:
            merged = {**old, **new, "metadata": metadata}
            if KINDS[resource].has_status:
                merged.pop("status", None)
                if "status" in old:
                    merged["status"] = old["status"]
        metadata = merged["metadata"]
        key = (resource, metadata.get("namespace", ""), metadata["name"])
        if "deletionTimestamp" in metadata and not metadata.get("finalizers") and kept.get("finalizers"):
            return self._remove(key)
        metadata = {k: v for k, v in metadata.items() if k != "resourceVersion"}
        same_metadata = metadata == {k: v for k, v in kept.items() if k != "resourceVersion"}
        if same_metadata and {**merged, "metadata": 0} == {**old, "metadata": 0}:
            return old  # nothing changes: no new version
        return self._write(key, copied(merged))

    def _uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self._random.getrandbits(128), version=4)

    def _grace(self, resource: str, old: Tree, asked: int | None) -> int:
        if resource != "pods" or not (old.get("spec") or {}).get("nodeName"):
            return 0
        if (old.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            return 0
        if asked is not None:
            return max(asked, 0)
        return int(old["spec"].get("terminationGracePeriodSeconds", 30))

    def _write(self, key: tuple[str, str, str], thing: Tree) -> Tree:
        old = self._objects.get(key)
        self.version += 1
        thing["metadata"]["resourceVersion"] = str(self.version)
        self._objects[key] = thing
        self._record(Change(self.version, key[0], old, thing))
        return thing

    def _remove(self, key: tuple[str, str, str]) -> Tree:
        old = self._objects.pop(key)
        self.version += 1
        last = copied(old)
        last["metadata"]["resourceVersion"] = str(self.version)
        self._record(Change(self.version, key[0], last, None))
        return last

    def _record(self, change: Change) -> None:
        self.history.append(change)
        self._wake(change.resource)
        self.on_change(change)

    def _wake(self, resource: str) -> None:
        if (changed := self._changed.pop(resource, None)) is not None:
            changed.set()


def encode(thing: Tree) -> bytes:
    """Compact JSON."""
    return msgspec.json.encode(thing)


def copied(thing: Tree) -> Tree:
    """An object of its own; by way of JSON, which takes a twentieth of the time of `copy.deepcopy`."""
    return msgspec.json.decode(encode(thing), type=dict[str, Any])


def _all_copied(objects: dict[tuple[str, str, str], Tree]) -> dict[tuple[str, str, str], Tree]:
    return {key: copied(thing) for key, thing in objects.items()}


def list_object(resource: str, items: Iterable[Tree], metadata: Tree) -> Tree:
    """A List."""
    kind = KINDS[resource]
    bare = [{k: v for k, v in item.items() if k not in ("kind", "apiVersion")} for item in items]
    return {
        "kind": f"{kind.kind}List", "apiVersion": kind.group_version, "metadata": metadata, "items": bare,
    }  # fmt: skip
