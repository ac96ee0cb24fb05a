"""The last events of this node, for who looks at the node itself: `get events`, the node's page.

The API server keeps events for an hour, and a node without one keeps none. Equal events are one entry with a
count, as `kubectl get events` shows them; memory is bounded by their number and by the length of a message.
"""

from __future__ import annotations

import msgspec

from trio_kubelet.common.clock import Clock
from trio_kubelet.common.listeners import Listeners
from trio_kubelet.podinfo.recorder import PodEvent

LONGEST_MESSAGE = 1024
"""Characters. The recorder lets more through for those who show an event once; here a thousand are kept."""


class LoggedEvent(msgspec.Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    """An event with how often and when it came; `number` grows with each event, so that it tells what is new.

    `namespace`, `uid` and `field_path` are empty for the node's own.
    """

    number: int
    first_ns: int
    last_ns: int
    count: int
    type: str
    reason: str
    message: str
    kind: str
    name: str
    namespace: str = ""
    uid: str = ""
    field_path: str = ""


class EventLog:
    """The newest `size` entries. `record_pod` and `record_node` are listeners of an `EventRecorder`."""

    def __init__(self, node_name: str, clock: Clock, size: int = 1000) -> None:
        self._node_name = node_name
        self._clock = clock
        self._size = size
        self._entries: dict[tuple[str, ...], LoggedEvent] = {}  # by what is equal; the newest at the end
        self._number = 0
        self.changed: Listeners[[LoggedEvent]] = Listeners()  # each entry that is new or has counted up

    def record_pod(self, event: PodEvent) -> None:
        """Takes an event about a pod or one of its containers."""
        meta = event.pod.metadata
        about = ("Pod", meta.name, meta.namespace, meta.uid, event.field_path)
        self._take(about, event.type, event.reason, event.message, event.at_ns)

    def record_node(self, type: str, reason: str, message: str) -> None:
        """Takes an event about the node."""
        self._take(("Node", self._node_name, "", "", ""), type, reason, message, self._clock.now_ns())

    def entries(self, after: int = 0) -> list[LoggedEvent]:
        """What came after the event of number `after`, oldest first; all where that is one of an earlier
        agent's, of which this one has not so many yet.
        """
        found = []
        for entry in reversed(self._entries.values()):
            if entry.number <= after <= self._number:
                break
            found.append(entry)
        return found[::-1]

    def _take(
        self, about: tuple[str, str, str, str, str], type: str, reason: str, message: str, at_ns: int
    ) -> None:
        message = message[:LONGEST_MESSAGE]
        key = (*about, type, reason, message)
        before = self._entries.pop(key, None)
        self._number += 1
        kind, name, namespace, uid, field_path = about
        entry = LoggedEvent(
            number=self._number,
            first_ns=at_ns if before is None else before.first_ns,
            last_ns=at_ns,
            count=1 if before is None else before.count + 1,
            type=type,
            reason=reason,
            message=message,
            kind=kind,
            name=name,
            namespace=namespace,
            uid=uid,
            field_path=field_path,
        )
        self._entries[key] = entry
        if len(self._entries) > self._size:
            del self._entries[next(iter(self._entries))]
        self.changed.tell(entry)
