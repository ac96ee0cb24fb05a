"""`trio-kubelet top`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands.stand_in import NODE, SUMMARY, run


def test_usage_reads_like_kubectls(agent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(agent, "top", "node") == 0
    assert capsys.readouterr().out.splitlines() == [
        "NAME    CPU(cores)   CPU(%)   MEMORY(bytes)   MEMORY(%)",
        "node1   501m         25%      1024Mi          25%",
    ]
    for command in (["top", "pods"], ["get", "top"], ["top", "pod", "web"]):
        assert run(agent, *command) == 0
        assert capsys.readouterr().out.splitlines() == [
            "NAMESPACE   NAME        CPU(cores)   MEMORY(bytes)",
            "default     web-node1   12m          34Mi",
        ]
    assert run(agent, "top", "pods", "--containers") == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["default", "web-node1", "c", "0m", "<unknown>"]


def test_usage_together(agent: Path, two_pods: None, capsys: pytest.CaptureFixture[str]) -> None:
    used = {"cpu": {"usageNanoCores": 1_000_001}, "memory": {"workingSetBytes": 3 << 20}}
    containers = [{"name": "a", **used}, {"name": "b", **used}]
    SUMMARY["pods"].append(  # type: ignore[attr-defined]
        {"podRef": {"name": "db", "namespace": "other"}, **used, "containers": containers}
    )
    try:
        assert run(agent, "top", "pods", "--sum") == 0
        assert capsys.readouterr().out.splitlines() == [
            "NAMESPACE   NAME        CPU(cores)   MEMORY(bytes)",
            "default     web-node1   12m          34Mi",
            "other       db          2m           3Mi",
            "                        ________     ________",
            "                        14m          37Mi",
        ]
        assert run(agent, "top", "pod", "db", "--containers", "--sum", "--no-headers") == 0
        assert capsys.readouterr().out.splitlines()[-1].split() == ["3m", "6Mi"]
        assert run(agent, "top", "pods", "--field-selector", "metadata.name=db", "--no-headers") == 0
        assert capsys.readouterr().out.split() == ["other", "db", "2m", "3Mi"]
    finally:
        SUMMARY["pods"].pop()  # type: ignore[attr-defined]


def test_shares_of_all_that_the_node_has(agent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(agent, "top", "node", "--show-capacity", "--no-headers") == 0
    assert capsys.readouterr().out.split() == ["node1", "501m", "12%", "1024Mi", "12%"]


def test_what_is_swapped_out(
    agent: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(agent, "top", "node", "--show-swap", "--no-headers") == 0
    assert capsys.readouterr().out.split()[-2:] == ["<unknown>", "<unknown>"]
    swap = {"swap": {"swapUsageBytes": 5 << 20}}
    node_info = {**NODE["status"]["nodeInfo"], "swap": {"capacity": 20 << 20}}  # type: ignore[index]
    monkeypatch.setitem(NODE, "status", {**NODE["status"], "nodeInfo": node_info})  # type: ignore[dict-item]
    monkeypatch.setitem(SUMMARY, "node", {**SUMMARY["node"], **swap})  # type: ignore[dict-item]
    monkeypatch.setitem(SUMMARY, "pods", [{**SUMMARY["pods"][0], **swap}])  # type: ignore[index]
    assert run(agent, "top", "node", "--show-swap") == 0
    assert capsys.readouterr().out.splitlines() == [
        "NAME    CPU(cores)   CPU(%)   MEMORY(bytes)   MEMORY(%)   SWAP(bytes)   SWAP(%)",
        "node1   501m         25%      1024Mi          25%         5Mi           25%",
    ]
    assert run(agent, "top", "pods", "--show-swap", "--sum") == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["NAMESPACE", "NAME", "CPU(cores)", "MEMORY(bytes)", "SWAP(bytes)"],
        ["default", "web-node1", "12m", "34Mi", "5Mi"],
        ["________"] * 3,
        ["12m", "34Mi", "5Mi"],
    ]


@pytest.mark.parametrize(("nano_cores", "part"), [(19_000_001, "1%"), (580_000_000, "28%")])
def test_parts_are_of_what_is_shown(
    nano_cores: int,
    part: str,
    agent: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """20 of 2000 thousandths are a hundredth; 580 of them kubectl computes to be a bit less than 29."""
    used = {"cpu": {"usageNanoCores": nano_cores}, "memory": {"workingSetBytes": 0}}
    monkeypatch.setitem(SUMMARY, "node", used)
    assert run(agent, "top", "node", "--no-headers") == 0
    assert capsys.readouterr().out.split()[2] == part


def test_usage_in_order(agent: Path, two_pods: None, capsys: pytest.CaptureFixture[str]) -> None:
    busy = {"cpu": {"usageNanoCores": 1_000_000}, "memory": {"workingSetBytes": 99 << 20}}
    idle: dict[str, object] = {"cpu": {"usageNanoCores": 1}, "memory": {"workingSetBytes": 0}}
    containers = [{"name": "zz-busy", **busy}, {"name": "idle", **idle}]
    other = {"podRef": {"name": "db", "namespace": "other"}, **busy, "containers": containers}
    SUMMARY["pods"].append(other)  # type: ignore[attr-defined]
    try:
        for sort_by, names in (("cpu", ["web-node1", "db"]), ("memory", ["db", "web-node1"])):
            assert run(agent, "top", "pods", "--no-headers", f"--sort-by={sort_by}") == 0
            assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == names
        assert run(agent, "top", "pod", "db", "--containers", "--no-headers", "--sort-by=cpu") == 0
        assert [line.split()[2] for line in capsys.readouterr().out.splitlines()] == ["zz-busy", "idle"]
        assert run(agent, "top", "pod", "db", "--containers", "--no-headers") == 0
        assert [line.split()[2] for line in capsys.readouterr().out.splitlines()] == ["idle", "zz-busy"]
        assert run(agent, "top", "pods", "-n", "nowhere") == 0
        assert "No pods" in capsys.readouterr().err
    finally:
        SUMMARY["pods"].pop()  # type: ignore[attr-defined]
    assert run(agent, "top", "pod", "db") == 1  # of which nothing is measured
    assert "what they use is not known" in capsys.readouterr().err
