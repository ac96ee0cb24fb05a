"""How the text of a flag becomes a value: one function per flag type of the kubelet.

Each takes the text and the value collected from earlier uses of the same flag on this command line (None at
the first) and returns the new value; ValueError says what is wrong. Lists and maps collect over several uses,
and what a command line says replaces the default or the file's value as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from trio_kubelet.api import quantity
from trio_kubelet.common.duration import parse_duration
from trio_kubelet.config.types import MemoryReservation, Taint, VModuleItem
from trio_kubelet.config.version import KUBELET_VERSION

Parse = Callable[[str, Any], Any]

_TRUE: Final = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "false", "FALSE", "False"})
TAINT_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_DNS: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")


def parse_bool(text: str) -> bool:
    """The spellings Go's `strconv.ParseBool` takes."""
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError(f"{text!r} is not a boolean")


def parse_int(text: str, bits: int = 64) -> int:
    """A signed integer of `bits` bits, with Go's prefixes: 0x, 0o, 0b, and a plain leading 0 is octal."""
    octal = re.fullmatch(r"([+-]?)0([0-9_]+)", text)
    try:
        value = (
            int(f"{octal[1]}0o{octal[2]}" if octal else text, 0)
            if text.isascii() and text.strip() == text
            else None
        )
    except ValueError:
        value = None
    if value is None:
        raise ValueError(f"{text!r} is not an integer")
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise ValueError(f"{text} does not fit into {bits} bits")
    return value


def parse_level(text: str) -> int:
    """A verbosity: a decimal number that fits into 31 bits."""
    if not re.fullmatch(r"[0-9]+", text, re.ASCII) or int(text) >= 1 << 31:
        raise ValueError(f"{text!r} is not a verbosity")
    return int(text)


def parse_ip(text: str) -> str:
    """An IPv4 or IPv6 address; leading zeros in IPv4 parts are allowed, as in the kubelet. No text at all
    leaves the address as it is without the flag.
    """
    import ipaddress  # start-up time counts

    if not text:
        return ""
    sloppy = ".".join(part.lstrip("0") or "0" for part in text.split(".")) if ":" not in text else text
    try:
        ipaddress.ip_address(sloppy)
    except ValueError:
        raise ValueError(f"{text!r} is not an IP address") from None
    return text


def parse_quantity(text: str) -> str:
    """A Kubernetes quantity in its canonical spelling."""
    return str(quantity.parse(text))


def parse_strings(text: str, before: list[str] | None) -> list[str]:
    """Comma-separated values with CSV quoting, appended to those of earlier uses."""
    if '"' not in text:
        return (before or []) + (text.split(",") if text else [])
    import csv  # rarely needed, and start-up time counts

    try:
        row = next(csv.reader([text], strict=True))
    except csv.Error as error:
        raise ValueError(f"{text!r} is not a comma-separated list: {error}") from None
    return (before or []) + row


def _pairs(text: str, separator: str) -> list[tuple[str, str]]:
    pairs = []
    for item in filter(None, text.split(",")):
        key, found, value = item.partition(separator)
        if not found:
            raise ValueError(f"{item!r} is not of the form key{separator}value")
        pairs.append((key.strip(), value.strip()))
    return pairs


def parse_map_nosplit(text: str, before: dict[str, str] | None) -> dict[str, str]:
    """One pair for each use, so that values can hold commas."""
    key, found, value = text.partition("=")
    if not found:
        raise ValueError(f"{text!r} is not of the form key=value")
    return (before or {}) | {key.strip(): value.strip()}


def parse_labels(text: str, before: dict[str, str] | None) -> dict[str, str]:
    """Labels; one without `=` has an empty value."""
    pairs = (item.partition("=") for item in text.split(",") if item)
    return (before or {}) | {key.strip(): value.strip() for key, _, value in pairs}


def parse_map_bool(text: str, before: dict[str, bool] | None) -> dict[str, bool]:
    result = dict(before or {})
    for key, value in _pairs(text, "="):
        try:
            result[key] = parse_bool(value)
        except ValueError as error:
            raise ValueError(f"{key}: {error}") from None
    return result


def parse_multimap(text: str, before: dict[str, list[str]] | None) -> dict[str, list[str]]:
    """HTTP headers: `name:value`, several values for one name in order."""
    result = {key: list(values) for key, values in (before or {}).items()}
    for key, value in _pairs(text, ":"):
        result.setdefault(key, []).append(value)
    return result


