"""Claims that pods of this node use, as values (kubelet: `claimInfo`), and what follows from them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec


class PreparedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device that a driver has prepared for a claim. Without `requests` it is for all of them."""

    pool: str
    name: str
    share_id: str | None = None
    requests: tuple[str, ...] = ()
    cdi_ids: tuple[str, ...] = ()

    def serves(self, request: str) -> bool:
        """Whether the device is for a request of the claim; "" means any. Of `gpu/large` the first part says
        which request it is (KEP-4816).
        """
        return not request or not self.requests or request.partition("/")[0] in self.requests


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A claim in use. `drivers`: those that have a part in its allocation, with what they have prepared.

    `prepared`: this agent has prepared it. One from a checkpoint is prepared again when a sandbox is made.
    """

    uid: str
    name: str
    namespace: str
    pods: frozenset[str] = frozenset()
    drivers: Mapping[str, tuple[PreparedDevice, ...]] = {}
    prepared: bool = False

    def used_by(self, pod: str) -> Claim:
        """The claim with one more pod."""
        return msgspec.structs.replace(self, pods=self.pods | {pod})

    def left_by(self, pod: str) -> Claim:
        """The claim without a pod."""
        return msgspec.structs.replace(self, pods=self.pods - {pod})

    def cdi_ids(self, request: str) -> Iterable[str]:
        """CDI devices for one request, "" for all."""
        for driver in sorted(self.drivers):
            for device in self.drivers[driver]:
                if device.serves(request):
                    yield from device.cdi_ids


def in_use(claims: Iterable[Claim]) -> dict[str, int]:
    """How many claims are in use, by driver, and `<any>` for all (metric `dra_resource_claims_in_use`): those
    that are prepared. Of one that an earlier agent has prepared its devices tell.
    """
    counts = {"<any>": 0}
    for claim in claims:
        if not claim.prepared and not any(claim.drivers.values()):
            continue
        counts["<any>"] += 1
        for driver in claim.drivers:
            counts[driver] = counts.get(driver, 0) + 1
    return counts
