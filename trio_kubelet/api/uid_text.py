"""The text whose hash is a static pod's UID.

The kubelet names a static pod by hashing a dump of its internal pod object, so the dump has to be
reproduced character by character: Go type names, field order, unset pointers as `<nil>`. Those names
and that order are data (`internal_layout.json`); from them one template per type is compiled, with
everything that is held by value written into it, so that a pod costs a few dozen string formattings.

The pod handed in is a defaulted v1 Pod as `trio_kubelet.api.decode` makes it (quantities and times
still in their internal form). Where the internal pod differs from v1 (host namespaces live in the
security context, some fields have other names) the table below says from where a field is read.
"""

from __future__ import annotations

import functools
import json
import pathlib
import typing
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, TypeAlias, cast

import msgspec

from trio_kubelet.api import quantity, v1
from trio_kubelet.api.decode import Timestamp
from trio_kubelet.api.managed_fields import ManifestPod

_Writer: TypeAlias = Callable[[Any], str]
"""Writes a value that is there, without its type name."""
_Slot: TypeAlias = tuple[_Writer | None, str]
"""The writer of a field, None for a value that `%s` writes as it should, and what stands for None."""

_NIL: Final = "<nil>"
_SECONDS_TO_UNIX_EPOCH: Final = 62_135_596_800
"""Go counts from the year 1."""

# A local time zone of UTC, as a node has it; the dump contains the zone of every time.
_UTC_ZONE: Final = "{name:(string)UTC offset:(int)0 isDST:(bool)false}"
_UTC: Final = (
    f"{{name:(string)Local zone:([]time.zone)[{_UTC_ZONE}] "
    "tx:([]time.zoneTrans)[{when:(int64)-9223372036854775808 index:(uint8)0 isstd:(bool)false "
    "isutc:(bool)false}] extend:(string)UTC0 cacheStart:(int64)-9223372036854775808 "
    f"cacheEnd:(int64)9223372036854775807 cacheZone:(*time.zone){_UTC_ZONE}}}"
)

_RENAMED: Final = {
    ("core.AzureDiskVolumeSource", "DataDiskURI"): "disk_uri",
    ("core.ContainerStatus", "LastTerminationState"): "last_state",
    ("core.GlusterfsVolumeSource", "EndpointsName"): "endpoints",
    ("core.ISCSIVolumeSource", "SessionCHAPAuth"): "chap_auth_session",
    ("core.ISCSIVolumeSource", "DiscoveryCHAPAuth"): "chap_auth_discovery",
    ("core.RBDVolumeSource", "CephMonitors"): "monitors",
    ("core.RBDVolumeSource", "RBDImage"): "image",
    ("core.RBDVolumeSource", "RBDPool"): "pool",
    ("core.RBDVolumeSource", "RadosUser"): "user",
    ("core.Pod", "ObjectMeta"): "metadata",
    ("core.PersistentVolumeClaimTemplate", "ObjectMeta"): "metadata",
}
# Host namespaces: v1 has them in the pod spec, the internal pod in its security context.
_FROM_SPEC: Final = {
    "HostNetwork": "host_network",
    "HostPID": "host_pid",
    "HostIPC": "host_ipc",
    "ShareProcessNamespace": "share_process_namespace",
    "HostUsers": "host_users",
}
# The conversion drops them.
_ALWAYS_EMPTY: Final = frozenset({("v1.TypeMeta", "Kind"), ("v1.TypeMeta", "APIVersion")})


def uid_text(pod: ManifestPod) -> str:
    """The dump of a defaulted pod, before anything of the node was added to it."""
    return f"(*core.Pod){_struct_writer('core.Pod', ManifestPod)(pod)}"


def internal_json(go_type: str, value: Any) -> Any:
    """A value of the internal pod as JSON has it, which is how errors show objects: fields by their names in
    Go and in its order, unset ones as null. Types that all of the API shares (`v1.…`) are as in manifests.
    """
    go_type = go_type.removeprefix("*")
    if isinstance(value, list):
        return [internal_json(go_type.removeprefix("[]"), item) for item in value]
    if not isinstance(value, msgspec.Struct):
        return value
    by_lower = {field.encode_name.lower(): field for field in msgspec.structs.fields(value)}
    shown = {}
    for name, field_type in _layout()[go_type]:
        field = by_lower[name.lower()]
        item = internal_json(field_type, getattr(value, field.name))
        if not go_type.startswith("v1."):
            shown[name] = item
        elif item not in (None, [], {}):
            shown[field.encode_name] = item
    return shown


