"""What each flag is set to, as text: what `/flagz` shows.

A flag shows what the command line gave it, else its default; the configuration file is not looked at. Only
with `--config-dir` and no `--config` the kubelet merges the drop-ins into the very values its flags stand
for, and then they show what is in force.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from trio_kubelet.common.duration import format_duration
from trio_kubelet.config.flag_table import attribute_of, kubelet_flags
from trio_kubelet.config.flags import KubeletFlags
from trio_kubelet.config.load import override
from trio_kubelet.config.pflag import Flag
from trio_kubelet.config.types import KubeletConfiguration, MemoryReservation, legacy_configuration

CLASSIFIED: Final = "CLASSIFIED"
# Credentials can be in these: any value but this one is not shown.
_SECRETS: Final[dict[str, Any]] = {"manifest-url-header": {}, "storage-driver-password": "root"}
# Flags the kubelet does not have.
_OWN: Final = frozenset({"container-logs-dir", "manifest-url-ca-file", "node-page", "set-kernel-tunables"})


def flag_texts(flags: KubeletFlags, config: KubeletConfiguration) -> dict[str, str]:
    """The kubelet's flags by name, sorted; `config` is the configuration in force."""
    if flags.config or not flags.config_dir:
        config = override(legacy_configuration(), flags.overrides)
    texts = {}
    for name, flag in sorted(kubelet_flags().items()):
        if name in _OWN:
            continue
        value = _value(flag, flags, config)
        secret = name in _SECRETS and value != _SECRETS[name]
        texts[name] = CLASSIFIED if secret else _WRITERS.get(flag.kind, str)(value)
    return texts


def _value(flag: Flag, flags: KubeletFlags, config: KubeletConfiguration) -> Any:
    if flag.name in ("help", "version"):
        return flags.overrides.get(flag.name, False)
    if not flag.target:
        return getattr(flags, attribute_of(flag))
    value: Any = config
    for attribute in flag.target.split("."):
        value = getattr(value, attribute)
    return value


def _word(value: object) -> str:
    return str(value).lower()


def _list(values: Iterable[str]) -> str:
    """`[a,b]`, with the quotes of CSV where an item needs them."""

    def item(value: str) -> str:
        return '"' + value.replace('"', '""') + '"' if re.search(r'[",\r\n]|^\s', value) else value

    return f"[{','.join(map(item, values))}]"


def _pairs(sign: str) -> Callable[[Mapping[str, object]], str]:
    """`a=1,b=2`, sorted."""
    return lambda values: ",".join(f"{key}{sign}{value}" for key, value in sorted(values.items()))


def _headers(values: Mapping[str, Iterable[str]]) -> str:
    return ",".join(f"{name}:{value}" for name, given in sorted(values.items()) for value in given)


def _reservations(values: Iterable[MemoryReservation]) -> str:
    return ",".join(f"{each.numa_node}:{_pairs('=')(each.limits or {})}" for each in values)


# How a type of flag is written, where that is not plainly.
_WRITERS: Final[dict[str, Callable[[Any], str]]] = {
    "bool": _word,
    "version": lambda value: "false" if value is False else value,
    "duration": format_duration,
    "strings": _list,
    "map": _pairs("="),
    "map-nosplit": _pairs("="),
    "map-langle": _pairs("<"),
    "labels": _pairs("="),
    "map-bool": lambda values: _pairs("=")({name: _word(value) for name, value in values.items()}),
    "multimap": _headers,
    "vmodule": lambda items: ",".join(f"{item.file_pattern}={item.verbosity}" for item in items),
    "reserved-memory": _reservations,
    "taints": lambda taints: ",".join(f"{t.key}={t.value}:{t.effect}" for t in taints),
}
