"""Label selectors against a simple restatement of the API's documentation."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.api import v1
from trio_kubelet.api.selectors import SelectorError, matches, matches_terms, selector_text

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


def fits(labels: dict[str, str], *expressions: dict[str, Any], **term: Any) -> bool:
    """Whether a node `n` with the labels fits a selector of one term."""
    terms = [{"matchExpressions": expressions, **term}]
    return matches_terms(msgspec.convert({"nodeSelectorTerms": terms}, v1.NodeSelector), labels, "n")


@pytest.mark.parametrize(
    ("operator", "value", "label", "fit"),
    [
        ("Gt", "5", "6", True),
        ("Gt", "5", "5", False),
        ("Lt", "5", "-6", True),
        ("Lt", "+5", "+4", False),  # a label's value begins with a letter or digit
        ("Gt", "5", "9223372036854775807", True),
        ("Gt", "5", "9223372036854775808", False),  # more than 64 bits are no number
        ("Lt", "9223372036854775808", "5", False),
        ("Gt", "5", "six", False),
        ("NotIn", "x", "y", True),
        ("NotIn", "x", "x", False),
        ("NotIn", "-x", "y", False),  # what is no label's value makes the term one that nothing fits
        ("NotIn", "x" * 64, "y", False),
        ("Near", "x", "x", False),
    ],
)
def test_terms_of_one_value(operator: str, value: str, label: str, fit: bool) -> None:
    assert fits({"a": label}, {"key": "a", "operator": operator, "values": [value]}) is fit


def test_a_malformed_requirement_makes_its_term_one_that_nothing_fits() -> None:
    good = {"key": "a", "operator": "Exists"}
    here = {"key": "metadata.name", "operator": "In", "values": ["n"]}
    assert fits({"a": ""}, good)
    assert not fits({"a": ""}, good, {"key": "-", "operator": "DoesNotExist"})
    assert not fits({"a": ""}, good, {"key": "b", "operator": "NotIn", "values": []})
    assert not fits({"a": ""}, {**good, "values": ["x"]})
    assert fits({"a": ""}, good, matchFields=[here])
    assert not fits({"a": ""}, good, matchFields=[{**here, "values": ["m"]}])
    assert not fits({"a": ""}, good, matchFields=[{**here, "operator": "Exists"}])
    assert not fits({"a": ""}, good, matchFields=[{**here, "values": ["n", "m"]}])
    assert not fits({"a": ""})