@functools.cache
def _layout() -> Mapping[str, Any]:
    source = pathlib.Path(__file__).with_name("internal_layout.json").read_bytes()
    return cast(Mapping[str, Any], json.loads(source)["types"])


@functools.cache
def _struct_writer(go_type: str, cls: type[v1.Object]) -> _Writer:
    """Compile the writer of a struct type."""
    template = _Template()
    _inline(template, go_type, cls, "", "")
    text = "{" + "".join(template.parts) + "}"
    if not template.paths:
        return lambda value: text
    get = attrgetter(*template.paths)
    slots: tuple[_Slot, ...] = ()

    def write(value: Any) -> str:
        nonlocal slots
        if not slots:  # in one step: the sources write from threads of their own
            slots = tuple(make() for make in template.slots)
        values = get(value) if len(slots) > 1 else (get(value),)
        return text % tuple(
            [
                item if writer is None else nil if item is None else writer(item)
                for (writer, nil), item in zip(slots, values, strict=True)
            ]
        )

    return write


class _Template:
    """A growing format string, the attribute path behind each `%s` and how to make its slot.

    Slots are made late because types refer to each other in cycles.
    """

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.paths: list[str] = []
        self.slots: list[Callable[[], _Slot]] = []


def _inline(template: _Template, go_type: str, cls: type[v1.Object], prefix: str, spec: str) -> None:
    """Append the fields of a struct, those held by value in place.

    prefix: the path of the object below the one the template is for; spec: that of the pod spec.
    """
    annotations = {field.name: field.type for field in msgspec.structs.fields(cls)}
    by_lower = {field.encode_name.lower(): field.name for field in msgspec.structs.fields(cls)}
    for position, (name, field_type, *embedded) in enumerate(_layout()[go_type]):
        template.parts.append(f"{' ' if position else ''}{name}:({field_type})")
        if (go_type, name) in _ALWAYS_EMPTY:
            continue
        if name == "ManagedFields" and cls is v1.ObjectMeta:  # of a claim's template, where they are refused
            template.parts.append(_NIL)
            continue
        if go_type == "core.PodSecurityContext" and name in _FROM_SPEC:
            attribute = _FROM_SPEC[name]
            annotation = {field.name: field.type for field in msgspec.structs.fields(v1.PodSpec)}[attribute]
            _append(template, field_type, annotation, spec + attribute)
            continue
        renamed = _RENAMED.get((go_type, name))
        if field_type == "core.PodSecurityContext" or field_type == "*core.PodSecurityContext":
            # Defaulting always sets it, so the pointer is written like a value.
            template.parts.append("{")
            _inline(
                template,
                "core.PodSecurityContext",
                v1.PodSecurityContext,
                f"{prefix}security_context.",
                prefix,
            )
            template.parts.append("}")
        elif embedded and renamed is None:
            template.parts.append("{")
            _inline(template, field_type, cls, prefix, spec)
            template.parts.append("}")
        else:
            attribute = renamed or by_lower[name.lower()]
            _append(template, field_type, annotations[attribute], prefix + attribute)


def _append(template: _Template, go_type: str, annotation: Any, path: str) -> None:
    if go_type not in _SPECIAL and isinstance(_layout().get(go_type), list) and go_type != "core.PodStatus":
        template.parts.append("{")
        _inline(template, go_type, annotation, f"{path}.", "")
        template.parts.append("}")
        return
    template.parts.append("%s")
    template.paths.append(path)
    template.slots.append(lambda: _slot(go_type, annotation))


def _slot(go_type: str, annotation: Any) -> _Slot:
    """How the value of a field is written; text and numbers need nothing but `%s`."""
    writer = _writer(go_type, annotation)
    if writer is str and not go_type.startswith("*"):
        return None, _NIL
    return writer, _ZERO_TIME if go_type == "v1.Time" else _NIL


