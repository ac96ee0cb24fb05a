"""Queries and forms: what is taken of them, and what is said of the rest."""

from __future__ import annotations

from typing import cast

import pytest

from trio_kubelet.server.http.forms import BadForm, read_form
from trio_kubelet.server.http.messages import Request, Response, parse_query, parse_target
from trio_kubelet.server.pages.metrics_pages import stats_handlers
from trio_kubelet.stats.pages import StatsPages

SEMICOLON = "invalid semicolon separator in query"


@pytest.mark.parametrize(
    ("query", "found", "fault"),
    [
        ("", {}, ""),
        ("a=1&b&a=2&&c=", {"a": ["1", "2"], "b": [""], "c": [""]}, ""),
        ("a=x+y%20z&%61=%3B", {"a": ["x y z", ";"]}, ""),
        ("a=1;b=2&c=3", {"c": ["3"]}, SEMICOLON),
        ("a=%zz&b=1", {"b": ["1"]}, 'invalid URL escape "%zz"'),
        ("a=%&b%4=1&c=2", {"c": ["2"]}, 'invalid URL escape "%"'),
        ("a=%zz&b;c", {}, SEMICOLON),
    ],
)
def test_parameters(query: str, found: dict[str, list[str]], fault: str) -> None:
    assert parse_query(query) == (found, fault)
    assert parse_target(f"/logs/?{query}") == ("/logs/", found)


FORM = "application/x-www-form-urlencoded"


def request(method: str, query: str = "", body: bytes = b"", content_type: str = "") -> Request:
    headers = (("content-type", content_type),) if content_type else ()
    target = f"/stats/summary?{query}"
    found = parse_target(target)[1]
    return Request(
        method=method, path="/stats/summary", target=target, query=found, headers=headers, body=body
    )


def test_the_fields_of_a_body_come_before_those_of_the_query() -> None:
    assert read_form(request("POST", "a=1&b=2", b"a=3+4", FORM)) == {"a": ["3 4", "1"], "b": ["2"]}
    assert read_form(request("POST", "a=1", b"a=3", FORM.upper() + "; charset=utf-8")) == {"a": ["3", "1"]}
    for other in (request("GET", "a=1", b"a=3", FORM), request("POST", "a=1", b"a=3", "text/plain")):
        assert read_form(other) == {"a": ["1"]}


@pytest.mark.parametrize(
    ("content_type", "fault"),
    [
        ("invalid/content/type", "mime: unexpected content after media subtype"),
        ("text plain", "mime: expected slash after first token"),
        ("text/", "mime: expected token after slash"),
        ("; a=b", "mime: no media type"),
        ("text/plain; =b", "mime: invalid media parameter"),
        ('text/plain; a="b', "mime: invalid media parameter"),
        ("text/plain;" + " ;" * 30_000, "mime: invalid media parameter"),
        ('text/plain; a="' + "\\" * 60_000, "mime: invalid media parameter"),
    ],
)
def test_a_content_type_that_is_none(content_type: str, fault: str) -> None:
    with pytest.raises(BadForm) as caught:
        read_form(request("POST", content_type=content_type))
    assert str(caught.value) == fault
    assert read_form(request("GET", content_type=content_type)) == {}


@pytest.mark.parametrize("content_type", ["", "text", "text/plain;", 'a/b; c=d ; e = "f \\" ;" ; '])
def test_a_content_type_that_is_one(content_type: str) -> None:
    assert read_form(request("POST", content_type=content_type)) == {}


class Pages:
    """Tells which summary was asked for."""

    def summary_page(self, only: bool) -> bytes:
        return b"short" if only else b"long"


@pytest.mark.parametrize(
    ("asked", "status", "body"),
    [
        (request("GET", "only_cpu_and_memory=true"), 200, "short"),
        (request("GET", "only_cpu_and_memory=true&only_cpu_and_memory=true"), 200, "long"),
        (request("GET", "only_cpu_and_memory=1"), 200, "long"),
        (request("POST", body=b"only_cpu_and_memory=true", content_type=FORM), 200, "short"),
        (request("GET", "x=%zz"), 500, 'Internal Error: parse form failed: invalid URL escape "%zz"'),
        (
            request("POST", content_type="invalid/content/type"),
            500,
            "Internal Error: parse form failed: mime: unexpected content after media subtype",
        ),
    ],
)
async def test_the_summary_is_asked_for_by_a_form(asked: Request, status: int, body: str) -> None:
    answer = await stats_handlers(cast(StatsPages, Pages())).summary(asked)
    assert isinstance(answer, Response)
    assert (answer.status, answer.body) == (status, body.encode())
