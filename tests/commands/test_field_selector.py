"""Field selectors, as kubectl and the API server read them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.commands.field_selector import Term, field_selector, parse_field_selector

POD: dict[str, Any] = {
    "metadata": {"name": "web", "namespace": "default"},
    "spec": {"nodeName": "node1", "restartPolicy": "Always"},
    "status": {"phase": "Running", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]},
}


@pytest.mark.parametrize(
    ("text", "met"),
    [
        ("", True),
        (",,", True),
        ("status.phase=Running", True),
        ("status.phase==Running", True),
        ("status.phase!=Running", False),
        ("status.phase=running", False),
        ("status.phase=Running,metadata.name=db", False),
        ("metadata.name!=db,metadata.namespace=default", True),
        ("status.nominatedNodeName=", True),
        ("spec.serviceAccountName!=", False),
        ("spec.hostNetwork=false", True),
        ("spec.hostNetwork=true", False),
        ("status.podIP=10.0.0.1", True),
        ("spec.nodeName=node1,spec.restartPolicy!=Never", True),
    ],
)
def test_pods(text: str, met: bool) -> None:
    assert field_selector("pod", parse_field_selector(text))(POD) is met


def test_booleans_and_what_is_not_there() -> None:
    host = {**POD, "spec": {"hostNetwork": True}, "status": {}}
    assert field_selector("pod", parse_field_selector("spec.hostNetwork=true,status.podIP="))(host)
    bare = {"spec": {"nodeName": None}, "status": {"podIPs": []}}
    assert field_selector("pod", parse_field_selector("spec.nodeName=,status.podIP="))(bare)
    is_cordoned = field_selector("node", parse_field_selector("spec.unschedulable=true"))
    assert is_cordoned({"metadata": {"name": "a"}, "spec": {"unschedulable": True}})
    assert not is_cordoned({"metadata": {"name": "a"}, "spec": None})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("status.phase", "invalid selector: 'status.phase'; can't understand 'status.phase'"),
        ("a=b, c", "can't understand ' c'"),
        ("a=b=c", "unescaped character in value: ="),
        ("a===c", "unescaped character in value: ="),
        ("a=\\b", "invalid escape sequence: \\\\b"),
        ("a=b\\", "invalid escape sequence: \\\\"),
    ],
)
def test_what_is_no_selector(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_field_selector(text)


def test_a_field_that_is_not_known() -> None:
    with pytest.raises(ValueError, match=r"field label not supported:  a; supported are metadata\.name"):
        field_selector("node", parse_field_selector(" a=b"))


@given(st.lists(st.tuples(st.sampled_from(["a", "b.c"]), st.text(max_size=5), st.booleans()), max_size=4))
def test_any_value_can_be_asked_for(terms: list[tuple[str, str, bool]]) -> None:
    escaping = str.maketrans({char: "\\" + char for char in "\\,="})
    text = ",".join(
        f"{field}{'=' if equal else '!='}{value.translate(escaping)}" for field, value, equal in terms
    )
    assert parse_field_selector(text) == [Term(*term) for term in terms]
