"""What a runtime's verbose status says of itself beyond the CRI."""

from __future__ import annotations

import json
from collections.abc import Mapping


def sandbox_image(info: Mapping[str, str]) -> str:
    """The image of sandboxes, out of what a runtime's verbose status says of its configuration.

    Empty if it does not, as containerd 2.x.
    """
    for text in info.values():
        try:
            config = json.loads(text)
        except ValueError:
            continue
        found = config.get("sandboxImage") if isinstance(config, dict) else None
        if isinstance(found, str) and found:
            return found
    return ""
