"""Write the tables of docs/configuration.md from the tables the agent itself uses.

usage: python tools/gen_configuration_docs.py   (a test fails while the file is out of date)
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from trio_kubelet.common.duration import format_duration
from trio_kubelet.config.decode import json_path, specs_of
from trio_kubelet.config.flag_table import default_of, kubelet_flags
from trio_kubelet.config.implemented import FLAGS, GATES, acts
from trio_kubelet.config.load import DEFAULT_EVICTION_HARD
from trio_kubelet.config.types import KubeletConfiguration, legacy_configuration

DOCUMENT = Path(__file__).parents[1] / "docs" / "configuration.md"
MARK = "<!-- Below: written by tools/gen_configuration_docs.py -->\n"


def tables() -> str:
    """The generated part of the document."""
    parts = [
        "## Fields of the configuration file\n",
        "“without a file” is the default when neither `--config` nor the flag is given, where it differs.\n",
        "| field | acts | default | flag |\n| --- | --- | --- | --- |\n" + "".join(_fields()),
        "## Flags that are no field\n",
        "| flag | acts | default | meaning |\n| --- | --- | --- | --- |\n" + "".join(_flags()),
        "## Feature gates\n",
        f"These act: {', '.join(f'`{name}`' for name in sorted(GATES))}.\n",
        "All other gates of the kubelet are checked (name, lock, dependencies) and accepted.\n",
    ]
    return "\n".join(parts)


def document() -> str:
    """The whole document as it should be."""
    written_by_hand = DOCUMENT.read_text().split(MARK)[0]
    return written_by_hand + MARK + "\n" + tables()


def _fields() -> Iterator[str]:
    flags = {json_path(flag.target): flag.name for flag in kubelet_flags().values() if flag.target}
    legacy = dict(_leaves(legacy_configuration()))
    for path, value in _leaves(KubeletConfiguration()):
        if path in ("kind", "apiVersion"):
            continue
        default = value if value == legacy[path] else f"{value}, without a file {legacy[path]}"
        if path == "evictionHard":
            thresholds = ", ".join(f"{signal}: {limit}" for signal, limit in DEFAULT_EVICTION_HARD.items())
            default = f"`{thresholds}`, without a file none"
        flag = f"`--{flags[path]}`" if path in flags else ""
        yield f"| `{path}` | {'yes' if acts(path) else ''} | {default} | {flag} |\n"


def _leaves(value: Struct, above: str = "") -> Iterator[tuple[str, str]]:
    for spec in specs_of(type(value)).values():
        entry = getattr(value, spec.attribute)
        path = above + spec.name
        if isinstance(entry, Struct):
            yield from _leaves(entry, f"{path}.")
        else:
            yield path, _shown(entry, spec.duration)


def _flags() -> Iterator[str]:
    for flag in kubelet_flags().values():
        if not flag.target:
            default = _shown(default_of(flag), flag.kind == "duration")
            yield f"| `--{flag.name}` | {'yes' if flag.name in FLAGS else ''} | {default} | {flag.help} |\n"


def _shown(value: Any, duration: bool) -> str:
    if value is None or value in ("", [], {}):
        return ""
    if duration:
        return f"`{format_duration(value)}`"
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


if __name__ == "__main__":
    DOCUMENT.write_text(document())
