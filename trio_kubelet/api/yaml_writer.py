"""A tree as YAML, as Go's encoder writes it: keys in order, long lines folded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from trio_kubelet.api.yaml_scalars import STR, resolve


def yaml_bytes(tree: Mapping[str, Any], *, sort_keys: bool = True) -> bytes:
    """The document; without `sort_keys` in the order in which the tree has its keys."""
    options: dict[str, Any] = {"allow_unicode": True, "encoding": "utf-8", "sort_keys": sort_keys}
    written: bytes = yaml.dump(dict(tree), Dumper=_Dumper, **options)
    return written


class _Dumper(yaml.SafeDumper):
    """Quotes where Go's encoder does."""

    def text(self, value: str) -> yaml.ScalarNode:
        style = None
        if resolve(value)[0] != STR or not value.replace("\n", "").isprintable():
            style = '"'
        elif "\n" in value:
            style = "|"
        return self.represent_scalar(STR, value, style)


_Dumper.add_representer(str, _Dumper.text)
