"""YAML bytes to a plain tree, by the rules of the YAML 1.1 reader that Kubernetes uses. See `api.yaml`.

PyYAML's loaders differ from that reader in what plain words mean (`22:22`, `1e3`, `0o7`, dates), in
merge keys and in duplicate keys, so only its event parser is used here (libyaml, in C where available)
and the tree is built by the rules of the Kubernetes reader. Nothing recurses without a limit and aliases
are counted, so a hostile file costs bounded work.
"""

from __future__ import annotations

import math
import re
from typing import Any, Final, NamedTuple, TypeAlias

import yaml

from trio_kubelet.api.errors import MAX_DEPTH, DecodeError, Document, Duplicate
from trio_kubelet.api.yaml_scalars import (
    BINARY,
    BOOL,
    FLOAT,
    INT,
    MERGE,
    RESOLVABLE,
    STR,
    TAG,
    TIMESTAMP,
    decode_base64,
    float32_text,
    json_number,
    resolve,
)
from trio_kubelet.common import utf8

_SURROGATE: Final = re.compile("[\ud800-\udfff]")

try:
    from yaml.cyaml import CParser as _Parser  # type: ignore[attr-defined]
except ImportError:  # PyYAML built without libyaml: slower, the same events

    class _Parser(yaml.reader.Reader, yaml.scanner.Scanner, yaml.parser.Parser):  # type: ignore[no-redef]
        def __init__(self, data: bytes) -> None:
            yaml.reader.Reader.__init__(self, data)
            yaml.scanner.Scanner.__init__(self)
            yaml.parser.Parser.__init__(self)

        def get_event(self) -> Any:
            event: Any = super().get_event()  # type: ignore[no-untyped-call]
            if type(event) is yaml.ScalarEvent and _SURROGATE.search(event.value):
                mark: Any = event.start_mark
                reason = "found invalid Unicode character escape code"
                raise yaml.MarkedYAMLError("while parsing a quoted scalar", mark, reason, mark)
            return event


_JSON_ESCAPE: Final = re.compile(r"(?<!\\)(?:\\\\)*\\/")
_MOST_TAG_DIRECTIVES: Final = 1000
"""libyaml compares each with all before it and lets no other thread run meanwhile: 60,000 took 20 s."""


def load_yaml(data: bytes) -> Document:
    """The first document. Raises `DecodeError`, RecursionError."""
    if data.replace(b"\0", b"").count(b"%TAG") > _MOST_TAG_DIRECTIVES:  # also in UTF-16
        raise DecodeError(f"more than {_MOST_TAG_DIRECTIVES} %TAG directives")
    try:
        reader = _Reader(data)
        value = reader.read()
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        problem = ": ".join(filter(None, (exc.context, exc.problem)))
        raise DecodeError(problem, *((mark.line + 1, mark.column + 1) if mark else ())) from None
    except yaml.reader.ReaderError as exc:
        raise _reader_error(data, exc) from None
    return Document(value, tuple(reader.duplicates))


def _reader_error(data: bytes, exc: yaml.reader.ReaderError) -> DecodeError:
    """PyYAML tells the position as an offset; a line says more."""
    before = data[: exc.position] if isinstance(exc.position, int) else b""
    line, column = before.count(b"\n") + 1, len(before) - (before.rfind(b"\n") + 1) + 1
    reason = exc.reason if isinstance(exc.reason, str) else "unreadable character"
    return DecodeError(reason, line, column)


class _Node:
    """A node of the document: a scalar (`children` is None), a sequence or a mapping."""

    __slots__ = ("children", "column", "is_map", "line", "plain", "tag", "value")

    def __init__(self, mark: yaml.Mark, tag: str | None) -> None:
        self.line, self.column = mark.line + 1, mark.column + 1
        self.tag = tag or ""
        self.value = ""
        self.plain = False
        self.children: list[_Node | _Alias] | None = None
        self.is_map = False


class _Alias:
    """A reference to a node elsewhere in the document."""

    __slots__ = ("column", "line", "name", "target")

    def __init__(self, mark: yaml.Mark, name: str, target: _Node) -> None:
        self.line, self.column, self.name, self.target = mark.line + 1, mark.column + 1, name, target


class _Key(NamedTuple):
    """A mapping key before it becomes text: `1` and `"1"` are different keys."""

    tag: str
    text: str


