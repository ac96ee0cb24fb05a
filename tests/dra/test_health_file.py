"""`dra_health_state`: as the kubelet writes it, and what is still good of it."""

from __future__ import annotations

import re

import pytest

from tests.turns import others
from trio_kubelet.common.clock import NANOSECONDS
from trio_kubelet.dra.driver import _reports
from trio_kubelet.dra.health import (
    LONGEST_SECONDS,
    MAX_MESSAGE,
    MOST_REPORTS,
    DeviceHealth,
    DriverHealth,
    HealthState,
    decode_reports,
    encode_reports,
    shortened,
)
from trio_kubelet.dra.proto import health_pb2

NOW = 1_700_000_000 * NANOSECONDS
KUBELETS = (
    b'{"gpu.example.com":{"Devices":{"pool/dev-0":{"PoolName":"pool","DeviceName":"dev-0",'
    b'"Health":"Unhealthy","LastUpdated":"2023-11-14T23:13:15.5+01:00","HealthCheckTimeout":0,'
    b'"Message":"too hot"},"pool/dev-1":{"PoolName":"pool","DeviceName":"dev-1","Health":"Healthy",'
    b'"LastUpdated":"2023-11-14T22:13:10Z","HealthCheckTimeout":5000000000,"Message":""}}},'
    b'"nic.example.com":{"Devices":null}}'
)
"""As Go writes it, at 22:13:20 UTC less a few seconds."""


def test_what_is_too_old_is_not_known_any_more() -> None:
    assert decode_reports(KUBELETS, now=100.0, now_ns=NOW) == {
        "gpu.example.com": {
            ("pool", "dev-0"): DeviceHealth(health="Unhealthy", message="too hot", seconds=30, until=125.5)
        }
    }


def test_what_is_from_the_future_is_not_believed() -> None:
    assert decode_reports(KUBELETS, now=100.0, now_ns=NOW - 60 * NANOSECONDS) == {}


def test_it_is_read_as_it_was_written() -> None:
    reports = {"d": {("p", "a/b"): DeviceHealth(health="Healthy", message="ä", seconds=7.0, until=105.0)}}
    content = encode_reports(HealthState(reports, 100.0, NOW))
    assert b'"LastUpdated":"2023-11-14T22:13:18Z","HealthCheckTimeout":7000000000' in content
    assert decode_reports(content, now=3.0, now_ns=NOW) == {
        "d": {("p", "a/b"): DeviceHealth(health="Healthy", message="ä", seconds=7.0, until=8.0)}
    }


@pytest.mark.parametrize("content", [b"", b"[]", b'{"d":{"Devices":{"x":{}}}}', b'{"d":{"Devices":{"x":1}}}'])
def test_what_cannot_be_read_is_an_error(content: bytes) -> None:
    with pytest.raises(ValueError):
        decode_reports(content, now=0.0, now_ns=NOW)


def test_of_more_devices_than_a_node_has_the_latest_reports_are_kept() -> None:
    known = DriverHealth()
    for at in range(30):
        reports = {("p", f"{at}-{n}"): DeviceHealth(health="Healthy", until=1e9) for n in range(1000)}
        reports["p", "seen always"] = DeviceHealth(health="Healthy", until=1e9)
        changed = known.update(reports, at)
    assert len(known.reports) == MOST_REPORTS
    assert {("p", "seen always"), ("p", "29-0")} <= known.reports.keys()
    assert ("p", "0-0") not in known.reports
    assert ("p", "20-0") in changed


async def test_of_very_many_the_latest_are_read_and_others_have_their_turns() -> None:
    said = health_pb2.NodeWatchResourcesResponse()
    for number in range(2 * MOST_REPORTS):
        said.devices.add().device.device_name = str(number)
    async with others() as turns:
        reports = await _reports(said, 100.0)
    assert [name for _, name in reports] == [str(MOST_REPORTS + number) for number in range(MOST_REPORTS)]
    assert turns.count >= 10


async def test_a_report_that_is_good_for_ever_can_be_written_as_the_kubelet_reads_it() -> None:
    said = health_pb2.NodeWatchResourcesResponse()
    said.devices.add(health_check_timeout_seconds=2**63 - 1).device.device_name = "d"
    content = encode_reports(HealthState({"a": await _reports(said, 100.0)}, 100.0, NOW))
    [timeout] = re.findall(rb'"HealthCheckTimeout":(\d+)', content)
    assert int(timeout) < 2**63
    assert decode_reports(content, now=100.0, now_ns=NOW)


def test_a_span_that_is_no_span_is_read_as_the_longest() -> None:
    [reports] = decode_reports(KUBELETS.replace(b"5000000000", b"9" * 400), now=100.0, now_ns=NOW).values()
    assert reports["pool", "dev-1"].seconds == LONGEST_SECONDS


def test_how_long_a_report_is_good_is_news_too() -> None:
    """It stands in the file, which is written with the news."""
    known, key = DriverHealth(), ("p", "d")
    for seconds, news in ((30.0, {key}), (30.0, set()), (60.0, {key})):
        report = DeviceHealth(health="Healthy", seconds=seconds, until=100.0)
        assert known.update({key: report}, 1.0) == news


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("x" * MAX_MESSAGE, "x" * MAX_MESSAGE),
        ("x" * (MAX_MESSAGE + 1), "x" * (MAX_MESSAGE - 3) + "..."),
        ("ä" * (MAX_MESSAGE // 2), "ä" * (MAX_MESSAGE // 2)),
        ("ä" * MAX_MESSAGE, "ä" * ((MAX_MESSAGE - 3) // 2) + "..."),
    ],
)
def test_a_message_has_as_many_bytes_as_the_api_server_takes(message: str, shown: str) -> None:
    assert shortened(message) == shown
    assert len(shown.encode()) <= MAX_MESSAGE
