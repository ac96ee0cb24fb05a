"""JSON values to KubeletConfiguration and back.

Decoding by hand instead of with msgspec gives what the kubelet's users need: every wrong field is named at
once with its path, unknown fields are collected instead of refused, and a zero in a field that is no pointer
in Go means "not set". `to_configz` is the way back, with Go's rules for what is left out.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, TypeVar, Union

import msgspec
from msgspec import Meta, Struct

from trio_kubelet.api import quantity
from trio_kubelet.common.duration import format_duration, parse_duration
from trio_kubelet.config.types import API_VERSION, KIND, KubeletConfiguration, json_name

S = TypeVar("S", bound=Struct)
# Present in Go as structs, so written even when nothing is in them.
_ALWAYS_WRITTEN: Final = frozenset(
    {"authentication", "authorization", "x509", "webhook", "anonymous", "memorySwap", "crashLoopBackOff"}
    | {"logging", "flushFrequency", "verbosity", "options", "text", "json", "infoBufferSize"}
    | {"containerRuntimeEndpoint", "numaNode", "limits", "priority", "shutdownGracePeriodSeconds"}
    | {"filePattern", "key", "effect"}
)


@dataclass(slots=True)
class Findings:
    """What decoding found: `errors` make the value unusable, `unknown` fields were skipped.

    `given` are the paths of the fields that were set to something.
    """

    errors: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    given: list[str] = field(default_factory=list)

    def error(self, path: str, reason: str) -> None:
        self.errors.append(f"{path}: {reason}" if path else reason)


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One field of a configuration Struct: its names, its type without markers, and the markers."""

    attribute: str
    name: str
    type: Any
    meta: Mapping[str, Any]
    optional: bool

    @property
    def pointer(self) -> bool:
        return bool(self.meta.get("pointer")) or self.optional

    def is_zero(self, value: object) -> bool:
        """Whether `value` is Go's zero, which a field that is no pointer cannot tell from "not set"."""
        return (value in ("", 0) and value is not False) or (bool(self.meta.get("quantity")) and value == "0")

    @property
    def duration(self) -> bool:
        return bool(self.meta.get("duration"))


@functools.cache
def _hints_of(cls: type[Struct]) -> Mapping[str, Any]:
    """The types of the fields of `cls` with their markers; each is text until somebody asks."""
    return typing.get_type_hints(cls, include_extras=True)


@functools.cache
def specs_of(cls: type[Struct]) -> dict[str, FieldSpec]:
    """The fields of `cls` by JSON name, in the order of declaration."""
    hints = _hints_of(cls)
    specs = {}
    for info in zip(cls.__struct_fields__, cls.__struct_encode_fields__, strict=True):
        kind, meta, optional = _unwrap(hints[info[0]])
        specs[info[1]] = FieldSpec(info[0], info[1], kind, meta, optional)
    return specs


def _unwrap(hint: Any) -> tuple[Any, dict[str, Any], bool]:
    """A type without Annotated and None, what the markers said, and whether None is allowed."""
    meta: dict[str, Any] = {}
    optional = False
    while True:
        origin = typing.get_origin(hint)
        if origin is Annotated:
            for mark in hint.__metadata__:
                if isinstance(mark, Meta):
                    meta.update(mark.extra or {})
                    bounds = {"ge": mark.ge, "le": mark.le}
                    meta.update({key: value for key, value in bounds.items() if value is not None})
            hint = hint.__origin__
        elif origin in (Union, types.UnionType):
            optional = True
            hint = next(arg for arg in typing.get_args(hint) if arg is not type(None))
        else:
            return hint, meta, optional


def json_path(attribute: str) -> str:
    """The path in the file of a dotted attribute: `authentication.x509.client_ca_file`."""
    return ".".join(map(json_name, attribute.split(".")))


def with_field(value: S, attribute: str, new: object) -> S:
    """A copy of `value` with `new` at a dotted attribute."""
    head, _, rest = attribute.partition(".")
    return msgspec.structs.replace(
        value, **{head: with_field(getattr(value, head), rest, new) if rest else new}
    )


def _is_number_text(value: object) -> bool:
    """Whether `value` is a JSON number that the document reader kept as text (`api.yaml.Number`)."""
    return isinstance(value, str) and type(value) is not str


def describe(value: object) -> str:
    """A JSON value in an error message."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return f"the boolean {str(value).lower()}"
    if isinstance(value, int | float) or _is_number_text(value):
        return f"the number {value}"
    if isinstance(value, str):
        return f"the string {value!r}"
    return "a list" if isinstance(value, list) else "an object"


def _decode_scalar(kind: Any, meta: Mapping[str, Any], value: Any) -> Any:
    """One leaf; ValueError gives the reason when `value` does not fit."""
    if meta.get("duration"):
        if meta.get("nanos") and isinstance(value, int) and not isinstance(value, bool):
            return value / 1e9
        if type(value) is not str:
            raise ValueError(f'expected a duration such as "1m30s", got {describe(value)}')
        return parse_duration(value)
    if meta.get("quantity"):
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError(f'expected a quantity such as "500Mi", got {describe(value)}')
        return str(quantity.parse(str(value)))
    if kind is str:
        if type(value) is not str:
            raise ValueError(f"expected a string, got {describe(value)}")
        if "\0" in value:  # the system takes no such path, name or address, and each call would say so anew
            raise ValueError("has a zero byte")
        return value
    if kind is bool:
        if not isinstance(value, bool):
            raise ValueError(f"expected a boolean, got {describe(value)}")
        return value
    if kind is float:
        if isinstance(value, bool) or not (isinstance(value, int | float) or _is_number_text(value)):
            raise ValueError(f"expected a number, got {describe(value)}")
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"expected an integer, got {describe(value)}")
    if not meta["ge"] <= value <= meta["le"]:
        raise ValueError(f"{value} is not between {meta['ge']} and {meta['le']}")
    return value


def _empty(hint: Any) -> Any:
    """What `null` becomes inside a list or a map: Go's zero."""
    kind, meta, _ = _unwrap(hint)
    return "0" if meta.get("quantity") else (typing.get_origin(kind) or kind)()


