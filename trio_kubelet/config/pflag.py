"""pflag's command line syntax, as a pure function over a table of flags.

`--flag value`, `--flag=value`, `--bool`, `--bool=false`, `-v 4`, `-v4`, `-v=4`, `--` ends the flags, flags
and words may be mixed, and `_` in a flag name is read as `-`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from trio_kubelet.config.flag_values import PARSERS

# Types that take "true" when they stand without a value.
_VALUELESS: Final = frozenset({"bool", "version"})


class FlagError(Exception):
    """A command line that cannot be used; the message names the flag."""


class Flag(Struct, frozen=True):
    """One flag: `kind` is a key of PARSERS, `target` the configuration field it overrides, dotted.

    `deprecated` says what to use instead; such a flag acts all the same.
    """

    name: str
    kind: str
    help: str
    target: str = ""
    short: str = ""
    group: str = ""
    deprecated: str = ""


_Put = Callable[[Flag, str, str], None]
"""Takes a flag, how it was written, and the text of its value."""


class CommandLine(Struct, frozen=True):
    """The flags that were given, with their values, and the words that are no flags."""

    values: Mapping[str, Any]
    words: Sequence[str]


def normalise(name: str) -> str:
    return name.replace("_", "-")


def _silent(_: str) -> None:
    """For who does not want to hear of deprecated flags."""


def parse_command_line(
    args: Sequence[str], flags: Mapping[str, Flag], say: Callable[[str], None] = _silent
) -> CommandLine:
    """Read `args`; FlagError for an unknown flag, a missing or a malformed value.

    Each time a deprecated flag is set, `say` gets pflag's line about it.
    """
    values: dict[str, Any] = {}

    def put(flag: Flag, shown: str, value: str) -> None:
        try:
            values[flag.name] = PARSERS[flag.kind](value, values.get(flag.name))
        except ValueError as error:
            raise FlagError(f"invalid argument {value!r} for {shown!r} flag: {error}") from None
        if flag.deprecated:
            say(f"Flag --{flag.name} has been deprecated, {flag.deprecated}")

    words: list[str] = []
    shorts = {flag.short: flag for flag in flags.values() if flag.short}
    rest = list(args)
    while rest:
        arg = rest.pop(0)
        if arg == "--":
            words += rest
            break
        if arg.startswith("--"):
            _long(arg, rest, flags, put)
        elif arg.startswith("-") and arg != "-":
            _shorthands(arg, rest, shorts, put)
        else:
            words.append(arg)
    return CommandLine(values, words)


def _long(arg: str, rest: list[str], flags: Mapping[str, Flag], put: _Put) -> None:
    name, has_value, value = arg[2:].partition("=")
    if not name or name.startswith("-"):
        raise FlagError(f"bad flag syntax: {arg}")
    flag = flags.get(normalise(name))
    if flag is None:
        raise FlagError(f"unknown flag: --{name}{suggestion(normalise(name), flags)}")
    if not has_value:
        if flag.kind in _VALUELESS:
            value = "true"
        elif rest:
            value = rest.pop(0)
        else:
            raise FlagError(f"flag needs an argument: --{name}")
    put(flag, f"--{flag.name}", value)


def _shorthands(arg: str, rest: list[str], shorts: Mapping[str, Flag], put: _Put) -> None:
    letters = arg[1:]
    while letters:
        letter, letters = letters[0], letters[1:]
        flag = shorts.get(letter)
        if flag is None:
            raise FlagError(f"unknown shorthand flag: {letter!r} in {arg}")
        if letters.startswith("="):
            value, letters = letters[1:], ""
        elif flag.kind in _VALUELESS:
            value = "true"
        elif letters:
            value, letters = letters, ""
        elif rest:
            value = rest.pop(0)
        else:
            raise FlagError(f"flag needs an argument: {letter!r} in {arg}")
        put(flag, f"-{letter}, --{flag.name}", value)


def suggestion(name: str, known: Mapping[str, object]) -> str:
    """` (did you mean --x?)` with the nearest known flag, if one is near."""
    import difflib  # only for a mistake

    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f" (did you mean --{near[0]}?)" if near else ""
