"""The expansion of `$(NAME)` in commands, values and paths. Pure.

Rules: `third_party/forked/golang/expansion`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

# `$$` is a dollar sign, `$(NAME)` a reference; a dollar sign before anything else stays.
_REFERENCE = re.compile(r"\$(?:(\$)|\(([^)]*)\))")


def expand(text: str, lookup: Callable[[str], str | None]) -> str:
    """Replaces references; one that `lookup` does not know (None) stays as it is."""

    def replace(match: re.Match[str]) -> str:
        if match[1]:
            return "$"
        value = lookup(match[2])
        return match[0] if value is None else value

    return _REFERENCE.sub(replace, text)


def expand_all(texts: Sequence[str] | None, env: Mapping[str, str]) -> list[str]:
    """A command or its arguments with the container's variables put in."""
    return [expand(text, env.get) for text in texts or ()]
