"""How command lines are read: by argparse, with kubectl's manners."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn, TypeVar

from trio_kubelet.common.go_words import error_words

T = TypeVar("T")

_BOOLEANS: Final = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
}
"""What Go's flags take for a boolean."""


class Parser(argparse.ArgumentParser):
    """Ends the process with 1 when the command line is wrong, as kubectl does."""

    def error(self, message: str) -> NoReturn:
        """Says what is wrong and where to read more."""
        print(f"error: {message}\nSee '{self.prog} --help' for usage.", file=sys.stderr)
        raise SystemExit(1)

    def print_help(self, file: Any = None) -> None:
        """Writes what `--help` says. Raises OSError when it cannot be written, of which newer Pythons say
        nothing.
        """
        print(self.format_help(), end="", file=file or sys.stdout)

    def read(self, args: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """The options, and the words beyond those that were expected.

        `--flag=true` and `--flag=false` may stand for a flag without a value.
        """
        switches = {name for action in self._actions if action.nargs == 0 for name in action.option_strings}
        found = []
        for word in args:
            name, equals, value = word.partition("=")
            if not equals or name not in switches:
                found.append(word)
            elif value not in _BOOLEANS:
                self.error(f"{name} is true or false, not {value!r}")
            elif _BOOLEANS[value]:
                found.append(name)
            elif (negation := name.replace("--", "--no-", 1)) in switches:
                found.append(negation)
        options, beyond = self.parse_known_args(found)
        if unknown := [word for word in beyond if word.startswith("-") and word != "-"]:
            self.error(f"unknown flag: {' '.join(unknown)}")
        return options, beyond


def said(parse: Callable[[str], T]) -> Callable[[str], T]:
    """The parser of an option's value, with what it raises said as argparse says such things."""

    def parsed(text: str) -> T:
        try:
            return parse(text)
        except (ValueError, OSError) as exc:
            raise argparse.ArgumentTypeError(error_words(exc)) from exc

    return parsed
