"""One watch event or list page from bytes to values.

The type of an event is read first, its object stays raw until it is known what it is: bookmarks carry
objects that no typed decoder takes (`"containers": null`), errors carry a Status, and of a deleted object
only the name matters. What the types do not have (`managedFields` first of all) is skipped, not built.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Generic, NamedTuple, TypeVar

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.api.decode import decode
from trio_kubelet.api.errors import ManifestError
from trio_kubelet.common.deep_json import decode_deep
from trio_kubelet.kube.errors import APIError, APIUnavailable, error_from

T = TypeVar("T", bound=v1.Object)

INITIAL_EVENTS_END = "k8s.io/initial-events-end"


class Upsert(NamedTuple, Generic[T]):
    """An object as it is now."""

    key: str
    resource_version: str
    object: T


class Removal(NamedTuple):
    """An object is gone."""

    key: str
    resource_version: str


class Bookmark(NamedTuple):
    """Nothing happened up to this version; `initial_end`: all initial objects have been sent."""

    resource_version: str
    initial_end: bool


class Unreadable(NamedTuple):
    """An object that cannot be decoded."""

    key: str
    resource_version: str
    reason: str


class Page(NamedTuple, Generic[T]):
    """A page of a list; `continue_` is empty on the last one."""

    resource_version: str
    continue_: str
    items: list[Upsert[T]]
    unreadable: list[Unreadable]


class _Meta(msgspec.Struct):
    name: str = ""
    namespace: str = ""
    resourceVersion: str = ""  # noqa: N815
    annotations: dict[str, str] | None = None


class _Head(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _List(msgspec.Struct):
    metadata: v1.ListMeta = msgspec.field(default_factory=v1.ListMeta)
    items: list[msgspec.Raw] | None = None


class _TypedEvent(msgspec.Struct, Generic[T]):
    object: T


class _TypedList(msgspec.Struct, Generic[T]):
    metadata: v1.ListMeta = msgspec.field(default_factory=v1.ListMeta)
    items: list[T] | None = None


# How the API server begins the events that carry a whole object; they are most of all events.
_USUAL = (b'{"type":"MODIFIED","object":', b'{"type":"ADDED","object":')

_decode_event = msgspec.json.Decoder(_Event).decode
_decode_head = msgspec.json.Decoder(_Head).decode
_decode_list = msgspec.json.Decoder(_List).decode


def key_of(namespace: str, name: str) -> str:
    """`namespace/name`, or the name alone for what has no namespace."""
    return f"{namespace}/{name}" if namespace else name


class ObjectDecoder(Generic[T]):
    """Decodes events and lists of one type. What it decodes with is made when it is first needed: that
    takes a millisecond, and an agent that starts makes many.
    """

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind

    @cached_property
    def _decode(self) -> Callable[[bytes | msgspec.Raw], T]:
        return msgspec.json.Decoder(self._kind).decode

    @cached_property
    def _decode_usual(self) -> Callable[[bytes], _TypedEvent[T]]:
        return msgspec.json.Decoder(_TypedEvent[self._kind]).decode  # type: ignore[name-defined]

    @cached_property
    def _decode_list(self) -> Callable[[bytes], _TypedList[T]]:
        return msgspec.json.Decoder(_TypedList[self._kind]).decode  # type: ignore[name-defined]

    def event(self, data: bytes) -> Upsert[T] | Removal | Bookmark | Unreadable | APIError:
        """What an event says; an ERROR event as the error. Raises APIUnavailable when it is no event."""
        return decode_deep(self._event, data)

    def _event(self, data: bytes) -> Upsert[T] | Removal | Bookmark | Unreadable | APIError:
        try:
            if data.startswith(_USUAL):  # in one pass over the bytes instead of two
                try:
                    return _upsert(self._decode_usual(data).object)
                except msgspec.ValidationError:
                    pass  # the long way tells whether and what is wrong
            event = _decode_event(data)
            if event.type in ("ADDED", "MODIFIED"):
                return self._object(event.object)
            if event.type == "ERROR":
                status = msgspec.json.decode(event.object, type=v1.Status)
                return error_from(status.code or 500, bytes(event.object))
            meta = _decode_head(event.object).metadata
        except msgspec.DecodeError as exc:
            raise APIUnavailable(f"not a watch event: {exc}") from exc
        if event.type == "BOOKMARK":
            return Bookmark(meta.resourceVersion, (meta.annotations or {}).get(INITIAL_EVENTS_END) == "true")
        if event.type == "DELETED":
            return Removal(key_of(meta.namespace, meta.name), meta.resourceVersion)
        raise APIUnavailable(f"not a watch event: type {event.type!r}")

    def page(self, data: bytes) -> Page[T]:
        """One page of a list. Raises APIUnavailable when it is none."""
        try:
            with _without_collector():
                return decode_deep(self._page, data)
        except msgspec.DecodeError as exc:
            raise APIUnavailable(f"not a list: {exc}") from exc

    def _page(self, data: bytes) -> Page[T]:
        try:
            typed = self._decode_list(data)
        except msgspec.ValidationError:
            pass  # one object by one, to find the unreadable ones
        else:
            meta = typed.metadata
            return Page(meta.resource_version, meta.continue_, list(map(_upsert, typed.items or ())), [])
        page = _decode_list(data)
        found = [self._object(item) for item in page.items or ()]
        return Page(
            page.metadata.resource_version,
            page.metadata.continue_,
            [item for item in found if isinstance(item, Upsert)],
            [item for item in found if isinstance(item, Unreadable)],
        )

    def _object(self, data: msgspec.Raw) -> Upsert[T] | Unreadable:
        try:
            found = self._decode(data)
        except msgspec.ValidationError:
            # Rare: nulls where Go reads "empty". The slow reader takes those, and names what is really wrong.
            try:
                found = decode(json.loads(bytes(data)), self._kind)
            except (ManifestError, ValueError) as exc:
                meta = _decode_head(data).metadata
                # The reason quotes what was found, which is nobody's business here.
                reason = "a value of the wrong kind" if self._kind is v1.Secret else str(exc)
                return Unreadable(key_of(meta.namespace, meta.name), meta.resourceVersion, reason)
        return _upsert(found)


def _upsert(found: T) -> Upsert[T]:
    meta: v1.ObjectMeta = found.metadata  # type: ignore[attr-defined]
    return Upsert(key_of(meta.namespace, meta.name), meta.resource_version, found)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Tens of thousands of new objects would set the garbage collector off again and again, for nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