_Members: TypeAlias = dict[_Key, tuple[Any, int]]
"""The members of a mapping, each with the mapping node that wrote it last."""


class _Reader:
    """Builds the tree of the first document. One instance reads one body."""

    def __init__(self, data: bytes) -> None:
        self._parser = _Parser(data or b"\n")
        self._text = data.decode("utf-8", "replace").lstrip("\ufeff") if b"\\/" in data else ""
        self._anchors: dict[str, _Node] = {}
        self._expanding: set[int] = set()
        self._steps = 0
        self._alias_steps = 0
        self._alias_depth = 0
        self.duplicates: list[Duplicate] = []

    def read(self) -> Any:
        try:
            root = self._compose()
        finally:
            self._parser.dispose()
        return None if root is None else self._value(root)

    # Events to nodes, without recursion: the nesting is the file's, the stack is ours.

    def _compose(self) -> _Node | None:
        get = self._parser.get_event
        open_nodes: list[_Node] = []
        root: _Node | None = None
        while True:
            event: Any = get()
            kind = type(event)
            node: _Node | _Alias
            if kind is yaml.ScalarEvent:
                if self._text:
                    self._refuse_json_escape(event)
                node = _Node(event.start_mark, event.tag)
                node.value, node.plain = event.value, event.implicit[0]
            elif kind is yaml.AliasEvent:
                node = self._alias(event)
            elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
                node = _Node(event.start_mark, event.tag)
                node.children, node.is_map = [], kind is yaml.MappingStartEvent
            elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
                open_nodes.pop()
                continue
            elif kind is yaml.DocumentStartEvent and event.version not in (None, (1, 1)):
                raise DecodeError("found incompatible YAML document", event.start_mark.line + 1, 1)
            elif kind is yaml.DocumentEndEvent or kind is yaml.StreamEndEvent:
                return root
            else:
                continue
            if kind is not yaml.AliasEvent and event.anchor is not None:
                assert isinstance(node, _Node)
                self._anchors[event.anchor] = node
            if open_nodes:
                siblings = open_nodes[-1].children
                assert siblings is not None
                siblings.append(node)
            else:
                assert isinstance(node, _Node)
                root = node
            if isinstance(node, _Node) and node.children is not None:
                open_nodes.append(node)
                if len(open_nodes) > MAX_DEPTH:
                    raise DecodeError(f"nested deeper than {MAX_DEPTH} levels", node.line, node.column)

    def _refuse_json_escape(self, event: Any) -> None:
        """`\\/` is JSON and YAML 1.2; the Kubernetes reader knows YAML 1.1 only."""
        source = self._text[event.start_mark.index : event.end_mark.index]
        if source.startswith('"') and _JSON_ESCAPE.search(source):
            mark = event.start_mark
            raise DecodeError("found unknown escape character", mark.line + 1, mark.column + 1)

    def _alias(self, event: Any) -> _Alias:
        name = event.anchor
        if name not in self._anchors:
            mark = event.start_mark
            raise DecodeError(f"unknown anchor '{name}' referenced", mark.line + 1, mark.column + 1)
        return _Alias(event.start_mark, name, self._anchors[name])

    # Nodes to values. Aliases are expanded, so the work is counted as Kubernetes counts it.

    def _value(self, node: _Node | _Alias, depth: int = 0) -> Any:
        if depth > MAX_DEPTH:
            raise DecodeError(f"nested deeper than {MAX_DEPTH} levels", node.line, node.column)
        self._count(node)
        if isinstance(node, _Alias):
            return self._expanded(node, lambda target: self._value(target, depth + 1))
        if node.children is None:
            tag, value = _scalar(node)
            return json_value(tag, value, node)
        if node.is_map:
            return self._stringified(self._fill(node, {}, depth))
        return [self._value(child, depth + 1) for child in node.children]

    def _expanded(self, alias: _Alias, visit: Any) -> Any:
        if id(alias) in self._expanding:
            raise DecodeError(f"anchor '{alias.name}' value contains itself", alias.line, alias.column)
        self._expanding.add(id(alias))
        self._alias_depth += 1
        value = visit(alias.target)
        self._alias_depth -= 1
        self._expanding.discard(id(alias))
        return value

    def _count(self, node: _Node | _Alias) -> None:
        """The reader's guard against alias bombs: most of a large document must not be expansion."""
        self._steps += 1
        if not self._alias_depth:
            return
        self._alias_steps += 1
        if self._alias_steps > 100 and self._steps > 1000:
            spare = min(max((self._steps - 400_000) / 3_600_000, 0), 1)
            if self._alias_steps / self._steps > 0.99 - 0.89 * spare:
                raise DecodeError("document contains excessive aliasing", node.line, node.column)

    def _fill(self, node: _Node, members: _Members, depth: int) -> _Members:
        children = node.children
        assert children is not None
        for key_node, value_node in zip(children[::2], children[1::2], strict=True):
            if isinstance(key_node, _Node) and _is_merge(key_node):
                self._merge(value_node, members, depth)
                continue
            key = self._key(key_node)
            if key in members and members[key][1] == id(node):
                self.duplicates.append(Duplicate(key.text, key_node.line))
            members[key] = self._value(value_node, depth + 1), id(node)
        return members

    def _merge(self, node: _Node | _Alias, members: _Members, depth: int) -> None:
        """`<<`: the mapping's keys are written at this place, over earlier ones and under later ones."""
        target = node.target if isinstance(node, _Alias) else node
        if isinstance(node, _Node) and node.children is not None and not node.is_map:
            for child in reversed(node.children):
                inner = child.target if isinstance(child, _Alias) else child
                if not inner.is_map:
                    raise _merge_error(child)
                self._merge(child, members, depth)
            return
        if not target.is_map:
            raise _merge_error(node)
        self._count(node)
        if depth > MAX_DEPTH:
            raise DecodeError(f"nested deeper than {MAX_DEPTH} levels", node.line, node.column)
        if isinstance(node, _Alias):
            self._expanded(node, lambda inner: self._fill_counted(inner, members, depth + 1))
        else:
            self._fill(node, members, depth + 1)

    def _fill_counted(self, node: _Node, members: _Members, depth: int) -> _Members:
        self._count(node)
        return self._fill(node, members, depth)

    def _key(self, node: _Node | _Alias) -> _Key:
        self._count(node)
        target = node.target if isinstance(node, _Alias) else node
        if target.children is not None:
            raise DecodeError("invalid map key: a mapping or a list", node.line, node.column)
        tag, value = _scalar(target)
        if isinstance(value, str):
            return _Key(STR, value if tag != TIMESTAMP else target.value)
        if isinstance(value, bool):
            return _Key(BOOL, "true" if value else "false")
        if isinstance(value, int) and -(2**63) <= value < 2**63:
            return _Key(INT, str(value))
        if isinstance(value, float):
            return _Key(FLOAT, float32_text(value))
        raise DecodeError(f"unsupported map key {target.value!r}", node.line, node.column)

    def _stringified(self, members: _Members) -> dict[str, Any]:
        """In order of the names, as Kubernetes writes its JSON; of two with one text the later counts."""
        return {key.text: members[key][0] for key in sorted(members, key=lambda key: key.text)}


