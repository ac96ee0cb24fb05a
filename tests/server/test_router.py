"""Which answer a path gets, as a kubelet gives it (recorded from v1.36)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.server.access.authorization import subresources, wanted
from trio_kubelet.server.http.messages import Hijack, Request, Response, parse_target, text
from trio_kubelet.server.http.router import JSON, Route, Router, WebService, clean_path, find_pattern, match

NOT_ACCEPTABLE = "406: Not Acceptable\n\nAvailable representations: application/json"


def asked(target: str, method: str = "GET", **headers: str) -> Request:
    path, query = parse_target(target)
    return Request(method=method, path=path, target=target, query=query, headers=tuple(headers.items()))


async def echo(request: Request) -> Response | Hijack:
    return text(200, str(request.params))


def router() -> Router:
    table = Router()
    table.add(WebService("/pods", [Route("GET", "", echo)], JSON))
    table.add(WebService("/exec", [Route(m, "/{ns}/{pod}", echo) for m in ("GET", "POST")]))
    table.add(WebService("/logs/", [Route("GET", path, echo) for path in ("", "/{rest:*}")]))
    table.handle("/healthz", echo)
    return table


@pytest.mark.parametrize(
    ("request_", "status", "body"),
    [
        (asked("/healthz", "DELETE"), 200, "{}"),
        (asked("/healthz/"), 404, "404 page not found\n"),
        (asked("/none"), 404, "404 page not found\n"),
        (asked("*"), 400, ""),
        (asked("*", "OPTIONS"), 200, ""),
        (asked("/pods/"), 200, "{}"),
        (asked("/pods/x"), 404, "404: Page Not Found"),
        (asked("/pods", "POST"), 405, "405: Method Not Allowed"),
        (asked("/pods", accept="text/html"), 406, NOT_ACCEPTABLE),
        (asked("/pods", accept="text/html, application/json;q=0.1"), 200, "{}"),
        (asked("/exec/a/b", accept="text/html"), 200, "{'ns': 'a', 'pod': 'b'}"),
        (asked("/exec/a%20b/c"), 200, "{'ns': 'a b', 'pod': 'c'}"),
        (asked("/exec"), 404, "404: Page Not Found"),
        (asked("/%70ods"), 200, "{}"),
        (asked("/pods%2F"), 404, "404 page not found\n"),
        (asked("/pods%2fx"), 404, "404 page not found\n"),
        (asked("/exec%2Fa/b"), 404, "404 page not found\n"),
        (asked("/exec/a%2Fb"), 200, "{'ns': 'a', 'pod': 'b'}"),
        (asked("/logs/a%2Fb"), 200, "{'rest': 'a/b'}"),
        (asked("/pods?x=%2F"), 200, "{}"),
        (asked("/logs/a/b/c"), 200, "{'rest': 'a/b/c'}"),
        (asked("//pods?x=1"), 307, '<a href="/pods?x=1">Temporary Redirect</a>.\n\n'),
        (asked("/logs?x=1&y"), 307, '<a href="/logs/?x=1&amp;y">Temporary Redirect</a>.\n\n'),
        (asked("/logs/../etc/passwd"), 307, '<a href="/etc/passwd">Temporary Redirect</a>.\n\n'),
    ],
)  # fmt: skip
async def test_answers(request_: Request, status: int, body: str) -> None:
    answer = await router()(request_)
    assert isinstance(answer, Response)
    assert (answer.status, answer.body) == (status, body.encode())


async def test_the_longest_pattern_counts_in_whatever_order_they_came() -> None:
    async def inner(request: Request) -> Response | Hijack:
        return text(200, "inner")

    for patterns in (("/a/", "/a/b/"), ("/a/b/", "/a/")):
        table = Router()
        for pattern in patterns:
            table.handle(pattern, inner if pattern == "/a/b/" else echo)
        for target, body in (("/a/b/c", b"inner"), ("/a/c", b"{}"), ("/a/bc", b"{}")):
            answer = await table(asked(target))
            assert isinstance(answer, Response)
            assert answer.body == body


async def test_405_names_the_methods() -> None:
    answer = await router()(asked("/exec/a/b", "PUT"))
    assert isinstance(answer, Response)
    assert ("Allow", "GET, POST") in answer.headers


async def test_nothing_known_escapes_the_guard() -> None:
    async def refuse(request: Request) -> Request | Response:
        return text(401, "no")

    table = router()
    guarded = Router(refuse)
    guarded._patterns = table._patterns
    for target in ("/healthz", "/pods", "/pods/x", "/exec", "/logs/a"):
        answer = await guarded(asked(target))
        assert isinstance(answer, Response)
        assert answer.status == 401
    for target in ("/none", "/healthz/"):
        answer = await guarded(asked(target))
        assert isinstance(answer, Response)
        assert answer.status == 404


@pytest.mark.parametrize(
    ("path", "fine", "coarse"),
    [
        ("/pods", ["pods", "proxy"], ["proxy"]),
        ("/podsx", ["proxy"], ["proxy"]),
        ("/runningpods/", ["pods", "proxy"], ["proxy"]),
        ("/healthz/ping", ["healthz", "proxy"], ["proxy"]),
        ("/configz", ["configz", "proxy"], ["proxy"]),
        ("/flagz", ["configz"], ["configz"]),
        ("/statusz", ["statusz"], ["statusz"]),
        ("/stats/summary", ["stats"], ["stats"]),
        ("/metrics/cadvisor", ["metrics"], ["metrics"]),
        ("/logs/", ["log"], ["log"]),
        ("/checkpoint/a/b/c", ["checkpoint"], ["checkpoint"]),
        ("/exec/a/b/c", ["proxy"], ["proxy"]),
        ("/", ["proxy"], ["proxy"]),
    ],
)
def test_subresources(path: str, fine: list[str], coarse: list[str]) -> None:
    assert subresources(path, fine_grained=True) == fine
    assert subresources(path, fine_grained=False) == coarse


@pytest.mark.parametrize(
    ("method", "verb"),
    [("GET", "get"), ("POST", "create"), ("PUT", "update"), ("PATCH", "patch"), ("DELETE", "delete"),
     ("HEAD", ""), ("OPTIONS", "")],
)  # fmt: skip
def test_verbs(method: str, verb: str) -> None:
    first, second = wanted(asked("/pods/", method), "node-a", fine_grained=True)
    assert (first.verb, first.subresource, first.name) == (verb, "pods", "node-a")
    assert (second.verb, second.subresource, second.name) == (verb, "proxy", "node-a")


paths = st.text(alphabet="/.ab", max_size=12)


GO = json.loads((Path(__file__).parents[1] / "golden" / "go-servemux.json").read_text())


@pytest.mark.parametrize(("target", "status", "location", "body"), GO["answers"])
def test_paths_as_go_reads_them(target: str, status: int, location: str, body: str) -> None:
    if status == 400:
        with pytest.raises(ValueError, match="invalid URL escape"):
            parse_target(target)
        return
    request = asked(target)
    found = find_pattern(dict.fromkeys(GO["patterns"], echo), request)
    if isinstance(found, str):
        assert (status, location, body) == (200, "", f"{found} {request.path}")
        return
    assert isinstance(found.body, bytes)
    said = (found.status, dict(found.headers).get("Location", ""), found.body.decode())
    assert said == (status, location, body)


@given(paths)
def test_a_clean_path_stays_and_never_leaves_the_root(path: str) -> None:
    clean = clean_path(path)
    assert clean_path(clean) == clean
    assert clean.startswith("/")
    assert not {"..", "."} & set(clean.split("/"))


@given(st.lists(st.text(alphabet="abc", min_size=1, max_size=3), min_size=2, max_size=2))
def test_parameters_are_the_parts_of_the_path(parts: list[str]) -> None:
    assert match("/x/{a}/{b}", "/x/" + "/".join(parts)) == dict(zip("ab", parts, strict=True))
