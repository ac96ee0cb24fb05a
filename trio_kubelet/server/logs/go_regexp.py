"""Whether a regular expression is one that Go's `regexp` reads, and what Go says if not.

The kubelet checks the pattern of a node log query so, and then hands it to journalctl, which reads it as
PCRE2: what is found is not decided here. Go's syntax is RE2's: look-around, back-references and possessive
repetition are faults. RE2 differs in any byte (`\\C`), which it takes, in long names of Unicode categories,
which it does not know, and in which of two faults it names.

RE2 is the extra `go-patterns`: without it every pattern is one, and journalctl says what is wrong with it.
"""

from __future__ import annotations

from typing import Final

_GO_WORDS: Final = {
    "missing ]": "missing closing ]",
    "missing )": "missing closing )",
    "trailing \\": "trailing backslash at end of expression",
    "no argument for repetition operator": "missing argument to repetition operator",
    "invalid repetition size": "invalid repeat count",
    "bad repetition operator": "invalid nested repetition operator",
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "invalid named capture group": "invalid named capture",
    "pattern too large - compile failed": "expression too large",
}


def fault(pattern: str) -> str | None:
    """What Go says about a pattern that it does not read; None for one that it does, or without RE2."""
    try:
        import re2  # only a node with the log query enabled pays for it
    except ImportError:
        return None
    options = re2.Options()
    options.log_errors = False
    try:
        re2.compile(pattern.encode("utf-8", "surrogatepass"), options)
    except re2.error as error:
        reason, _, part = error.args[0].decode("utf-8", "replace").partition(": ")
        return f"error parsing regexp: {_GO_WORDS.get(reason, reason)}: `{part}`"
    return None
