"""From the text of a template to its steps. Pure.

The grammar is the one of client-go's `util/jsonpath`, with its peculiarities: `$` and `@` mean the current
object and may be left out, spaces between steps mean nothing, a comma makes a union of what stands between
the same brackets, a dot within a name is written `\\.`, and there is no filter within a filter.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from trio_kubelet.commands.jsonpath import steps
from trio_kubelet.commands.jsonpath.steps import Bounds, JSONPathError, Step
from trio_kubelet.commands.jsonpath.template import JSONPath, PathBlock, Range

_DICT_KEY = re.compile(r"'([^']*)'")
_SLICE = re.compile(r"(-?[0-9]*)(:-?[0-9]*)?(:-?[0-9]*)?")
_COMPARISON = re.compile(r"([^!<>=]+)([!<>=]+)(.+)")
_RELAXED = re.compile(r"\{\.?([^{}]+)\}|\.?([^{}]+)")
_NUMBER = re.compile(r"[+-]?[0-9.]*")
_NAME = re.compile(r"(?:\\.?|[^ \t\r\n.,\[\]$@{}\\])*", re.DOTALL)
_IDENTIFIER = re.compile(r"[^ \t\r\n.,\[\]$@{}]*")
_ESCAPE = re.compile(
    r"\\(?:([abfnrtv\\'\"])|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{3}))"
)
_ESCAPED: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def parse(text: str) -> JSONPath:
    """The template that the text stands for. Raises JSONPathError."""
    root: list[PathBlock | Range] = []
    blocks = [root]
    at = 0
    while at < len(text):
        if text[at] != "{":
            end = text.find("{", at)
            end = len(text) if end < 0 else end
            blocks[-1].append(PathBlock((steps.text(text[at:end]),)))
            at = end
            continue
        action = _Action(text, at + 1)
        at = action.read()
        if action.word == "range":
            inside: list[PathBlock | Range] = []
            blocks[-1].append(Range(tuple(action.steps), inside))
            blocks.append(inside)
        elif action.word == "end":
            if len(blocks) == 1:
                raise JSONPathError("not in range, nothing to end")
            blocks.pop()
        else:
            blocks[-1].append(PathBlock(tuple(action.steps)))
    return JSONPath(root)


def parse_relaxed(text: str) -> JSONPath:
    """A single path whose braces and first dot may be left out: `metadata.name`. Raises JSONPathError."""
    if not text:
        return parse("")
    found = _RELAXED.fullmatch(text)
    if found is None:
        raise JSONPathError(f"{text!r} is no path such as metadata.name or {{.metadata.name}}")
    return parse(f"{{.{found[1] or found[2]}}}")


def _steps_of(text: str) -> Sequence[Step]:
    action = _Action(text + "}", 0)
    action.read()
    if action.word:
        raise JSONPathError(f"unrecognized identifier {action.word}")
    return action.steps


@dataclass
class _Action:
    """What stands between braces, while it is read."""

    text: str
    at: int
    steps: list[Step] = field(default_factory=list)
    word: str = ""
    """`range` or `end`, where it begins with that."""
    _descended: bool = False
    """Whether the last step was a recursive descent."""

    def read(self) -> int:
        """Reads to the closing brace; returns the place behind it. Raises JSONPathError."""
        while True:
            rest = self.text[self.at : self.at + 3]
            char = rest[:1]
            if char in ("", "\n", "\r"):
                raise JSONPathError("unclosed action")
            if char == "}":
                return self.at + 1
            if char in " @$":
                self.at += 1
            elif rest == "[?(":
                self._add(self._filter())
            elif rest.startswith(".."):
                self._descent()
            elif char == "[":
                self._brackets()
            elif char in "\"'":
                self._add(steps.text(self._quoted()))
            elif char == ".":
                self.at += 1
                self._add(self._field())
            elif char in "+-0123456789":
                self._add(steps.literal(self._number()))
            elif char == "_" or char.isalpha():
                self._identifier()
            else:
                raise JSONPathError(f"unrecognized character in action: {char!r}")

    def _add(self, *more: Step) -> None:
        self.steps += more
        self._descended = False

    def _take(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.text, self.at)
        assert found is not None  # the patterns match the empty text too
        self.at = found.end()
        return found[0]

    def _field(self) -> Step:
        name = self._take(_NAME)
        return steps.wildcard if name == "*" else steps.field(name.replace("\\", ""))

    def _descent(self) -> None:
        if self._descended:
            raise JSONPathError("invalid multiple recursive descent")
        self.at += 2
        self._add(steps.recursive)
        following = self.text[self.at : self.at + 1]
        if following == "_" or following.isalnum():
            self._add(self._field())
        else:
            self._descended = True

    def _number(self) -> int | float:
        said = self._take(_NUMBER)
        for kind in (int, float):
            try:
                return kind(said)
            except ValueError:
                continue
        raise JSONPathError(f"cannot parse number {said}")

    def _identifier(self) -> None:
        word = self._take(_IDENTIFIER)
        if word in ("true", "false"):
            self._add(steps.literal(word == "true"))
        elif word in ("range", "end") and not (self.steps or self.word):
            self.word = word
        else:
            raise JSONPathError(f"unrecognized identifier {word}")

    def _quoted(self) -> str:
        begin, quote = self.at, self.text[self.at]
        self.at += 1
        while (char := self.text[self.at : self.at + 1]) not in ("", "\n"):
            self.at += 1
            if char == quote and self.text[self.at - 2] != "\\":
                return _unquoted(self.text[begin + 1 : self.at - 1], quote)
        raise JSONPathError("unterminated quoted string")

    def _brackets(self) -> None:
        end = self.text.find("]", self.at)
        if end < 0 or "\n" in self.text[self.at : end]:
            raise JSONPathError("unterminated array")
        inside = self.text[self.at + 1 : end]
        self.at = end + 1
        inside = ":" if inside == "*" else inside
        if "," in inside:
            self._add(steps.union([_steps_of(f"[{part.strip(' ')}]") for part in inside.split(",")]))
        elif key := _DICT_KEY.fullmatch(inside):
            self._add(*_steps_of(f".{key[1]}"))
        else:
            self._add(steps.elements(_bounds(inside)))

    def _filter(self) -> Step:
        self.at += 3
        inside = self._to_end_of_filter()
        found = _COMPARISON.fullmatch(inside)
        if found is None:
            return steps.having(_steps_of(inside))
        return steps.comparing(_steps_of(found[1]), found[2], _steps_of(found[3]))

    def _to_end_of_filter(self) -> str:
        """What stands before the `)]` that is not within the filter's first quoted text."""
        begin, quote, closed = self.at, "", True
        while (char := self.text[self.at : self.at + 1]) not in ("", "\n"):
            self.at += 1
            if char in "\"'" and not quote:
                quote, closed = char, False
            elif char == quote and self.text[self.at - 2] != "\\":
                closed = True
            elif char == ")" and closed:
                if self.text[self.at : self.at + 1] != "]":
                    raise JSONPathError("unclosed array expect ]")
                self.at += 1
                return self.text[begin : self.at - 2]
        raise JSONPathError("unterminated filter")


def _bounds(text: str) -> Bounds:
    found = _SLICE.fullmatch(text)
    if found is None:
        raise JSONPathError(f"invalid array index {text}")
    start, end, step = found.groups()
    return Bounds(
        _index(start),
        _index(end[1:]) if end is not None else None,
        _index(step[1:]) if step is not None else None,
        single=end is None,
    )


def _index(text: str) -> int | None:
    try:
        return int(text) if text else None
    except ValueError:
        raise JSONPathError(f"array index {text} is not a number") from None


def _unquoted(text: str, quote: str) -> str:
    """The text with Go's escapes replaced; of the quotes only the one around it may be escaped."""

    def char(found: re.Match[str]) -> str:
        named, *codes, octal = found.groups()
        if named is None:
            code = int(octal, 8) if octal else int(next(filter(None, codes)), 16)
            return chr(code)
        if named in "\"'" and named != quote:
            raise ValueError
        return _ESCAPED.get(named, named)

    try:
        if "\\" in _ESCAPE.sub("", text):
            raise ValueError
        return _ESCAPE.sub(char, text)
    except (ValueError, OverflowError):
        raise JSONPathError(f"unquote string {quote}{text}{quote} error invalid syntax") from None