def _decode(hint: Any, value: Any, path: str, findings: Findings) -> Any:
    """`value` as `hint` says; what does not fit is reported and replaced by None."""
    if value is None:
        return _empty(hint)
    kind, meta, _ = _unwrap(hint)
    origin = typing.get_origin(kind)
    if origin is list:
        if not isinstance(value, list):
            findings.error(path, f"expected a list, got {describe(value)}")
            return None
        (item,) = typing.get_args(kind)
        return [_decode(item, entry, f"{path}[{index}]", findings) for index, entry in enumerate(value)]
    if origin is dict:
        if not isinstance(value, dict):
            findings.error(path, f"expected an object, got {describe(value)}")
            return None
        item = typing.get_args(kind)[1]
        return {key: _decode(item, entry, f"{path}[{key}]", findings) for key, entry in value.items()}
    if origin is Literal:
        return value
    if issubclass(kind, Struct):
        return decode_struct(kind, value, path, findings)
    try:
        return _decode_scalar(kind, meta, value)
    except ValueError as error:
        findings.error(path, str(error))
        return None


def decode_struct(cls: type[S], value: object, path: str, findings: Findings) -> S | None:
    """`value` as `cls`; None when it is no object. Other problems go to `findings` and leave defaults."""
    if not isinstance(value, dict):
        findings.error(path, f"expected an object, got {describe(value)}")
        return None
    specs, hints = specs_of(cls), _hints_of(cls)
    attributes = {}
    for key, entry in value.items():
        here = f"{path}.{key}" if path else str(key)
        spec = specs.get(key)
        if spec is None:
            findings.unknown.append(here)
            continue
        if entry is None:
            if spec.duration and not spec.pointer:  # Go reads these by themselves, and null is no duration
                findings.error(here, "expected a duration, got null")
            continue
        decoded = _decode(hints[spec.attribute], entry, here, findings)
        if decoded is None or (not spec.pointer and spec.is_zero(decoded)):
            continue
        attributes[spec.attribute] = decoded
        if not isinstance(decoded, Struct) and "[" not in here:
            findings.given.append(here)
    return cls(**attributes)


def with_exact_names(cls: type[Struct], raw: Mapping[str, Any]) -> dict[str, Any]:
    """`raw` with the names that the fields of `cls` have, whatever the case they are written in. Of several
    that mean one field the last in order counts, with capitals before small letters.
    """
    specs = specs_of(cls)
    names = {name.lower(): name for name in specs}
    result: dict[str, Any] = {}
    for key in sorted(raw):
        name, value = key if key in specs else names.get(key.lower(), key), raw[key]
        if isinstance(value, dict) and name in specs and isinstance(specs[name].type, type(Struct)):
            value = {**(result.get(name) or {}), **with_exact_names(specs[name].type, value)}
        result[name] = value
    return result


def decode_configuration(raw: Mapping[str, Any]) -> tuple[KubeletConfiguration, Findings]:
    """A configuration file's content with the kubelet's defaults for what it does not say."""
    findings = Findings()
    body = {key: value for key, value in raw.items() if key not in ("kind", "apiVersion")}
    config = decode_struct(KubeletConfiguration, body, "", findings)
    assert config is not None  # `raw` is a mapping
    changes: dict[str, Any] = {}
    # An explicit update frequency used to be the report frequency too.
    if "nodeStatusUpdateFrequency" in findings.given and "nodeStatusReportFrequency" not in findings.given:
        changes["node_status_report_frequency"] = config.node_status_update_frequency
    if "serializeImagePulls" not in findings.given and (config.max_parallel_image_pulls or 0) > 1:
        changes["serialize_image_pulls"] = False
    if config.pod_pids_limit < 0:
        changes["pod_pids_limit"] = -1
    return (msgspec.structs.replace(config, **changes) if changes else config), findings


def to_configz(config: KubeletConfiguration) -> dict[str, Any]:
    """The configuration as v1beta1 JSON, as `/configz` shows it: Go's field order, zero values left out."""
    body = _encode_struct(config)
    body.pop("kind", None)
    body.pop("apiVersion", None)
    return {"kind": KIND, "apiVersion": API_VERSION, **body}


def _encode_struct(value: Struct) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for spec in specs_of(type(value)).values():
        entry = getattr(value, spec.attribute)
        if entry is None:
            if spec.name in _ALWAYS_WRITTEN:
                result[spec.name] = None
        elif spec.duration:
            result[spec.name] = format_duration(entry)
        elif isinstance(entry, Struct):
            result[spec.name] = _encode_struct(entry)
        elif entry or spec.pointer or spec.name in _ALWAYS_WRITTEN:
            result[spec.name] = _encode(entry)
    return result


def _encode(value: Any) -> Any:
    if isinstance(value, list):
        return [_encode(item) for item in value]
    return _encode_struct(value) if isinstance(value, Struct) else value
