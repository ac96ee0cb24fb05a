"""What HTTP and URLs are made of, as Go's `net/http` and `net/url` have it: for clients and servers."""

from __future__ import annotations

import re
from typing import Final

TOKEN: Final = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
"""The name of a header, and other words in heads."""
HOST: Final = r"[A-Za-z0-9!$%&'()*+,\-.:;=\[\]_~]*"
"""The value of a Host header."""
NOT_IN_VALUES: Final = r"[\x00-\x08\x0a-\x1f\x7f]"
"""What no value of a header may have."""
MAX_INFORMATIONAL: Final = 5
"""Answers (100 Continue, 103 Early Hints …) before the proper one that a client puts up with."""

_BROKEN_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2}).{0,2}")


def broken_escape(url: str) -> str:
    """The first `%` without two hexadecimal digits, and what follows instead; empty if all have them."""
    found = _BROKEN_ESCAPE.search(url)
    return found[0] if found else ""
