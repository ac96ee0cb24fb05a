"""Field selectors as kubectl's `--field-selector` takes them, with the fields that the API server knows of
each kind. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from trio_kubelet.commands.columns import as_go_prints
from trio_kubelet.commands.jsonpath.parse import parse_relaxed

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
    wanted = [(_reader(term.field), term) for term in terms]
    return lambda thing: all((read(thing) == term.value) is term.equal for read, term in wanted)


def _reader(field: str) -> Callable[[Json], str]:
    path = parse_relaxed(_PATHS.get(field, field))

    def read(thing: Json) -> str:
        found = [value for values in path.find(thing) for value in values if value is not None]
        return as_go_prints(found[0]) if found else _ABSENT.get(field, "")

    return read


_FIELDS: Final[Mapping[str, Sequence[str]]] = {
    "pod": (
        "metadata.name",
        "metadata.namespace",
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.nominatedNodeName",
    ),
    "node": ("metadata.name", "spec.unschedulable"),
    "event": (
        "metadata.name",
        "metadata.namespace",
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "involvedObject.fieldPath",
        "reason",
        "reportingComponent",
        "source",
        "type",
    ),
}
"""Of each kind (`ToSelectableFields` of the API server's registries)."""

_PATHS: Final = {"status.podIP": "status.podIPs[*].ip", "source": "source.component"}
"""Of fields that stand elsewhere than they are called; the first of several counts."""

_ABSENT: Final = {"spec.hostNetwork": "false", "spec.unschedulable": "false"}
"""What a field says that is not there, where that is something."""
