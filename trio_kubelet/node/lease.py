"""The node's lease: a sign of life in `kube-node-lease` that is cheaper than a status.

The node controller calls a node unreachable when neither lease nor status was renewed. So this task shares
nothing with those that report pods: it has no queue, and each of its requests has a deadline.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
import trio

from trio_kubelet.api import v1
from trio_kubelet.api.timestamps import rfc3339_micro
from trio_kubelet.common.backoff import Pauses, generator
from trio_kubelet.common.clock import Clock
from trio_kubelet.common.log import get_logger
from trio_kubelet.kube.client import KubeClient
from trio_kubelet.kube.errors import APIError, APIFailure
from trio_kubelet.kube.reflector import LOGGED_FAILURES

log = get_logger(__name__)

NAMESPACE: Final = "kube-node-lease"
LEASES: Final = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
RENEW_FRACTION: Final = 0.25
JITTER: Final = 0.04
TRIES: Final = 5
PAUSES: Final = Pauses(0.2, 7.0, jitter=JITTER)


class LeaseSettings(msgspec.Struct, frozen=True):
    """Whose lease it is and how long it lasts, in seconds."""

    node_name: str
    duration: int = 40


def renewed(base: v1.Lease | None, settings: LeaseSettings, owner_uid: str, now_ns: int) -> v1.Lease:
    """The lease to write: a new one, or `base` with a new time. A lease whose owner is a Node that was there
    before gets the present one, lest it be collected with the other.
    """
    name = settings.node_name
    if base is None:
        base = v1.Lease(
            api_version="coordination.k8s.io/v1",
            kind="Lease",
            metadata=v1.ObjectMeta(name=name, namespace=NAMESPACE),
            spec=v1.LeaseSpec(holder_identity=name),
        )
    spec = msgspec.structs.replace(
        base.spec, lease_duration_seconds=settings.duration, renew_time=rfc3339_micro(now_ns)
    )
    owners = base.metadata.owner_references
    if owner_uid and (not owners or _is_stale(owners, name, owner_uid)):
        owners = [v1.OwnerReference(api_version="v1", kind="Node", name=name, uid=owner_uid)]
    metadata = msgspec.structs.replace(base.metadata, owner_references=owners)
    return msgspec.structs.replace(base, metadata=metadata, spec=spec)


def _is_stale(owners: list[v1.OwnerReference], name: str, uid: str) -> bool:
    return any(owner.kind == "Node" and owner.name == name and owner.uid != uid for owner in owners)


class NodeLease:
    """Renews the lease for ever.

    `owner_uid` finds out the UID of the Node object, "" while there is none; without it no lease is made,
    but one that is there is renewed. May raise APIError and APIUnavailable.
    """

    def __init__(
        self,
        client: KubeClient,
        settings: LeaseSettings,
        owner_uid: Callable[[], Awaitable[str]],
        clock: Clock,
        rng: random.Random | None = None,
    ) -> None:
        self._client = client
        self._settings = settings
        self._owner_uid = owner_uid
        self._clock = clock
        self._random = generator(rng).random
        self._path = f"{LEASES}/{settings.node_name}"
        self._latest: v1.Lease | None = None
        self._owner_changed = trio.Event()
        self._failures = 0

    def owner_changed(self) -> None:
        """The Node has changed: if a lease could not be made for want of it, it is tried again."""
        self._owner_changed.set()

    async def run(self) -> None:
        """Renews until cancelled."""
        period = self._settings.duration * RENEW_FRACTION
        while True:
            self._owner_changed = trio.Event()
            await self.renew()
            with trio.move_on_after(period * (1 + JITTER * self._random())):
                if self._latest is None:
                    await self._owner_changed.wait()
                else:
                    await trio.sleep_forever()

    async def renew(self) -> None:
        """Renews once; tries until there is a lease. What could not be renewed is left to the next time."""
        if self._latest is not None and await self._update(self._latest):
            return
        lease, created = await self._ensure()
        self._latest = lease
        if not created and lease is not None:
            await self._update(lease)

    async def _update(self, base: v1.Lease) -> bool:
        """Whether the lease was renewed, within a few tries."""
        for _ in range(TRIES):
            try:
                owner = await self._known_owner()
                new = renewed(base, self._settings, owner, self._clock.now_ns())
                self._latest = await self._client.update(self._path, new, v1.Lease)
            except APIFailure as exc:
                self._failed("Failed to update lease", exc)
                if exc.not_found:
                    return False
                if isinstance(exc, APIError) and exc.conflict:
                    latest, created = await self._ensure()
                    if created or latest is None:
                        self._latest = latest
                        return created
                    base = latest
            else:
                self._worked()
                return True
        return False

    async def _ensure(self) -> tuple[v1.Lease | None, bool]:
        """The lease that is there, or a new one (True); None if there can be none yet, for want of a Node."""
        failures = 0
        while True:
            try:
                return await self._try_ensure()
            except APIFailure as exc:
                self._failed("Failed to ensure lease exists, will retry", exc)
            failures += 1
            await trio.sleep(PAUSES.after(failures, self._random()))

    async def _try_ensure(self) -> tuple[v1.Lease | None, bool]:
        try:
            return await self._client.get(self._path, v1.Lease), False
        except APIError as exc:
            if not exc.not_found:
                raise
        owner = await self._known_owner()
        if not owner:
            log.v(2).info("No lease yet, the Node is not registered", node=self._settings.node_name)
            return None, False
        lease = renewed(None, self._settings, owner, self._clock.now_ns())
        created = await self._client.create(LEASES, lease, v1.Lease)
        self._worked()
        return created, True

    async def _known_owner(self) -> str:
        try:
            return await self._owner_uid()
        except APIFailure as exc:
            log.v(2).info("The lease's owner is not known yet", node=self._settings.node_name, err=exc)
            return ""

    def _failed(self, what: str, exc: APIFailure) -> None:
        self._failures += 1
        level = log if self._failures <= LOGGED_FAILURES else log.v(4)
        level.error(what, node=self._settings.node_name, err=exc)

    def _worked(self) -> None:
        if self._failures > LOGGED_FAILURES:
            log.info("The lease is renewed again", node=self._settings.node_name)
        self._failures = 0
