"""The text format of Prometheus, for samples that come by the ten thousand. Pure.

`server.http.exposition` renders a registry; these pages have none, for their series come and go with pods.
A family is rendered at once and yielded, so that a page is written in slices.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

COUNTER, GAUGE = "counter", "gauge"
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


def label(name: str, value: str) -> str:
    """`name="value"`, escaped; few values have anything to escape, and looking is a tenth of translating."""
    if "\\" in value or "\n" in value or '"' in value:
        value = value.translate(_ESCAPES)
    return f'{name}="{value}"'


def head(name: str, kind: str, meaning: str) -> str:
    """The two lines before a family's samples."""
    return f"# HELP {name} {meaning}\n# TYPE {name} {kind}\n"


def family(name: str, kind: str, meaning: str, samples: Sequence[str]) -> bytes:
    """A family; nothing without samples."""
    return (head(name, kind, meaning) + "".join(samples)).encode() if samples else b""


def sample(name: str, labels: str, value: int | float, at_ns: int | None = None) -> str:
    """One line. The moment, if any, is written in milliseconds."""
    braces = f"{{{labels}}}" if labels else ""
    moment = "" if at_ns is None else f" {at_ns // 1_000_000}"
    return f"{name}{braces} {value}{moment}\n"


def unique(lines: Iterable[tuple[str, str]]) -> list[str]:
    """Lines in the order of their labels; of several with the same labels the last one."""
    return [line for _, line in sorted(dict(lines).items())]
