"""Files of environment variables that a container wrote into a volume (KEP-3721).

The format is a part of what a POSIX shell reads: `NAME='value'` with single quotes, the value over several
lines if need be; comments and blank lines are skipped.
"""

from __future__ import annotations


def env_file_value(text: str, key: str) -> str:
    """The value of the first assignment to `key`, "" if there is none.

    Raises ValueError for a line before it that is not an assignment; what follows is not looked at.
    """
    lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]  # as Go's scanner
    number = 0
    while number < len(lines):
        line = lines[number].lstrip(" \t")
        number += 1
        if not line or line.startswith("#"):
            continue
        name, equals, rest = line.partition("=")
        if not equals:
            raise ValueError(f"line {number}: missing '='")
        if not name or name != name.rstrip(" \t"):
            raise ValueError(f"line {number}: no variable name right before '='")
        if rest[:1] in (" ", "\t"):  # as a shell reads it: an empty value, then something else
            if name == key:
                return ""
            continue
        if not rest.startswith("'"):
            raise ValueError(f"line {number}: the value must be in single quotes")
        start = number
        value, quote, after = rest[1:].partition("'")
        while not quote:
            if number == len(lines):
                raise ValueError(f"line {start}: the quote is not closed")
            more, quote, after = lines[number].partition("'")
            value += "\n" + more
            number += 1
        after = after.lstrip(" \t")
        if after and not after.startswith("#"):
            raise ValueError(f"line {number}: unexpected text after the closing quote")
        if name == key:
            return value
    return ""
