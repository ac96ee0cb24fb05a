"""Label selectors, as kubectl reads them."""

from __future__ import annotations

import pytest

from trio_kubelet.commands.selector import parse_selector

LABELS = {"app": "web", "tier": "", "example.com/env": "prod"}


@pytest.mark.parametrize(
    ("text", "met"),
    [
        ("", True),
        ("app=web", True),
        ("app==web", True),
        ("app = db", False),
        ("app!=db", True),
        ("app!=web", False),
        ("other!=x", True),
        ("other=x", False),
        ("tier=", True),
        ("app", True),
        ("!app", False),
        ("!other", True),
        ("example.com/env in (dev, prod),app", True),
        ("example.com/env notin (dev,prod)", False),
        ("other notin (a)", True),
        ("other in (a)", False),
        ("app=web,tier!=", False),
    ],
)
def test_requirements(text: str, met: bool) -> None:
    assert parse_selector(text)(LABELS) is met


@pytest.mark.parametrize("text", ["=", "app=web db", "a in x", "a in (b", "app=we$b", "!", "a,,b"])
def test_what_is_no_selector(text: str) -> None:
    with pytest.raises(ValueError, match="label selector"):
        parse_selector(text)
