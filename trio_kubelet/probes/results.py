"""What the probes of the node have found, and who hears that it is another than before.

Changed results go out on `updates` to the sync loop; while that has no room they wait here, the latest per
container and kind.
"""

from __future__ import annotations

from typing import Final

import trio

from trio_kubelet.common.listeners import Listeners
from trio_kubelet.observed.probes import ProbeKind, ProbeReadings, ProbeResult, ProbeUpdate, ProbeView

UPDATES_CAPACITY: Final = 100


class Results:
    """Results by kind and container."""

    def __init__(self, *, kept_before_ns: int) -> None:
        """`kept_before_ns`: containers that began earlier keep the readiness they had until probed."""
        self.kept_before_ns = kept_before_ns
        self.changed: Listeners[[str]] = Listeners()  # UIDs of pods with another verdict than before
        self._by_kind: dict[ProbeKind, dict[str, ProbeResult]] = {kind: {} for kind in ProbeKind}
        self._send, self._receive = trio.open_memory_channel[ProbeUpdate](UPDATES_CAPACITY)
        self._waiting: dict[tuple[ProbeKind, str], ProbeUpdate] = {}
        self._something = trio.Event()

    def put(self, kind: ProbeKind, pod_uid: str, container_id: str, result: ProbeResult) -> None:
        """This is the result now; if it is another than before, that is told."""
        if self._by_kind[kind].get(container_id) is result:
            return
        self._by_kind[kind][container_id] = result
        self._waiting[kind, container_id] = ProbeUpdate(kind, pod_uid, container_id, result)
        self._something.set()
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

    def updates(self) -> trio.MemoryReceiveChannel[ProbeUpdate]:
        """Where changed results arrive; it has one reader, the sync loop."""
        return self._receive

    async def deliver(self) -> None:
        """Hands changed results on for ever; only this task waits while there is no room."""
        while True:
            while self._waiting:
                update = self._waiting.pop(next(iter(self._waiting)))
                try:
                    self._send.send_nowait(update)  # those of one moment are to be one piece of news
                except trio.WouldBlock:
                    await self._send.send(update)
            self._something = trio.Event()
            await self._something.wait()
