"""A plain tree (see `trio_kubelet.api.yaml`) to API Structs, as Kubernetes decodes JSON.

Fields match by exact name, unknown ones are ignored, `null` is "absent", a list element or map value
of `null` is the empty value. A wrong type is an error that names the field; decoding goes on, so that
all of a manifest's type errors are reported at once. msgspec's own `convert` is stricter than that
(`null`) and stops at the first error, hence these readers, compiled once per type.

Quantities come out as `Quantity` (a str with the internal form that the UID needs); whoever keeps
the object makes plain strings of them with `plain`.
"""

from __future__ import annotations

import functools
import re
import types
import typing
from collections.abc import Callable
from sys import intern
from typing import Annotated, Any, Final, NamedTuple, TypeAlias, TypeVar

import msgspec

from trio_kubelet.api import quantity
from trio_kubelet.api.errors import FieldError, ManifestError
from trio_kubelet.api.timestamps import parse_rfc3339, rfc3339
from trio_kubelet.api.tree import json_text
from trio_kubelet.api.v1_generated import Object
from trio_kubelet.api.yaml_scalars import Number, decode_base64

T = TypeVar("T", bound=Object)

Errors: TypeAlias = list[FieldError]
_Reader: TypeAlias = Callable[[Any, str, Errors], Any]

# What json.Marshal leaves unescaped; escaped white space is part of a quantity's text and wrong there.
_QUANTITY_SPACE: Final = " \x85\xa0\u1680\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
_TIME: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{2}):([0-9]{2}):([0-9]{2})([.,][0-9]+)?"
    r"(Z|[-+]([0-9]{2}):([0-9]{2}))",
    re.ASCII,
)
_PLAIN: Final = frozenset({type(None), str, int, bool, bytes})
_KEPT_EMPTY: Final = frozenset({"containers", "sources", "node_selector_terms"})


class Timestamp(str):
    """A moment as the API writes it (whole seconds, UTC); `ns` keeps what was given."""

    __slots__ = ("ns",)

    ns: int

    def __new__(cls, ns: int) -> Timestamp:
        self = str.__new__(cls, rfc3339(ns))
        self.ns = ns
        return self

    def __getnewargs__(self) -> tuple[int]:  # type: ignore[override]
        return (self.ns,)


class TypeName(NamedTuple):
    """What an object says it is."""

    api_version: str
    kind: str


def type_name(tree: Any) -> TypeName:
    """`apiVersion` and `kind` of an object; raises `ManifestError` when they are missing or no text.

    Kubernetes looks for these two, and only these, without regard to case. A version of no group may have a
    slash before it.
    """
    if not isinstance(tree, dict):
        raise ManifestError([FieldError("", f"must be an object, got {_kind_of(tree)}")])
    found = {"apiversion": "", "kind": ""}
    for key, value in tree.items():
        lowered = key.lower()
        if lowered in found and value is not None:
            if not isinstance(value, str) or isinstance(value, Number):
                raise ManifestError([FieldError(key, f"must be text, got {_kind_of(value)}")])
            found[lowered] = value
    if not found["kind"]:
        raise ManifestError([FieldError("kind", "is missing")])
    if not found["apiversion"]:
        raise ManifestError([FieldError("apiVersion", "is missing")])
    return TypeName(found["apiversion"].removeprefix("/"), found["kind"])


def decode(tree: Any, cls: type[T]) -> T:
    """Decode a tree into the Struct; raises `ManifestError` with every type error."""
    errors: Errors = []
    value = _struct_reader(cls)(tree, "", errors)
    if errors:
        raise ManifestError(errors)
    return typing.cast(T, value)


def plain(value: T) -> T:
    """The same object with plain strings for quantities and without empty optional lists and maps.

    Changes the object in place: call it on one that was just decoded.
    """
    for name, item in zip(value.__struct_fields__, msgspec.structs.astuple(value), strict=True):
        if type(item) in _PLAIN:  # as most are
            continue
        changed = _plain(item, name)
        if changed is not item:
            setattr(value, name, changed)
    return value


def _plain(item: Any, name: str) -> Any:
    if isinstance(item, quantity.Quantity | Timestamp):
        return str.__str__(item)
    if isinstance(item, Object):
        return plain(item)
    if isinstance(item, list):
        if not item and name not in _KEPT_EMPTY:
            return None
        if item and isinstance(item[0], Object):
            for element in item:
                plain(element)
    elif isinstance(item, dict):
        if not item:
            return None
        if any(isinstance(entry, quantity.Quantity) for entry in item.values()):
            return {key: _plain(entry, "") for key, entry in item.items()}
    return item


# --- readers ---------------------------------------------------------------------------------------


@functools.cache
def _struct_reader(cls: type[Object]) -> _Reader:
    """The reader of a Struct. Nested readers are looked up when first needed: types are recursive."""
    fields: dict[str, tuple[str, Any]] = {}
    readers: dict[str, _Reader] = {}
    defaults: dict[str, Any] = {}

    def prepare() -> None:
        # Each in one step, `fields` last: the sources read from threads of their own, and a field that is
        # not known yet would be passed over.
        nonlocal defaults, fields
        known = msgspec.structs.fields(cls)
        defaults = {field.name: quantity.ZERO for field in known if _marker(field.type) == "quantity"}
        fields = {field.encode_name: (field.name, field.type) for field in known}

    def read(value: Any, path: str, errors: Errors) -> Any:
        if value is None:
            return cls()
        if not isinstance(value, dict):
            return _wrong(path, "an object", value, errors, cls())
        if not fields:
            prepare()
        members: dict[str, Any] = dict(defaults)
        for key, item in value.items():
            if item is None or key not in fields:
                continue
            name, annotation = fields[key]
            reader = readers.get(key)
            if reader is None:
                reader = readers[key] = _reader(annotation)
            members[name] = reader(item, f"{path}.{key}" if path else key, errors)
        return cls(**members)

    return read


