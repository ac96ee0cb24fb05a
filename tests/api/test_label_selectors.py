"""Label selectors against a simple restatement of the API's documentation."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.api import v1
from trio_kubelet.api.selectors import SelectorError, matches, selector_text

keys = st.sampled_from(["a", "b", "c"])
values = st.sampled_from(["", "x", "y"])
labels = st.dictionaries(keys, values)
expressions = st.one_of(
    st.fixed_dictionaries(
        {
            "key": keys,
            "operator": st.sampled_from(["In", "NotIn"]),
            "values": st.lists(values, min_size=1, max_size=2),
        }
    ),
    st.fixed_dictionaries({"key": keys, "operator": st.sampled_from(["Exists", "DoesNotExist"])}),
)


def a_selector(**fields: Any) -> v1.LabelSelector:
    return msgspec.convert(fields, v1.LabelSelector)


@given(labels, st.lists(expressions, max_size=3), labels)
def test_all_parts_have_to_fit(
    pairs: dict[str, str], parts: list[dict[str, Any]], have: dict[str, str]
) -> None:
    fits = {
        "In": lambda part: have.get(part["key"]) in part["values"],
        "NotIn": lambda part: have.get(part["key"]) not in part["values"],
        "Exists": lambda part: part["key"] in have,
        "DoesNotExist": lambda part: part["key"] not in have,
    }
    expected = pairs.items() <= have.items() and all(fits[part["operator"]](part) for part in parts)
    assert matches(a_selector(matchLabels=pairs, matchExpressions=parts), have) is expected


@given(labels)
def test_none_fits_nothing_and_an_empty_one_everything(have: dict[str, str]) -> None:
    assert not matches(None, have)
    assert matches(v1.LabelSelector(), have)


@pytest.mark.parametrize(
    ("selector", "text"),
    [
        (None, ""),
        ({}, ""),
        ({"matchLabels": {"b": "2", "a": "1"}}, "a=1,b=2"),
        (
            {
                "matchLabels": {"m": "x"},
                "matchExpressions": [
                    {"key": "z", "operator": "In", "values": ["b", "a"]},
                    {"key": "n", "operator": "NotIn", "values": ["q"]},
                    {"key": "e", "operator": "Exists"},
                    {"key": "d", "operator": "DoesNotExist"},
                ],
            },
            "!d,e,m=x,n notin (q),z in (a,b)",
        ),
    ],
)
def test_written_as_go_writes_it(selector: dict[str, Any] | None, text: str) -> None:
    assert selector_text(None if selector is None else a_selector(**selector)) == text


def test_an_unknown_operator_is_an_error() -> None:
    selector = a_selector(matchExpressions=[{"key": "a", "operator": "Like"}])
    for ask in (lambda: matches(selector, {}), lambda: selector_text(selector)):
        with pytest.raises(SelectorError, match=r'^"Like" is not a valid label selector operator$'):
            ask()
