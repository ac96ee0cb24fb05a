"""Label selectors, as kubectl reads them."""

from __future__ import annotations

import pytest

from trio_kubelet.commands.selector import parse_selector

LABELS = {"app": "web", "tier": "", "example.com/env": "prod", "level": "10"}


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
        ("level>9", True),
        ("level > 10", False),
        ("level<11,app", True),
        ("level<10", False),
        ("app>1", False),
        ("other<1", False),
    ],
)
def test_requirements(text: str, met: bool) -> None:
    assert parse_selector(text)(LABELS) is met


@pytest.mark.parametrize(
    "text",
    [
        *("=", "app=web db", "a in x", "a in (b", "app=we$b", "!", "a,,b"),
        *("app=web,", "app=-web", "app=web-", f"app={'w' * 64}", "a in (b c)", "a in (!b)", "level>x"),
        *("a/b/c=d", "/a=b", "a/", "a_", "A.io/x=y"),
    ],
)
def test_what_is_no_selector(text: str) -> None:
    with pytest.raises(ValueError, match="label selector"):
        parse_selector(text)