@functools.cache
def _writer(go_type: str, annotation: Any) -> _Writer:
    """The writer of a value, without its type name."""
    if go_type in _SPECIAL:
        return _SPECIAL[go_type]
    if go_type.startswith("*"):
        return _writer(go_type[1:], _inner(annotation))
    if go_type.startswith("[]"):
        return _slice_writer(_writer(go_type[2:], typing.get_args(_inner(annotation))[0]))
    definition = _layout().get(go_type, go_type)
    if definition == "map[core.ResourceName]resource.Quantity":
        return _map_writer(_write_quantity)
    if definition == "map[string]string":
        return _map_writer(str)
    if go_type == "core.PodStatus":
        return _write_status
    if isinstance(definition, list):
        return _struct_writer(go_type, annotation)
    return _write_bool if definition == "bool" else str


def _inner(annotation: Any) -> Any:
    """`X | None` → `X`."""
    options = [option for option in typing.get_args(annotation) if option is not type(None)]
    is_optional = len(typing.get_args(annotation)) - len(options) == 1
    return options[0] if is_optional else annotation


def _slice_writer(write: _Writer) -> _Writer:
    def write_slice(values: Sequence[Any]) -> str:
        return f"[{' '.join([write(value) for value in values])}]"

    return write_slice


def _map_writer(write: _Writer) -> _Writer:
    def write_map(values: Mapping[str, Any]) -> str:
        return f"map[{' '.join([f'{key}:{write(values[key])}' for key in sorted(values)])}]"

    return write_map


def _write_bool(value: bool) -> str:
    return "true" if value else "false"


_EMPTY_STATUS: Final = v1.PodStatus()


def _write_status(status: v1.PodStatus) -> str:
    write = _struct_writer("core.PodStatus", v1.PodStatus)
    return _empty_status() if status == _EMPTY_STATUS else write(status)


@functools.cache
def _empty_status() -> str:
    return _struct_writer("core.PodStatus", v1.PodStatus)(_EMPTY_STATUS)


def _write_int_or_string(value: int | str) -> str:
    kind, number, text = (1, 0, value) if isinstance(value, str) else (0, value, "")
    return f"{{Type:(intstr.Type){kind} IntVal:(int32){number} StrVal:(string){text}}}"


def _write_fields(value: msgspec.Raw) -> str:
    return f"{{Raw:([]uint8)[{' '.join(map(str, bytes(value)))}]}}"


def _write_time(value: str) -> str:
    seconds, fraction = divmod(cast(Timestamp, value).ns, 1_000_000_000)
    seconds += _SECONDS_TO_UNIX_EPOCH
    inner = f"wall:(uint64){fraction} ext:(int64){seconds} loc:(*time.Location){_UTC}"
    return f"{{Time:(time.Time){{{inner}}}}}"


_ZERO_TIME: Final = "{Time:(time.Time){wall:(uint64)0 ext:(int64)0 loc:(*time.Location)<nil>}}"


def _write_quantity(value: str) -> str:
    amount = value if isinstance(value, quantity.Quantity) else quantity.parse(value)
    return (
        f"{{i:(resource.int64Amount){{value:(int64){amount.amount} scale:(resource.Scale){amount.scale}}} "
        f"d:(resource.infDecAmount){{Dec:(*inf.Dec){_decimal(amount.dec)}}} "
        f"s:(string){amount.cached} Format:(resource.Format){amount.notation}}}"
    )


def _decimal(dec: tuple[int, int] | None) -> str:
    """A big decimal: sign, 64-bit words from the lowest, scale."""
    if dec is None:
        return _NIL
    unscaled, scale = dec
    words = []
    rest = abs(unscaled)
    while rest:
        words.append(str(rest & (2**64 - 1)))
        rest >>= 64
    digits = f"[{' '.join(words)}]" if words else _NIL
    sign = "true" if unscaled < 0 else "false"
    return f"{{unscaled:(big.Int){{neg:(bool){sign} abs:(big.nat){digits}}} scale:(inf.Scale){scale}}}"


_SPECIAL: Final[dict[str, _Writer]] = {
    "intstr.IntOrString": _write_int_or_string,
    "v1.FieldsV1": _write_fields,
    "v1.Time": _write_time,
    "resource.Quantity": _write_quantity,
}
