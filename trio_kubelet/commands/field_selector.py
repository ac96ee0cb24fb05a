"""Field selectors as kubectl's `--field-selector` takes them, with the fields that the API server knows of
each kind. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

Json = Mapping[str, Any]
FieldSelector = Callable[[Json], bool]
"""Whether an object of the API is meant."""


class Term(NamedTuple):
    """One requirement: a field that equals a value, or does not."""

    field: str
    value: str
    equal: bool


def parse_field_selector(text: str) -> Sequence[Term]:
    """The terms of `a.b=c,d!=e`, by client-go's rules (`fields.ParseSelector`): `\\` before `,`, `=` and `\\`
    in a value. Raises ValueError.
    """
    return [_term(text, part) for part in _parts(text) if part]


def _parts(text: str) -> Iterator[str]:
    begin, escaped = 0, False
    for at, char in enumerate(text):
        if char == "," and not escaped:
            yield text[begin:at]
            begin = at + 1
        escaped = char == "\\" and not escaped
    yield text[begin:]


def _term(text: str, part: str) -> Term:
    for at in range(len(part)):
        for sign in ("!=", "==", "="):
            if part.startswith(sign, at):
                return Term(part[:at], _unescaped(part[at + len(sign) :]), sign != "!=")
    raise ValueError(f"invalid selector: '{text}'; can't understand '{part}'")


def _unescaped(value: str) -> str:
    found, chars = "", iter(value)
    for char in chars:
        if char == "\\":
            following = next(chars, "")
            if not following or following not in "\\,=":
                raise ValueError(f"invalid field selector: invalid escape sequence: \\{following}")
            found += following
        elif char in ",=":
            raise ValueError(f"invalid field selector: unescaped character in value: {char}")
        else:
            found += char
    return found


def field_selector(kind: str, terms: Sequence[Term]) -> FieldSelector:
    """What tells whether an object of the kind meets all of them. Raises ValueError for unknown fields."""
    known = _FIELDS[kind]
    for term in terms:
        if term.field not in known:
            raise ValueError(f"field label not supported: {term.field}; supported are {', '.join(known)}")
    return lambda thing: all((known[term.field](thing) == term.value) is term.equal for term in terms)


def _at(path: str, absent: str = "") -> Callable[[Json], str]:
    *outer, last = path.split(".")

    def value(thing: Json) -> str:
        for key in outer:
            thing = thing.get(key) or {}
        found = thing.get(last)
        if found is None:
            return absent
        return str(found).lower() if isinstance(found, bool) else str(found)

    return value


def _first_ip(pod: Json) -> str:
    ips = (pod.get("status") or {}).get("podIPs") or ()
    return str(ips[0]["ip"]) if ips else ""


_FIELDS: Final[Mapping[str, Mapping[str, Callable[[Json], str]]]] = {
    "pod": {
        **{
            path: _at(path)
            for path in (
                "metadata.name",
                "metadata.namespace",
                "spec.nodeName",
                "spec.restartPolicy",
                "spec.schedulerName",
                "spec.serviceAccountName",
                "status.phase",
                "status.nominatedNodeName",
            )
        },
        "spec.hostNetwork": _at("spec.hostNetwork", "false"),
        "status.podIP": _first_ip,
    },
    "node": {
        "metadata.name": _at("metadata.name"),
        "spec.unschedulable": _at("spec.unschedulable", "false"),
    },
    "event": {
        **{
            path: _at(path)
            for path in (
                "metadata.name",
                "metadata.namespace",
                "involvedObject.kind",
                "involvedObject.namespace",
                "involvedObject.name",
                "involvedObject.uid",
                "involvedObject.fieldPath",
                "reason",
                "reportingComponent",
                "type",
            )
        },
        "source": _at("source.component"),
    },
}
"""By kind and name, how a field is read (`ToSelectableFields` of the API server's registries)."""
