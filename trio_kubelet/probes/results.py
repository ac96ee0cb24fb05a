"""What the probes of the node have found, and who hears that it is another than before."""

from __future__ import annotations

from trio_kubelet.common.listeners import Listeners
from trio_kubelet.observed.probes import ProbeKind, ProbeReadings, ProbeResult, ProbeUpdate, ProbeView


class Results:
    """Results by kind and container."""

    def __init__(self, *, kept_before_ns: int) -> None:
        """`kept_before_ns`: containers that began earlier keep the readiness they had until probed."""
        self.kept_before_ns = kept_before_ns
        self.verdicts: Listeners[[ProbeUpdate]] = Listeners()  # those that are others than before
        self.changed: Listeners[[str]] = Listeners()  # UIDs of their pods
        self._by_kind: dict[ProbeKind, dict[str, ProbeResult]] = {kind: {} for kind in ProbeKind}

    def put(self, kind: ProbeKind, pod_uid: str, container_id: str, result: ProbeResult) -> None:
        """This is the result now; if it is another than before, that is told."""
        if self._by_kind[kind].get(container_id) is result:
            return
        self._by_kind[kind][container_id] = result
        self.verdicts.tell(ProbeUpdate(kind, pod_uid, container_id, result))
        self.changed.tell(pod_uid)

    def begin(self, kind: ProbeKind, container_id: str, result: ProbeResult) -> None:
        """This holds until the first run, which is told to nobody."""
        self._by_kind[kind][container_id] = result

    def drop(self, kind: ProbeKind, container_id: str) -> None:
        """There is no result any more, which is told to nobody."""
        self._by_kind[kind].pop(container_id, None)

    def view(self) -> ProbeView:
        """Readiness and startup results, for the pods' status."""
        return ProbeView(
            active=True,
            readiness=self._by_kind[ProbeKind.READINESS],
            startup=self._by_kind[ProbeKind.STARTUP],
            kept_before_ns=self.kept_before_ns,
        )

    def readings(self) -> ProbeReadings:
        """Liveness and startup results, for what is to be killed or started."""
        return ProbeReadings(
            liveness=self._by_kind[ProbeKind.LIVENESS], startup=self._by_kind[ProbeKind.STARTUP]
        )
