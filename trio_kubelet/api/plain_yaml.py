"""The YAML that tools write, read line by line: mappings and lists in block style, of words on one line.

A node reads its configuration, its kubeconfig and its static pods when it starts, and to import a parser
takes longer than to read them. What kubeadm and kubectl write needs none. Everything else (text over several
lines, flow style, anchors, escapes, comments behind a value, fractions, keys given twice, whatever is wrong)
is left to `yaml_reader`. What is read here is read as it is there (tests/api/test_plain_yaml.py).
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from trio_kubelet.api.yaml_scalars import FLOAT, STR, resolve

_MOST_BYTES: Final = 1 << 20
_MOST_DEPTH: Final = 50
_LIST_ITEM: Final = "- "

_KEY: Final = r"[A-Za-z][A-Za-z0-9_./-]{0,127}"
# Printable ASCII but for `#`, and for `:` before a space: neither a comment nor another key can begin in it.
_WORD: Final = r"""(?:[A-Za-z0-9_./+]|-(?=[!-~]))(?:[!"$-9;-~]|:(?=[!-~])|[ ]+(?=[!"$-9;-~]))*"""
_QUOTED: Final = r"""\"[ !#-\[\]-~]*\"|'[ -&(-~]*'"""
_LINE: Final = re.compile(
    rf"(?P<indent>[ ]*)(?P<item>- )?(?:(?P<key>{_KEY}):(?:[ ]+(?=[^ ])|$))?"
    rf"(?P<value>{_WORD}|{_QUOTED}|\[\]|\{{\}})?"
)


class _Other(Exception):
    """Not plain: for the other reader."""


class _Line(NamedTuple):
    indent: int
    item: bool  # of a list
    key: str | None
    value: str | None


def load_plain(data: bytes) -> dict[str, Any] | list[Any] | None:
    """The document's tree; None if it is not as plain as that."""
    try:
        return _Reader(_lines(data)).document()
    except _Other:
        return None


def _lines(data: bytes) -> list[_Line]:
    """The lines that say something. Raises _Other."""
    if len(data) > _MOST_BYTES or not data.isascii():
        raise _Other
    texts = data.decode("ascii").split("\n")
    if not all(map(str.isprintable, texts)):
        raise _Other
    told = [text for text in texts if text.strip(" ") and not text.lstrip(" ").startswith("#")]
    if told and told[0] == "---":
        del told[0]
    return [_line(text) for text in told]


def _line(text: str) -> _Line:
    match = _LINE.fullmatch(text)
    if match is None or text.startswith(("---", "...")):
        raise _Other
    indent, item, key, value = match.groups()
    if key is None and (item is None or value is None):
        raise _Other
    return _Line(len(indent), item is not None, key, value)


class _Reader:
    """Reads the lines of one document, one after the other. What raises raises _Other."""

    def __init__(self, lines: list[_Line]) -> None:
        self._lines = lines
        self._at = 0
        self._depth = 0

    def document(self) -> dict[str, Any] | list[Any]:
        if not self._lines:
            raise _Other
        value = self._block(self._lines[0].indent)
        if self._at < len(self._lines):
            raise _Other
        return value

    def _next(self) -> _Line | None:
        return self._lines[self._at] if self._at < len(self._lines) else None

    def _block(self, indent: int) -> dict[str, Any] | list[Any]:
        self._depth += 1
        if self._depth > _MOST_DEPTH:
            raise _Other
        value = self._list(indent) if self._lines[self._at].item else self._mapping(indent)
        self._depth -= 1
        if (after := self._next()) is not None and after.indent > indent:
            raise _Other
        return value

    def _mapping(self, indent: int) -> dict[str, Any]:
        members: dict[str, Any] = {}
        while (line := self._next()) is not None and line.indent == indent and not line.item:
            key = line.key
            if key is None or key in members or resolve(key)[0] != STR:
                raise _Other
            self._at += 1
            members[key] = self._nested(indent) if line.value is None else _scalar(line.value)
        return members

    def _nested(self, indent: int) -> Any:
        """What stands below a key: a list may stand as far to the left as the key itself."""
        line = self._next()
        if line is None or line.indent < indent or (line.indent == indent and not line.item):
            return None
        return self._block(line.indent)

    def _list(self, indent: int) -> list[Any]:
        items: list[Any] = []
        while (line := self._next()) is not None and line.indent == indent and line.item:
            if line.key is None:
                assert line.value is not None
                self._at += 1
                items.append(_scalar(line.value))
            else:  # the first member of a mapping, which begins behind the dash
                inner = indent + len(_LIST_ITEM)
                self._lines[self._at] = line._replace(indent=inner, item=False)
                items.append(self._block(inner))
            if (after := self._next()) is not None and after.indent > indent:
                raise _Other
        return items


def _scalar(text: str) -> Any:
    if text == "{}":
        return {}
    if text == "[]":
        return []
    if text[0] in "\"'":
        return text[1:-1]
    tag, value = resolve(text)
    if tag == FLOAT:
        raise _Other
    return value