def parse_vmodule(text: str, before: list[VModuleItem] | None) -> list[VModuleItem]:
    items = list(before or [])
    for item in filter(None, text.split(",")):
        pattern, _, level = item.partition("=")
        if not pattern or not level or "=" in level:
            raise ValueError(f"{item!r} is not of the form pattern=N")
        items.append(VModuleItem(file_pattern=pattern, verbosity=parse_level(level)))
    return items


def parse_reserved_memory(text: str, before: list[MemoryReservation] | None) -> list[MemoryReservation]:
    """`numa:type=quantity[,type=quantity][;numa:…]`."""
    if not text:
        return []
    result = list(before or [])
    for reservation in text.split(";"):
        numa, found, limits = reservation.partition(":")
        if not found or ":" in limits:
            raise ValueError(f"{reservation!r} is not of the form numaNode:type=quantity[,type=quantity…]")
        values = {}
        for limit in limits.split(","):
            kind, _, amount = limit.partition("=")
            if kind != "memory" and not kind.startswith("hugepages-"):
                raise ValueError(f"unknown memory type {kind!r}: memory or hugepages-<size>")
            values[kind] = parse_quantity(amount)
        result.append(MemoryReservation(numa_node=parse_int(numa, 32), limits=values))
    return result


def parse_taints(text: str, _before: list[Taint] | None) -> list[Taint]:
    """`key=value:effect`, `key:effect`, comma-separated; the last use of the flag counts. With a `-` behind
    it a taint is one to remove, of which a new node has none: it may then be a key alone, and is left out.
    """
    taints: list[Taint] = []
    for item in text.split(",") if text else ():
        taint = _taint(item.removesuffix("-"))
        if item.endswith("-"):
            continue
        if not taint.effect:
            raise ValueError(f"{item!r} is not of the form key=value:effect")
        if any(other.key == taint.key and other.effect == taint.effect for other in taints):
            raise ValueError(f"the taint {taint.key}:{taint.effect} is given twice")
        taints.append(taint)
    return taints


def _taint(text: str) -> Taint:
    """`key=value:effect`, `key:effect` or a key alone."""
    body, has_effect, effect = text.partition(":")
    key, has_value, value = body.partition("=") if has_effect else (body, "", "")
    if has_effect and effect not in TAINT_EFFECTS:
        raise ValueError(f"{text!r}: the effect of a taint is one of {', '.join(TAINT_EFFECTS)}")
    if not is_qualified_name(key) or (has_value and not is_label_value(value)):
        raise ValueError(f"{text!r} is not of the form key=value:effect")
    return Taint(key=key, value=value, effect=effect)


def parse_version(text: str) -> str:
    """`true`, `false`, `raw`; the version to report (`v1.36.2-…`) is taken too and means no printing."""
    if text == "raw":
        return text
    if text.startswith("v"):
        if not re.fullmatch(rf"{re.escape(KUBELET_VERSION)}([-+].*)?", text):
            raise ValueError(
                f'version "{text}" must match major/minor/patch of default version "{KUBELET_VERSION}"'
            )
        return text
    return str(parse_bool(text)).lower()


def is_qualified_name(text: str) -> bool:
    """A label or taint key: `[dns.prefix/]name`."""
    prefix, slash, name = text.rpartition("/")
    if slash and not (len(prefix) <= 253 and _DNS.fullmatch(prefix)):
        return False
    return len(name) <= 63 and _NAME.fullmatch(name) is not None


def is_label_value(text: str) -> bool:
    return text == "" or (len(text) <= 63 and _NAME.fullmatch(text) is not None)


def _map(separator: str) -> Parse:
    """Pairs like `key=value`, or those of eviction thresholds (`memory.available<100Mi`), of all uses."""
    return lambda text, before: (before or {}) | dict(_pairs(text, separator))


def _last(parse: Callable[[str], Any]) -> Parse:
    """A flag of one value: the last use counts."""
    return lambda text, _before: parse(text)


PARSERS: Final[dict[str, Parse]] = {
    "string": _last(str),
    "bool": _last(parse_bool),
    "int": _last(parse_int),
    "int32": _last(lambda text: parse_int(text, 32)),
    "duration": _last(parse_duration),
    "ip": _last(parse_ip),
    "quantity": _last(parse_quantity),
    "level": _last(parse_level),
    "version": _last(parse_version),
    "strings": parse_strings,
    "map": _map("="),
    "map-nosplit": parse_map_nosplit,
    "map-langle": _map("<"),
    "labels": parse_labels,
    "map-bool": parse_map_bool,
    "multimap": parse_multimap,
    "vmodule": parse_vmodule,
    "reserved-memory": parse_reserved_memory,
    "taints": parse_taints,
}
