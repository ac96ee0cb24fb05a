"""The text of `--help`: flags by group, wrapped to the terminal, each with its default and its field."""

from __future__ import annotations

import itertools
import textwrap
from typing import Any, Final

from trio_kubelet.common.duration import format_duration
from trio_kubelet.config.decode import json_path
from trio_kubelet.config.flag_table import default_of, kubelet_flags
from trio_kubelet.config.implemented import FLAGS, acts
from trio_kubelet.config.pflag import Flag

_USAGE: Final = """\
trio-kubelet runs the pods of one node: it takes them from manifest files, a URL and the API server, and
drives a CRI runtime until what runs is what is wanted. It takes the kubelet's flags and configuration file.

Usage:
  trio-kubelet [flags]               run the node agent
  trio-kubelet inspect MANIFEST      show what this node would make of a manifest
  trio-kubelet standalone            run pods from a directory with a private containerd
  trio-kubelet get | describe | top  ask a running agent about its pods
  trio-kubelet events                what happened to them and to the node
  trio-kubelet logs | exec POD       a pod's output, a command in it
  trio-kubelet page                  show the node in a browser
  trio-kubelet sim ...               a simulated container runtime, for tests

Settings belong in the configuration file (--config); a flag wins over the field of the file it names.
"""
# How a flag's type is written behind its name.
_TYPES: Final = {
    "map": "key=value,…",
    "map-nosplit": "key=value",
    "map-langle": "signal<value,…",
    "map-bool": "name=bool,…",
    "labels": "key=value,…",
    "multimap": "name:value,…",
    "strings": "a,b,…",
    "int32": "int",
    "level": "int",
    "vmodule": "pattern=N,…",
    "reserved-memory": "numa:type=quantity,…",
    "taints": "key=value:effect,…",
}
_INDENT: Final = 6


def help_text(width: int) -> str:
    """The whole text for a terminal of `width` columns."""
    width = max(72, min(width, 120))
    lines = []
    for paragraph in _USAGE.split("\n\n"):
        if "\n  " in paragraph:
            lines += [*paragraph.splitlines(), ""]
        else:
            lines += [*textwrap.wrap(" ".join(paragraph.split()), width), ""]
    for group, flags in itertools.groupby(kubelet_flags().values(), key=lambda flag: flag.group):
        lines.append(f"{group}:")
        for flag in flags:
            lines += _lines(flag, width)
        lines.append("")
    return "\n".join(lines)


def _lines(flag: Flag, width: int) -> list[str]:
    kind = "" if flag.kind in ("bool", "version") else " " + _TYPES.get(flag.kind, flag.kind)
    short = f"-{flag.short}, " if flag.short else ""
    notes = []
    if flag.target:
        notes.append(f"field {json_path(flag.target)}")
    default = default_of(flag)
    if default not in (False, "", 0, [], {}) and flag.name != "version":
        notes.append(f"default {_shown(flag, default)}")
    if not (acts(json_path(flag.target)) if flag.target else flag.name in FLAGS):
        notes.append("no effect")
    text = flag.help + (f" [{', '.join(notes)}]" if notes else "")
    indent = " " * _INDENT
    body = textwrap.wrap(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )
    return [f"  {short}--{flag.name}{kind}", *body]


def _shown(flag: Flag, value: Any) -> str:
    if flag.kind == "duration":
        return format_duration(value)
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, list) else str(value)
