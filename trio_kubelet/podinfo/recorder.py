"""Events about pods and the node: taken from everywhere, handed to who wants them, never waited for.

Who listens: the log, the pods' stories, the API server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from trio_kubelet.api.v1 import ObjectReference, Pod
from trio_kubelet.common import utf8
from trio_kubelet.common.clock import Clock
from trio_kubelet.common.listeners import Listeners
from trio_kubelet.common.log import get_logger, shortened

log = get_logger(__name__)

LONGEST_MESSAGE = 16 * 1024
"""Characters. What a probe writes, up to 10 KiB, is told in full; commands and paths may be megabytes."""


class PodEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something happened to a pod; `type` is Normal or Warning, `field_path` names a container."""

    pod: Pod
    type: str
    reason: str
    message: str
    field_path: str
    at_ns: int
    annotations: Mapping[str, str] | None = None


class EventRecorder:
    """The recorder of an agent. Messages, which may be long or hold bytes that are no text, become short text
    here, once for all who listen.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.pod_events: Listeners[[PodEvent]] = Listeners()
        self.node_events: Listeners[[str, str, str]] = Listeners()  # type, reason and message
        self.object_events: Listeners[[ObjectReference, str, str, str]] = Listeners()

    def record_node(self, type: str, reason: str, message: str) -> None:
        """Takes an event about the node."""
        self.node_events.tell(type, reason, _text(message))

    def record_object(self, about: ObjectReference, type: str, reason: str, message: str) -> None:
        """Takes an event about an object that is neither."""
        self.object_events.tell(about, type, reason, _text(message))

    def record(
        self,
        pod: Pod,
        type: str,
        reason: str,
        message: str,
        field_path: str = "",
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        """Takes an event."""
        event = PodEvent(
            pod=pod,
            type=type,
            reason=reason,
            message=_text(message),
            field_path=field_path,
            at_ns=self._clock.now_ns(),
            annotations=annotations,
        )
        self.pod_events.tell(event)


def _text(message: str) -> str:
    return utf8.valid(shortened(message, LONGEST_MESSAGE))


def log_event(event: PodEvent) -> None:
    """Writes an event into the log as the kubelet does: warnings always, the rest with -v 3."""
    line = log if event.type == "Warning" else log.v(3)
    line.info(
        "Event occurred",
        object=f"{event.pod.metadata.namespace}/{event.pod.metadata.name}",
        fieldPath=event.field_path,
        kind="Pod",
        apiVersion="v1",
        type=event.type,
        reason=event.reason,
        message=event.message,
    )


def log_node_event(node_name: str) -> Callable[[str, str, str], None]:
    """Writes events about the node into the log."""

    def note(type: str, reason: str, message: str) -> None:
        line = log if type == "Warning" else log.v(3)
        line.info("Event occurred", object=node_name, kind="Node", type=type, reason=reason, message=message)

    return note


def log_object_event(about: ObjectReference, type: str, reason: str, message: str) -> None:
    """Writes an event about any object into the log."""
    line = log if type == "Warning" else log.v(3)
    name = f"{about.namespace}/{about.name}" if about.namespace else about.name
    line.info("Event occurred", object=name, kind=about.kind, type=type, reason=reason, message=message)
