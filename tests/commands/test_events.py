"""`trio-kubelet get events` and `events`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.commands.stand_in import PODS, an_event, run
from tests.commands.test_render import POD


def test_events_read_like_kubectls(
    agent: Path, events: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(agent, "get", "events") == 0
    assert capsys.readouterr().out.splitlines() == [
        "NAMESPACE   LAST SEEN   TYPE      REASON      OBJECT          MESSAGE",
        "default     5s          Warning   BackOff     pod/web-node1   Back-off restarting \\x1b[2J",
        "default     5s          Normal    NodeReady   node/node1      here",
    ]
    assert run(agent, "get", "events", "-o", "wide") == 0
    header, first, _ = capsys.readouterr().out.splitlines()
    assert header.partition("SUBOBJECT")[2].split() == ["SOURCE", "MESSAGE", "FIRST", "SEEN", "COUNT", "NAME"]
    assert first.split()[5:7] == ["spec.containers{c}", "kubelet"]
    assert first.split()[-3:] == ["10m", "4", "web-node1.3"]
    assert run(agent, "events") == 0
    assert capsys.readouterr().out.splitlines() == [
        "NAMESPACE   LAST SEEN          TYPE      REASON      OBJECT          MESSAGE",
        "default     5s (x4 over 10m)   Warning   BackOff     Pod/web-node1   Back-off restarting \\x1b[2J",
        "default     5s                 Normal    NodeReady   Node/node1      here",
    ]
    for asked, reasons in (
        (["events", "web-node1"], {"BackOff"}),
        (["event", "node/node1"], {"NodeReady"}),
        (["ev", "-n", "default"], {"BackOff", "NodeReady"}),
        (["ev", "-n", "other"], set()),
    ):
        assert run(agent, "get", *asked, "-o", "json") == 0
        assert {item["reason"] for item in json.loads(capsys.readouterr().out)["items"]} == reasons
    assert run(agent, "get", "events", "-n", "other") == 0
    assert "No events" in capsys.readouterr().err


def test_events_are_in_the_namespace_of_what_they_are_about(
    agent: Path, events: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    events.append(an_event(8, namespace="other", name="db", reason="Killing"))
    assert run(agent, "get", "events", "-n", "other", "--no-headers") == 0
    assert capsys.readouterr().out.split() == ["other", "5s", "Normal", "Killing", "pod/db", "here"]
    assert run(agent, "get", "events", "-o", "jsonpath={.items[*].metadata.namespace}") == 0
    assert capsys.readouterr().out.split() == ["default", "default", "other"]


def test_a_watch_of_events_prints_each_once(
    agent: Path,
    events: list[dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    news = [[an_event(8, reason="Killing")], [], [{**events[0], "number": 9, "count": 5}]]

    def sleep(seconds: float) -> None:
        if not news:
            raise KeyboardInterrupt
        events.extend(news.pop(0))

    monkeypatch.setattr(time, "sleep", sleep)
    with pytest.raises(KeyboardInterrupt):
        run(agent, "events", "--watch")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["NAMESPACE", *["default"] * 4]
    assert "Killing" in lines[3]
    assert "(x5 over" in lines[4]


def test_events_by_their_own_command(
    agent: Path, events: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    for asked, reasons in (
        ([], ["BackOff", "NodeReady"]),
        (["--for", "pod/web-node1"], ["BackOff"]),
        (["--for", "pods/web"], ["BackOff"]),
        (["--for", "node/node1"], ["NodeReady"]),
        (["--for", "web-node2"], []),
        (["--types=Normal"], ["NodeReady"]),
        (["--types", "warning,normal"], ["BackOff", "NodeReady"]),
        (["--types=Normal", "--types=Warning"], ["BackOff", "NodeReady"]),
    ):
        assert run(agent, "events", *asked, "-o", "jsonpath={.items[*].reason}") == 0
        assert capsys.readouterr().out.split() == reasons
    PODS.append({**POD, "metadata": {**POD["metadata"], "namespace": "other"}})
    try:
        assert run(agent, "events", "--for", "web", "-o", "name") == 0  # wherever it is
    finally:
        PODS.pop()
    assert capsys.readouterr().out == "event/web-node1.3\n"
    assert run(agent, "get", "events", "--sort-by=.reason", "-o", "jsonpath={.items[*].reason}") == 0
    assert capsys.readouterr().out == "BackOff NodeReady"
    assert run(agent, "get", "events", "--sort-by=.count", "-o", "jsonpath={.items[*].count}") == 0
    assert capsys.readouterr().out == "1 4"