def _merge_error(node: _Node | _Alias) -> DecodeError:
    return DecodeError("map merge requires map or sequence of maps as the value", node.line, node.column)


def _is_merge(node: _Node) -> bool:
    return node.children is None and node.value == "<<" and (node.plain or node.tag == MERGE)


def json_value(tag: str, value: object, node: _Node) -> Any:
    """A scalar as JSON can carry it."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise DecodeError(f"{node.value} has no JSON form", node.line, node.column)
        return json_number(value)
    return value


def _scalar(node: _Node) -> tuple[str, object]:
    """Tag and value of a scalar by the rules of the Kubernetes reader."""
    if not node.tag and not node.plain:
        return STR, node.value
    if node.tag == BINARY:
        return BINARY, _binary(node)
    if node.tag not in RESOLVABLE:
        return node.tag, node.value
    tag, value = resolve(node.value, node.tag)
    if node.tag in ("", tag, STR):
        return tag, value
    if node.tag == FLOAT and tag == INT and isinstance(value, int) and -(2**63) <= value < 2**63:
        return FLOAT, float(value)
    short = [name.replace(TAG, "!!") for name in (tag, node.tag)]
    raise DecodeError(f"cannot decode {short[0]} `{node.value}` as a {short[1]}", node.line, node.column)


def _binary(node: _Node) -> str:
    try:
        raw = decode_base64(node.value)
    except ValueError:
        raise DecodeError("!!binary value contains invalid base64 data", node.line, node.column) from None
    return utf8.decode(raw)
