"""The relist and its parts at three sizes, each with its baselines in the same group.

`table` is the C table, `oracle` its plain-Python twin, `protobuf` decode and dictionary diff with Python's
protobuf library, `read` reading the bytes once. The lists are `bench.lists.node`'s; `shuffled` relists come
in an order that differs from the last one's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import lru_cache

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench import baselines
from bench.bench_cri import CONTAINERS, PODS, WAYS, Client, endpoint
from bench.lists import Node, node
from bench.relist_quick import settled
from trio_kubelet.cri.connect import CRIServices
from trio_kubelet.native.pure_table import PureRelistTable
from trio_kubelet.native.table import CRelistTable

__all__ = ["endpoint"]  # the fixture

SIZES = [1_000, 10_000, 100_000]
SHARES = {"no change": 0.0, "churn 1 %": 0.01, "churn 100 %": 1.0}
Lists = tuple[bytes, bytes]

relist_sizes = pytest.mark.parametrize("size", SIZES)


@lru_cache(maxsize=1)
def example(size: int) -> Node:
    return node(size)


@lru_cache(maxsize=1)
def table_of(size: int) -> CRelistTable:
    return settled(size)[0]


@lru_cache(maxsize=3)
def lists_of(size: int, scenario: str) -> list[Lists]:
    """The answers to relist in turn."""
    if scenario == "shuffled":
        return [example(size).shuffled(seed).encode() for seed in range(3)]
    return [example(size).churned(SHARES[scenario]).encode()]


def measure(
    benchmark: BenchmarkFixture, what: str, series: str, size: int, runs: list[Callable[[], object]]
) -> None:
    """Calls the functions in turn, as often as fits in about half a second."""
    turns: Iterator[Callable[[], object]] = itertools.cycle(runs)
    once = baselines.best_ms(runs, 0, least=2)
    benchmark.group = f"{what}, {size} containers"
    benchmark.extra_info.update(what=what, series=series, containers=size)
    rounds = max(2, int(500 / max(once, 0.1)))
    benchmark.pedantic(lambda: next(turns)(), rounds=rounds)  # type: ignore[no-untyped-call]


def with_lists(function: Callable[[bytes, bytes], object], lists: list[Lists]) -> list[Callable[[], object]]:
    return [lambda pair=pair: function(*pair) for pair in lists]  # type: ignore[misc]


@relist_sizes
@pytest.mark.parametrize("scenario", [*SHARES, "shuffled"])
@pytest.mark.parametrize("series", ["table", "protobuf", "read"])
def test_relist(benchmark: BenchmarkFixture, size: int, scenario: str, series: str) -> None:
    lists = lists_of(size, scenario)
    if series == "protobuf":
        protobuf = baselines.ProtobufTable()
        if scenario in ("no change", "shuffled"):
            protobuf.relist(*lists[0])
            runs = with_lists(protobuf.relist, lists)
        else:  # it commits at once: let it see the node change to and fro
            runs = with_lists(protobuf.relist, [*lists_of(size, "no change"), *lists])
    elif series == "read":
        runs = with_lists(baselines.read_bytes, lists)
    else:
        runs = with_lists(table_of(size).relist, lists)
    measure(benchmark, f"relist, {scenario}", series, size, runs)


@relist_sizes
def test_relist_oracle(benchmark: BenchmarkFixture, size: int) -> None:
    lists = lists_of(size, "no change")
    oracle = PureRelistTable()
    for change in oracle.relist(*lists[0]):
        oracle.commit(change.uid)
    measure(benchmark, "relist, no change", "oracle", size, with_lists(oracle.relist, lists))


@relist_sizes
@pytest.mark.parametrize("series", ["table", "protobuf"])
def test_relist_decode(benchmark: BenchmarkFixture, size: int, series: str) -> None:
    """Reading and checking both lists without looking anything up: all entries are another pod's."""
    lists = lists_of(size, "no change")
    table = CRelistTable()
    function = baselines.decode if series == "protobuf" else lambda s, c: table.relist_pod("nobody", s, c)
    measure(benchmark, "decode", series, size, with_lists(function, lists))


@relist_sizes
@pytest.mark.parametrize("what", ["pods", "counts", "one pod"])
def test_relist_views(benchmark: BenchmarkFixture, size: int, what: str) -> None:
    """What the agent asks of the table after a relist."""
    table = table_of(size)
    uid = next(table.pods())
    ask: dict[str, Callable[[], object]] = {
        "pods": lambda: list(table.pods()),
        "counts": table.counts,
        "one pod": lambda: table.pod(uid),
    }
    measure(benchmark, f"view: {what}", "table", size, [ask[what]])


@pytest.mark.parametrize("way", WAYS)
def test_relist_through_a_socket(benchmark: BenchmarkFixture, endpoint: str, way: str) -> None:
    """Both lists asked for over a unix socket of another process, and relisted: wall-clock time."""
    client, table = Client(endpoint, **WAYS[way]), CRelistTable()

    async def relist(services: CRIServices) -> int:
        sandboxes = await services.runtime.list_pod_sandboxes_raw()
        containers = await services.runtime.list_containers_raw()
        for change in table.relist(sandboxes, containers):
            table.commit(change.uid)
        return table.size().entries

    benchmark.group = f"relist through a socket, {PODS * CONTAINERS} containers"
    try:
        entries = benchmark.pedantic(  # type: ignore[no-untyped-call]
            client.call, (relist,), rounds=15, warmup_rounds=1
        )
    finally:
        client.close()
    assert entries == PODS * (CONTAINERS + 1)
