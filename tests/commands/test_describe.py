"""`trio-kubelet describe`, of pods and of the node."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.commands.stand_in import NODE, PODS, run
from tests.commands.test_render import POD
from trio_kubelet.api.timestamps import rfc3339


def test_describe(agent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(agent, "describe", "pod", "web") == 0
    assert "Story:" in capsys.readouterr().out
    assert run(agent, "describe", "pod", "web", "--show-events=false") == 0
    said = capsys.readouterr().out
    assert "Story:" in said
    assert "Events:" not in said
    assert run(agent, "describe", "pod", "nope") == 1
    assert "'nope'" in capsys.readouterr().err
    assert run(agent, "describe", "pods", "-n", "other") == 0
    assert "No pods" in capsys.readouterr().err


def test_all_pods_are_described(agent: Path, two_pods: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(agent, "describe", "pods") == 0
    said = capsys.readouterr().out
    assert [line.split()[1] for line in said.splitlines() if line.startswith("Name:")] == ["web-node1", "db"]
    assert "\n\n\nName:" in said


@pytest.mark.parametrize(("ago", "lasts"), [(125, "2m5s"), (-20, "<invalid>")])
def test_how_long_a_pod_is_overdue_that_ends(
    ago: int, lasts: str, agent: Path, two_pods: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its moment of deletion is that at which its grace is over, as with kubectl."""
    moment = rfc3339(time.time_ns() - ago * 10**9)
    PODS[:] = [{**POD, "metadata": {**POD["metadata"], "deletionTimestamp": moment}}]
    assert run(agent, "describe", "pods") == 0
    assert f"\nStatus:       Terminating (lasts {lasts})\n" in capsys.readouterr().out


def test_pods_are_described_by_the_beginning_of_their_names(
    agent: Path, two_pods: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where no pod has the name and it is the only one, as with kubectl."""
    assert run(agent, "describe", "pod", "we") == 0
    assert capsys.readouterr().out.startswith("Name:         web-node1\n")
    assert run(agent, "describe", "pod", "we", "-n", "other") == 1
    assert "no pod 'we'" in capsys.readouterr().err
    assert run(agent, "describe", "pod", "we", "db") == 1
    assert "no pod 'we'" in capsys.readouterr().err


def test_events_are_described(
    agent: Path, events: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(agent, "describe", "events", "pod/web-node1") == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "Name: web-node1.3"
    for line in (
        "Count: 4",
        "Reason: BackOff",
        "Type: Warning",
        "Kind: Pod",
        "Field Path: spec.containers{c}",
    ):
        assert line in lines
    assert "NodeReady" not in lines


def test_a_description_of_the_node(
    agent: Path, events: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    asking = {"resources": {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"cpu": "1"}}}
    containers = [{**each, **asking} for each in POD["spec"]["containers"]]
    PODS[:] = [
        {**POD, "spec": {**POD["spec"], "containers": containers}},
        {**POD, "status": {"phase": "Succeeded"}},
    ]
    try:
        assert run(agent, "describe", "node") == 0
    finally:
        PODS[:] = [POD]
    text = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in text.splitlines()]
    for line in (
        "Taints: k=v:NoSchedule",
        "Labels: a=b",
        "Ready True KubeletReady posting ready",
        "Non-terminated Pods: (1 in total)",
        "default web-node1 1 (50%) 2 (100%) 2Gi (50%) 0 (0%) 10m",
        "cpu 1 (50%) 2 (100%)",
        "memory 2Gi (50%) 0 (0%)",
        "Normal NodeReady 5s kubelet here",
    ):
        assert line in lines
    assert "BackOff" not in text
    assert run(agent, "describe", "node", "--show-events=false") == 0
    assert "Events" not in capsys.readouterr().out
    assert run(agent, "describe", "node", "--show-events=true") == 0
    assert "NodeReady" in capsys.readouterr().out


def test_a_node_is_described_with_its_networks_and_its_cloud(
    agent: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taints are in the order of their effects and keys."""
    taints = [("z", "NoSchedule"), ("b", "NoSchedule"), ("y", "NoExecute")]
    spec = {
        "taints": [{"key": key, "effect": effect} for key, effect in taints],
        "podCIDR": "10.0.0.0/24",
        "podCIDRs": ["10.0.0.0/24", "fd00::/64"],
        "providerID": "cloud://a",
    }
    monkeypatch.setitem(NODE, "spec", spec)
    assert run(agent, "describe", "node") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "Taints: y:NoExecute b:NoSchedule z:NoSchedule Unschedulable:" in text
    assert "PodCIDR: 10.0.0.0/24 PodCIDRs: 10.0.0.0/24,fd00::/64 ProviderID: cloud://a Non-" in text


def test_what_is_allocated_of_a_node_is_shown_as_by_kubectl(
    agent: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = {"cpu": "1", "memory": "1Gi", "pods": "110", "hugepages-2Mi": "8Mi", "x.io/b": "2", "x.io/a": "0"}
    monkeypatch.setitem(NODE, "status", {**NODE["status"], "allocatable": there})  # type: ignore[dict-item]
    requests = {"cpu": "290m", "memory": "100M", "hugepages-2Mi": "2Mi", "x.io/b": "1", "x.io/c": "1"}
    container = {"name": "c", "resources": {"requests": requests, "limits": {"memory": "256Mi"}}}
    pods = [
        {
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"containers": [container]},
            "status": {},
        }
        for name in ("a", "b")
    ]
    monkeypatch.setattr("tests.commands.stand_in.PODS", pods)
    assert run(agent, "describe", "node") == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    at = lines.index("Non-terminated Pods: (2 in total)")
    assert lines[at + 3 :] == [
        "default a 290m (28%) 0 (0%) 100M (9%) 256Mi (25%) <unknown>",
        "default b 290m (28%) 0 (0%) 100M (9%) 256Mi (25%) <unknown>",
        "Allocated resources:",
        "(Total limits may be over 100 percent, i.e., overcommitted.)",
        "Resource Requests Limits",
        "-------- -------- ------",
        "cpu 580m (57%) 0 (0%)",
        "memory 200M (18%) 512Mi (50%)",
        "ephemeral-storage 0 (0%) 0 (0%)",
        "hugepages-2Mi 4Mi (50%) 0 (0%)",
        "x.io/a 0 0",
        "x.io/b 2 0",
        "Events: <none>",
    ]


def test_a_description_of_a_pod_has_its_events(
    agent: Path, events: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(agent, "describe", "pod", "web") == 0
    text = capsys.readouterr().out
    assert "spec.containers{c}: Back-off restarting \\x1b[2J" in text
    assert "NodeReady" not in text
    assert text.index("Events:") < text.index("Story:")
