"""Which events reach the API server, and as what: client-go's rules, so that a node speaks as others do.

* **Aggregation.** From the tenth different message on with the same object, type and reason, each at most
  ten minutes after the one before, the events become one: "(combined from similar events): …".
* **Counting.** What was said before is not said again: its Event is patched with count and time.
* **Spam filter.** Per source, object and type 25 events at once, then one in five minutes; what is filtered
  counts nevertheless.

All three remember a bounded number of things, least recently used out first, and of a long message only a
hash. No clock, no I/O: `now_ns` is nanoseconds since the epoch.
"""

from __future__ import annotations

import re
import uuid
from collections import OrderedDict
from collections.abc import Mapping
from hashlib import blake2b
from typing import Generic, TypeVar

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.api.timestamps import rfc3339
from trio_kubelet.common.clock import NANOSECONDS
from trio_kubelet.common.token_bucket import TokenBucket

CACHE_SIZE = 4096
MAX_SIMILAR = 10
SIMILAR_WITHIN_NS = 600 * NANOSECONDS
SPAM_BURST = 25
SPAM_REFILL = 300.0
"""Seconds until a source and object may have one more event."""
TYPES = ("Normal", "Warning")
COMBINED = "(combined from similar events): "

_DNS_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")
_LONGEST_NAME = 253
_LONGEST_REMEMBERED = 128

V = TypeVar("V")
Key = tuple[str, ...]


class Write(msgspec.Struct, frozen=True):
    """What to do: create `event`, or patch the one of its name with `patch` (create it if it is gone)."""

    event: v1.Event
    patch: bytes | None = None


class LRU(Generic[V]):
    """A dictionary that forgets what was not used for longest."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._entries: OrderedDict[Key, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> V | None:
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key]

    def put(self, key: Key, value: V) -> None:
        self._entries[key] = value
        self._entries.move_to_end(key)
        if len(self._entries) > self._size:
            self._entries.popitem(last=False)


class _Similar(msgspec.Struct):
    """The different messages said lately, as they are remembered; a dict for its order."""

    messages: dict[str, None]
    last_ns: int


class _Seen(msgspec.Struct, frozen=True):
    """The Event that stands for what was said before."""

    name: str
    count: int
    first_timestamp: str | None


def new_event(
    source: v1.EventSource,
    about: v1.ObjectReference,
    type: str,
    reason: str,
    message: str,
    now_ns: int,
    annotations: Mapping[str, str] | None = None,
) -> v1.Event:
    """An Event as it is before anything is known of others. What has no namespace is said in `default`."""
    return v1.Event(
        api_version="v1",
        kind="Event",
        metadata=v1.ObjectMeta(
            name=event_name(about.name, now_ns),
            namespace=about.namespace or "default",
            annotations=dict(annotations) if annotations else None,
        ),
        involved_object=about,
        type=type,
        reason=reason,
        message=message,
        count=1,
        first_timestamp=rfc3339(now_ns),
        last_timestamp=rfc3339(now_ns),
        source=source,
        reporting_component=source.component,
        reporting_instance=source.host,
    )


def event_name(about: str, now_ns: int) -> str:
    """`<name>.<hexadecimal nanoseconds>`, or a UUID where that is no valid name."""
    name = f"{about}.{now_ns:x}"
    if len(name) <= _LONGEST_NAME and _DNS_SUBDOMAIN.match(name):
        return name
    return str(uuid.uuid5(uuid.NAMESPACE_OID, name))


class EventCorrelator:
    """The three rules, in client-go's order: aggregate, count, filter."""

    def __init__(self) -> None:
        self._similar: LRU[_Similar] = LRU(CACHE_SIZE)
        self._seen: LRU[_Seen] = LRU(CACHE_SIZE)
        self._buckets: LRU[TokenBucket] = LRU(CACHE_SIZE)

    def correlate(self, event: v1.Event, now_ns: int) -> Write | None:
        """What to write for an event; None for nothing."""
        event, key = self._aggregate(event, now_ns)
        write = self._count(event, key)
        return write if self._accept(_spam_key(event), now_ns) else None

    def written(self, event: v1.Event) -> None:
        """The server has this Event now."""
        self._seen.put(_event_key(event), _Seen(event.metadata.name, event.count, event.first_timestamp))

    def _aggregate(self, event: v1.Event, now_ns: int) -> tuple[v1.Event, Key]:
        key = _aggregate_key(event)
        similar = self._similar.get(key)
        if similar is None or now_ns - similar.last_ns > SIMILAR_WITHIN_NS:
            similar = _Similar({}, now_ns)
        similar.messages[_remembered(event.message)] = None
        similar.last_ns = now_ns
        self._similar.put(key, similar)
        if len(similar.messages) < MAX_SIMILAR:
            return event, _event_key(event)
        del similar.messages[next(iter(similar.messages))]
        about = event.involved_object
        combined = new_event(event.source, about, event.type, event.reason, COMBINED + event.message, now_ns)
        return msgspec.structs.replace(combined, reporting_component="", reporting_instance=""), key

    def _count(self, event: v1.Event, key: Key) -> Write:
        seen = self._seen.get(key)
        patch = None
        if seen is not None:
            event = msgspec.structs.replace(
                event,
                metadata=msgspec.structs.replace(event.metadata, name=seen.name),
                count=seen.count + 1,
                first_timestamp=seen.first_timestamp,
            )
            patch = msgspec.json.encode(
                {"count": event.count, "lastTimestamp": event.last_timestamp}
                | ({"message": event.message} if event.message else {})
            )
        self._seen.put(key, _Seen(event.metadata.name, event.count, event.first_timestamp))
        return Write(event, patch)

    def _accept(self, key: Key, now_ns: int) -> bool:
        bucket = self._buckets.get(key) or TokenBucket(1 / SPAM_REFILL, SPAM_BURST)
        self._buckets.put(key, bucket)
        return bucket.try_take(now_ns / NANOSECONDS)


def _spam_key(event: v1.Event) -> Key:
    about = event.involved_object
    return (
        event.source.component, event.source.host,
        about.kind, about.namespace, about.name, about.uid, about.api_version,
        event.type,
    )  # fmt: skip


def _aggregate_key(event: v1.Event) -> Key:
    return (*_spam_key(event), event.reason)


def _event_key(event: v1.Event) -> Key:
    return (*_spam_key(event), event.involved_object.field_path, event.reason, _remembered(event.message))


def _remembered(message: str) -> str:
    """What tells a message from others; thousands are remembered, which may be long."""
    if len(message) <= _LONGEST_REMEMBERED:
        return message
    return blake2b(message.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
