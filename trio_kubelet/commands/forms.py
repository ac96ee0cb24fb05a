"""The forms of `get`: what `-o` may say. Pure, but for templates that are read from a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from trio_kubelet.commands.columns import Columns, parse_columns, parse_columns_file
from trio_kubelet.commands.jsonpath.parse import parse

Json = Mapping[str, Any]

MAX_TEMPLATE: Final = 1 << 20
"""Characters of a template that is read from a file."""


@dataclass(frozen=True)
class OutputForm:
    """How objects are printed: as a table (`columns`: those asked for), as their names, or as documents."""

    wide: bool = False
    names: bool = False
    columns: Columns | None = None
    document: Callable[[Json], str] | None = None
    """An object, or a list of them, as text with its line end."""
    separator: str = ""
    """What stands before each of several documents."""
    verbatim: bool = False
    """Whether the text is what a template asked for, and so goes to a program as it is."""

    @property
    def is_table(self) -> bool:
        """Whether it has the columns of its kind."""
        return not (self.names or self.columns or self.document)


TABLE: Final = OutputForm()


def parse_form(text: str) -> OutputForm:
    """The form that `-o` asks for. Raises ValueError, OSError."""
    word, _, template = text.partition("=")
    if not text:  # of a script's variable, as with kubectl
        return TABLE
    if (whole := _WITHOUT_TEMPLATE.get(text.lower())) is not None:
        return whole
    if (made := _WITH_TEMPLATE.get(word)) is None:
        known = ", ".join([*_WITHOUT_TEMPLATE, *(f"{each}=…" for each in _WITH_TEMPLATE)])
        raise ValueError(f"there is no form {text!r}, but {known}")
    if not template:
        raise ValueError(f"{word}= has to be followed by what is asked for")
    return made(template)


def _json(content: Json) -> str:
    return json.dumps(content, indent=4) + "\n"


def _yaml(content: Json) -> str:
    from trio_kubelet.api.yaml_writer import yaml_bytes  # knows YAML, which costs time

    return yaml_bytes(content).decode()


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        text = file.read(MAX_TEMPLATE + 1)
    if len(text) > MAX_TEMPLATE:
        raise ValueError(f"{path} has more than {MAX_TEMPLATE} characters")
    return text


def _jsonpath(text: str) -> OutputForm:
    return OutputForm(document=parse(text).text, verbatim=True)


_WITHOUT_TEMPLATE: Final[Mapping[str, OutputForm]] = {
    "wide": OutputForm(wide=True),
    "json": OutputForm(document=_json),
    "yaml": OutputForm(document=_yaml, separator="---\n"),
    "name": OutputForm(names=True),
}
_WITH_TEMPLATE: Final[Mapping[str, Callable[[str], OutputForm]]] = {
    "jsonpath": _jsonpath,
    "jsonpath-file": lambda path: _jsonpath(_read(path)),
    "jsonpath-as-json": lambda text: OutputForm(document=parse(text).json, verbatim=True),
    "custom-columns": lambda text: OutputForm(columns=parse_columns(text)),
    "custom-columns-file": lambda path: OutputForm(columns=parse_columns_file(_read(path))),
}
