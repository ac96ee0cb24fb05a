"""The figures of the process that Go's client library has besides."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from trio_kubelet.common.process_metrics import ProcessExtras

NETSTAT = """TcpExt: SyncookiesSent SyncookiesRecv
TcpExt: 1 2
IpExt: InNoRoutes InOctets OutOctets
IpExt: 0 123456 789
"""


def registry_over(proc: Path) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(ProcessExtras(str(proc)))
    return registry


def test_memory_and_network(tmp_path: Path) -> None:
    (tmp_path / "self" / "net").mkdir(parents=True)
    (tmp_path / "self" / "net" / "netstat").write_text(NETSTAT)
    registry = registry_over(tmp_path)
    assert registry.get_sample_value("process_network_receive_bytes_total") == 123456
    assert registry.get_sample_value("process_network_transmit_bytes_total") == 789
    assert (registry.get_sample_value("process_virtual_memory_max_bytes") or 0) > 0


@pytest.mark.parametrize("text", ["", "IpExt: InOctets\nIpExt: many\n", "IpExt: A B\nIpExt: 1\n"])
def test_what_cannot_be_read_is_left_out(tmp_path: Path, text: str) -> None:
    (tmp_path / "self" / "net").mkdir(parents=True)
    (tmp_path / "self" / "net" / "netstat").write_text(text)
    registry = registry_over(tmp_path)
    assert registry.get_sample_value("process_network_receive_bytes_total") is None
    assert registry.get_sample_value("process_virtual_memory_max_bytes") is not None
