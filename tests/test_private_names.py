"""Names of libraries that are not public: which there are, that they exist, and that a bound keeps them."""

from __future__ import annotations

import ast
import re
import ssl
import tomllib
from collections import defaultdict
from pathlib import Path

import grpclib.client
import grpclib.server
import prometheus_client
import pytest
import trio
import trio.testing
from grpclib.protocol import EventsProcessor, H2Protocol
from prometheus_client import CollectorRegistry

from trio_kubelet.common.tls import close_for_good

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "trio_kubelet"

USED = {
    "common/tls.py": {"_handshook", "_ssl_object", "_sslobj"},
    "grpc/grpclib_calls.py": {"_create_connection", "_protocol_factory"},
    "grpc/grpclib_server.py": {"_protocol_factory"},
    "server/http/exposition.py": {
        "_buckets",
        "_child_samples",
        "_collector_to_names",
        "_documentation",
        "_labelnames",
        "_metrics",
        "_name",
        "_sum",
        "_type",
        "_upper_bounds",
    },
}
"""Private names of libraries, by the module that uses them; docs/dependencies.md says what for."""

PUBLIC = {"_replace", "_asdict", "_exit", "_getframe", "_Decompress"}
"""Names of the standard library that are documented in spite of their look, or only stand in annotations."""


def test_no_others_are_used() -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        if path.name.endswith("_pb2.py"):
            continue
        nodes = list(ast.walk(ast.parse(path.read_text())))
        own = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
        own |= {node.attr for node in attributes if ast.unparse(node.value) in ("self", "cls")}
        for node in attributes:
            private = node.attr.startswith("_") and not node.attr.startswith("__")
            overrides = ast.unparse(node.value) == "super()"
            if private and node.attr not in PUBLIC and (overrides or node.attr not in own):
                found[path.relative_to(PACKAGE).as_posix()].add(node.attr)
    assert dict(found) == USED


def test_they_exist() -> None:
    assert callable(grpclib.client.Channel._create_connection)
    assert callable(grpclib.server.Server._protocol_factory)
    registry = CollectorRegistry()
    histogram = prometheus_client.Histogram("h", "words", ["a"], registry=registry, buckets=(1, 2))
    child = histogram.labels("x")
    child.observe(1.5)
    assert list(registry._collector_to_names) == [histogram]
    assert (histogram._name, histogram._type, histogram._documentation) == ("h", "histogram", "words")
    assert tuple(histogram._labelnames) == ("a",)
    assert dict(histogram._metrics) == {("x",): child}
    assert [bucket.get() for bucket in child._buckets] == [0, 1, 0]
    assert len(child._upper_bounds) == 3
    assert child._sum.get() == 1.5
    assert [sample.name for sample in child._child_samples()]


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (EventsProcessor, "register"),
        (EventsProcessor, "process_data_received"),
        (EventsProcessor, "process_remote_settings_changed"),
        (H2Protocol, "connection_made"),
    ],
)
def test_seams_of_grpclib_without_a_document_exist_too(owner: type, name: str) -> None:
    assert callable(getattr(owner, name))


async def test_without_the_name_of_trio_a_circle_would_only_wait_for_the_collector() -> None:
    here, _ = trio.testing.memory_stream_pair()
    stream = trio.SSLStream(here, ssl.create_default_context(), server_hostname="node")
    assert stream._handshook
    assert stream._ssl_object._sslobj is not None  # type: ignore[attr-defined]
    await close_for_good(stream)
    await close_for_good(stream)  # also when it is not there


def test_a_bound_keeps_what_is_not_promised() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    bounds = {re.split(r"[^\w-]", line, maxsplit=1)[0]: line for line in project["dependencies"]}
    for library in ("grpclib", "prometheus-client"):
        assert "<" in bounds[library], library
    page = (ROOT / "docs" / "dependencies.md").read_text()
    for names in USED.values():
        for name in names:
            assert f"`{name}`" in page, name