def _reader(annotation: Any) -> _Reader:
    """The reader for a field's annotation."""
    marker = _marker(annotation)
    if marker is not None:
        return _MARKED[marker]
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        return _integer_reader(annotation)
    if origin in (typing.Union, types.UnionType):
        options = [option for option in typing.get_args(annotation) if option is not type(None)]
        return _int_or_string if len(options) > 1 else _reader(options[0])
    if origin is list:
        return _list_reader(typing.get_args(annotation)[0])
    if origin is dict:
        return _map_reader(typing.get_args(annotation)[1])
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    return _struct_reader(annotation)


def _marker(annotation: Any) -> str | None:
    """Quantities and times are strings to Python; the generated types mark them."""
    if typing.get_origin(annotation) is Annotated:
        for meta in annotation.__metadata__:
            if meta.extra:
                return str(meta.extra["kind"])
    return None


def _empty(annotation: Any) -> Any:
    """What `null` becomes inside a list or a map."""
    if _marker(annotation) == "quantity":
        return quantity.ZERO
    if typing.get_origin(annotation) is Annotated:
        return 0
    return annotation()


def _list_reader(element: Any) -> _Reader:
    read_element = _reader(element)

    def read(value: Any, path: str, errors: Errors) -> Any:
        if not isinstance(value, list):
            return _wrong(path, "a list", value, errors, [])
        return [
            _empty(element) if item is None else read_element(item, f"{path}[{index}]", errors)
            for index, item in enumerate(value)
        ]

    return read


def _map_reader(element: Any) -> _Reader:
    read_element = _reader(element)

    def read(value: Any, path: str, errors: Errors) -> Any:
        if not isinstance(value, dict):
            return _wrong(path, "an object", value, errors, {})
        return {
            key: _empty(element) if item is None else read_element(item, f"{path}[{key}]", errors)
            for key, item in value.items()
        }

    return read


def _integer_reader(annotation: Any) -> _Reader:
    (meta,) = annotation.__metadata__
    low, high = meta.ge, meta.le

    def read(value: Any, path: str, errors: Errors) -> Any:
        if value == "-0" and isinstance(value, Number):
            return 0
        if not isinstance(value, int) or isinstance(value, bool):
            return _wrong(path, "an integer", value, errors, 0)
        if not low <= value <= high:
            errors.append(FieldError(path, f"{value} is out of range for {high.bit_length() + 1} bits"))
            return 0
        return value

    return read


def _text(value: Any, path: str, errors: Errors) -> Any:
    if not isinstance(value, str) or isinstance(value, Number):
        return _wrong(path, "text", value, errors, "")
    return intern(value) if type(value) is str else value  # pods of a node have most texts in common


def _binary(value: Any, path: str, errors: Errors) -> Any:
    """Bytes are base64 text; what they are is never quoted."""
    try:
        if isinstance(value, str) and not isinstance(value, Number):
            return decode_base64(value)
    except ValueError:
        pass
    errors.append(FieldError(path, "must be base64 text"))
    return b""


def _boolean(value: Any, path: str, errors: Errors) -> Any:
    return value if isinstance(value, bool) else _wrong(path, "true or false", value, errors, False)


def _int_or_string(value: Any, path: str, errors: Errors) -> Any:
    if isinstance(value, str) and not isinstance(value, Number):
        return value
    return _int32(value, path, errors)


_int32: Final = _integer_reader(Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)])


def _quantity(value: Any, path: str, errors: Errors) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | str):
        return _wrong(path, "a quantity", value, errors, quantity.ZERO)
    try:
        return quantity.parse(str(value).strip(_QUANTITY_SPACE))
    except quantity.QuantityError as exc:
        errors.append(FieldError(path, f"{value!r} is not a quantity: {exc}"))
        return quantity.ZERO


def _time(value: Any, path: str, errors: Errors) -> Any:
    if not isinstance(value, str) or isinstance(value, Number):
        return _wrong(path, "a time", value, errors, None)
    if not _is_time(value):
        errors.append(FieldError(path, f"{value!r} is not an RFC 3339 time"))
        return None
    return Timestamp(parse_rfc3339(value))


def _is_time(text: str) -> bool:
    match = _TIME.fullmatch(text)
    if match is None:
        return False
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    zone_hour, zone_minute = (int(part or 0) for part in match.groups()[8:10])
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    days = (31, 29 if leap else 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
    return (
        1 <= month <= 12
        and 1 <= day <= days[month - 1]
        and hour < 24
        and minute < 60
        and second < 60
        and zone_hour <= 24
        and zone_minute < 60
    )


def _undecoded(value: Any, path: str, errors: Errors) -> Any:
    return msgspec.Raw(json_text(value, by_name=True).encode())


_MARKED: Final[dict[str, _Reader]] = {"quantity": _quantity, "time": _time}
_SCALARS: Final[dict[Any, _Reader]] = {str: _text, bool: _boolean, bytes: _binary, msgspec.Raw: _undecoded}


def _wrong(path: str, wanted: str, value: Any, errors: Errors, instead: Any) -> Any:
    errors.append(FieldError(path, f"must be {wanted}, got {_kind_of(value)}"))
    return instead


def _kind_of(value: Any) -> str:
    """How to call a value of the tree in an error."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | Number):
        return f"the number {value}"
    if isinstance(value, str):
        return f"the text {value[:40]!r}"
    return "a list" if isinstance(value, list) else "an object"
