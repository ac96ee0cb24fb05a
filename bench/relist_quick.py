"""The relist at 10,000 containers in under 40 seconds; the last line is JSON (`make bench-relist`).

All times are minima in milliseconds. `no_change_ms`: both lists validated, nothing differs, entries in the
order of the relist before. `shuffled_ms`: the same in an order new to the table each time. `churn1_ms` and
`churn100_ms`: that share of the containers differs from the committed record, events made as Python
objects. `read_limit_ms`: reading the bytes once. `protobuf_ms`: protobuf decode and dictionary diff.
`oracle_ms`: the plain-Python table. `allocations`: C allocations in one steady relist; `bytes_per_entry`:
C memory per container or sandbox.
"""

from __future__ import annotations

import argparse
import json
from functools import partial

from bench.baselines import ProtobufTable, best_ms, read_bytes
from bench.lists import Node, node
from trio_kubelet.native.pure_table import PureRelistTable
from trio_kubelet.native.table import CRelistTable

SHUFFLES = 6


def settled(containers: int) -> tuple[CRelistTable, Node]:
    """A table that knows the node, everything committed."""
    example = node(containers)
    table = CRelistTable()
    for change in table.relist(*example.encode()):
        table.commit(change.uid)
    table.relist(*example.encode())
    return table, example


def measure(containers: int, seconds: float) -> dict[str, float | int]:
    """All figures for one number of containers, each measured for about `seconds`."""
    table, example = settled(containers)
    lists = example.encode()
    before = table.size()
    table.relist(*lists)
    after = table.size()
    shuffles = [partial(table.relist, *example.shuffled(seed).encode()) for seed in range(SHUFFLES)]
    protobuf, oracle = ProtobufTable(), PureRelistTable()
    for change in oracle.relist(*lists):
        oracle.commit(change.uid)
    figures: dict[str, float | int] = {
        "containers": containers,
        "no_change_ms": best_ms([partial(table.relist, *lists)], seconds),
        "shuffled_ms": best_ms(shuffles, seconds),
        "churn1_ms": best_ms([partial(table.relist, *example.churned(0.01).encode())], seconds),
        "churn100_ms": best_ms([partial(table.relist, *example.churned(1).encode())], seconds),
        "read_limit_ms": best_ms([partial(read_bytes, *lists)], seconds),
        "protobuf_ms": best_ms([partial(protobuf.relist, *lists)], seconds),
        "oracle_ms": best_ms([partial(oracle.relist, *lists)], seconds, least=2),
        "allocations": after.allocations - before.allocations,
        "bytes_per_entry": round(after.bytes / after.entries, 1),
    }
    return {name: round(value, 3) for name, value in figures.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--containers", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each figure")
    options = parser.parse_args()
    figures = measure(options.containers, options.seconds)
    for name, value in figures.items():
        print(f"{name:>16} {value:>10}")
    print(json.dumps(figures, separators=(",", ":")))


if __name__ == "__main__":
    main()
