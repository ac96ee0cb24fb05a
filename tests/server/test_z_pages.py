"""`/flagz` and `/statusz` over TLS, against what a kubelet v1.36.2 answered to the same requests."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import trio
import trio.testing
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.server.node import Node
from trio_kubelet.common.clock import TrioClock
from trio_kubelet.server.http.messages import Request, Response
from trio_kubelet.server.http.negotiation import TEXT, YAML, Form, page_form, parse_accept
from trio_kubelet.server.node_server import ServerPages
from trio_kubelet.server.pages.z_pages import encoded, flagz, folders, statusz

RECORDED = json.loads((Path(__file__).parents[1] / "golden" / "z-pages.json").read_text())
WHEN = 1_767_323_045 * 10**9
NOW = re.compile(
    r'(startTime"?: ?|Started: |uptimeSeconds"?: ?|Up: |goVersion"?: ?|Go version: )("[^"]*"|[^\n,]+)'
)


def timeless(body: str) -> str:
    """What does not differ between two moments and two languages."""
    return NOW.sub(r"\1…", body)


def request(accept: str | None = None) -> Request:
    headers = () if accept is None else (("accept", accept),)
    return Request(method="GET", path="/", target="/", query={}, headers=headers)


async def asked(client: httpx.AsyncClient, case: dict[str, Any]) -> httpx.Response:
    headers = {"User-Agent": case.get("agent", "x")}
    if case["accept"] is not None:
        headers["Accept"] = case["accept"]
    return await client.get(case["target"], headers=headers)


async def test_every_client_gets_the_form_a_kubelet_chooses(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.flags = {"eviction-hard": "a<1"}
    async with node.serving(), node.client("good") as client:
        del client.headers["Accept"]
        for case in RECORDED["cases"]:
            answer = await asked(client, case)
            got = (answer.status_code, answer.headers["content-type"], answer.headers.get("warning"))
            assert got == (case["status"], case["type"], case.get("warning")), case
            if body := case.get("body"):
                assert timeless(answer.text) == timeless(body), case


async def test_text_has_the_lines_of_a_kubelet(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.flags = {"address": "0.0.0.0", "cluster-domain": "", "eviction-hard": "a<1"}
    async with node.serving(), node.client("good") as client:
        lines = (await client.get("/flagz")).text.split("\n")
        assert lines[:3] == RECORDED["flagz"][:3]
        assert lines[3:] == ["address=0.0.0.0", "cluster-domain=", "eviction-hard=a<1", ""]
        shown = (await client.get("/statusz")).text
    separator = re.search(r"\nUp(:? ?|=? ?) ", RECORDED["statusz"])
    assert separator is not None
    assert timeless(shown) == timeless(RECORDED["statusz"].replace(f"{separator[1]} ", ": "))


async def test_an_object_has_all_flags(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.flags = {"a": "x<y & z", "b": "true", "c": "", "d": "[a,b]", "e": 'q"\\\n', "f": "ü\u2028", "g": "1"}
    async with node.serving(), node.client("good") as client:
        for media, read in (("json", json.loads), ("yaml", yaml.safe_load)):
            accept = f"application/{media};g=config.k8s.io;v=v1beta1;as=Flagz"
            answer = await client.get("/flagz", headers={"Accept": accept})
            assert read(answer.text) == {
                "kind": "Flagz",
                "apiVersion": "config.k8s.io/v1beta1",
                "metadata": {"name": "kubelet"},
                "flags": node.flags,
            }
            if media == "json":
                assert r'"x\u003cy \u0026 z"' in answer.text


async def test_who_may_not_read_the_configuration_may_not_read_the_flags(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.flags = {"a": "b"}
    async with node.serving(), node.client("poor") as poor, node.client() as nobody:
        refused = await poor.get("/flagz")
        assert (refused.status_code, "subresource(s)=[configz]" in refused.text) == (403, True)
        assert (await nobody.get("/flagz")).status_code == 401


async def test_a_flag_that_is_no_unicode_is_shown_nevertheless() -> None:
    for accept in (None, "application/json;g=config.k8s.io;v=v1beta1;as=Flagz"):
        answer = await flagz(lambda: {"a": "x\udcff"})(request(accept))
        assert isinstance(answer, Response)
        assert isinstance(answer.body, bytes)
        assert "x\ufffd" in answer.body.decode()


async def test_statusz_tells_for_how_long_it_runs(autojump_clock: trio.testing.MockClock) -> None:
    page = statusz(TrioClock(WHEN), "v1.36.2", WHEN, ["/b/c", "/a", "/b"])
    await trio.sleep(3725)
    answer = await page(request())
    assert isinstance(answer, Response)
    assert isinstance(answer.body, bytes)
    lines = answer.body.decode().splitlines()
    assert {"Started: Fri Jan  2 03:04:05 UTC 2026", "Up: 1 hr 02 min 05 sec", "Paths: /a /b"} <= set(lines)


async def test_paths_are_those_of_plain_handlers(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.config = msgspec.structs.replace(
        node.config,
        enable_system_log_handler=False,
        enable_profiling_handler=False,
        enable_debug_flags_handler=False,
    )
    async with node.serving(), node.client("good") as client:
        shown = (await client.get("/statusz")).text.splitlines()
    assert shown[-1] == "Paths: /configz /debug /flagz /healthz /logs /metrics"


async def test_a_page_whose_gate_is_off_is_not_there_nor_named(tmp_path: Path) -> None:
    class Without(Node):
        def pages(self) -> ServerPages:
            given = super().pages()
            return msgspec.structs.replace(given, node=msgspec.structs.replace(given.node, flagz=None))

    node = Without(tmp_path)
    async with node.serving(), node.client("good") as client:
        assert (await client.get("/flagz")).status_code == 404
        shown = (await client.get("/statusz")).text.splitlines()
    assert shown[-1] == "Paths: /configz /debug /healthz /metrics"


def test_folders_are_named_once() -> None:
    assert folders(["/metrics", "/metrics/probes", "/", "/debug/flags/v"]) == ["/debug", "/metrics"]


@given(st.text(st.sampled_from("a*/;,=q.1 "), max_size=40))
def test_any_accept_header_can_be_read(header: str) -> None:
    clauses = parse_accept(header)
    assert [clause.quality for clause in clauses] == sorted((c.quality for c in clauses), reverse=True)
    form = page_form(request(header), "Flagz")
    assert form is None or form.media == TEXT


@given(st.dictionaries(st.from_regex(r"\A[a-z][a-z-]{0,9}\Z"), st.text(st.characters(codec="utf-8"))))
def test_yaml_means_what_json_means(flags: dict[str, str]) -> None:
    shown = {"flags": flags, "number": 1, "paths": ["/a", "true"], "metadata": {}}
    assert json.loads(encoded(shown, Form("application/json"))) == shown
    assert json.loads(encoded(shown, Form("application/json", pretty=True))) == shown
    assert yaml.load(encoded(shown, Form(YAML)).decode(), yaml.SafeLoader) == shown


@pytest.mark.parametrize("header", ["*/*;q=0.5, text/plain", "text/plain, */*", "*, text/plain;q=0.1"])
def test_wildcards_come_after_what_is_named(header: str) -> None:
    assert page_form(request(header), "Statusz") == Form(TEXT)
