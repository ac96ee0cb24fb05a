"""`trio-kubelet get` and `describe` against a socket that answers as the agent does."""

from __future__ import annotations

import itertools
import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import UnixStreamServer
from typing import Any

import pytest
import yaml

from tests.commands.test_render import NOW, POD, SECOND, STORY
from trio_kubelet import pagecommand
from trio_kubelet.commands import client
from trio_kubelet.commands.client import SOCKET_NAME
from trio_kubelet.commands.exec import exit_code
from trio_kubelet.commands.main import main

PODS = [POD]
ASKED: list[str] = []
"""What the agent was asked for."""


def an_event(number: int, **fields: object) -> dict[str, object]:
    event = {"type": "Normal", "reason": "Pulled", "message": "here"}
    about = {"kind": "Pod", "name": "web-node1", "namespace": "default", "uid": "u1"}
    times = {"firstNs": NOW - 600 * SECOND, "lastNs": NOW - 5 * SECOND, "count": 1, "number": number}
    return {**event, **about, "fieldPath": "spec.containers{c}", **times, **fields}


EVENTS: list[dict[str, Any]] = []
NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "node1", "labels": {"node-role.kubernetes.io/worker": "", "a": "b"}},
    "spec": {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]},
    "status": {
        "capacity": {"cpu": "4", "memory": "8Gi"},
        "allocatable": {"cpu": "2", "memory": "4Gi"},
        "conditions": [
            {"type": "MemoryPressure", "status": "False", "reason": "KubeletHasSufficientMemory"},
            {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "posting ready"},
        ],
        "addresses": [
            {"type": "InternalIP", "address": "10.0.0.1"},
            {"type": "Hostname", "address": "node1"},
        ],
        "nodeInfo": {
            "kubeletVersion": "v1.36.2",
            "osImage": "Debian",
            "kernelVersion": "6.1",
            "containerRuntimeVersion": "containerd://1.7",
        },
    },
}
SUMMARY = {
    "node": {"cpu": {"usageNanoCores": 500_000_001}, "memory": {"workingSetBytes": 1 << 30}},
    "pods": [
        {
            "podRef": {"name": "web-node1", "namespace": "default"},
            "cpu": {"usageNanoCores": 12_000_000},
            "memory": {"workingSetBytes": 34 << 20},
            "containers": [{"name": "c", "cpu": {"usageNanoCores": 0}, "memory": {}}],
        }
    ],
}


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        after = int(query.removeprefix("after=")) if path == "/debug/events" else 0
        answers = {
            "/pods": {"kind": "PodList", "items": PODS},
            "/debug/story/u1": STORY,
            "/debug/story/u2": [],
            "/debug/events": [event for event in EVENTS if event["number"] > after],
            "/debug/node": NODE,
            "/stats/summary": SUMMARY,
        }
        ASKED.append(self.path)
        if path.startswith("/containerLogs/"):
            body = b"a line\n\xff\x1b[31m"
        else:
            body = json.dumps(answers[path]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "local"

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "trio-kubelet.sock"
    with UnixStreamServer(str(path), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield tmp_path
        server.shutdown()
        thread.join()


def run(agent: Path, *argv: str) -> int:
    return main([*argv, "--root-dir", str(agent)])


def test_get(agent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(agent, "get", "pods", "-o", "wide") == 0
    assert "web-node1" in capsys.readouterr().out
    assert run(agent, "get", "pods", "web", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out) == {"apiVersion": "v1", "kind": "Pod", **POD}
    assert run(agent, "get", "pods", "-n", "other") == 0
    assert "No pods" in capsys.readouterr().err
    assert run(agent, "get", "pods", "nope") == 1
    assert "nope" in capsys.readouterr().err


OTHER = {**POD, "metadata": {"name": "db", "namespace": "other", "uid": "u2", "labels": {"app": "db"}}}


@pytest.fixture
def two_pods() -> Iterator[None]:
    PODS[:] = [POD, OTHER]
    yield
    PODS[:] = [POD]


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        (["pods"], ["pod/web-node1", "pod/db"]),
        (["pods", "-A"], ["pod/web-node1", "pod/db"]),
        (["po", "--all-namespaces"], ["pod/web-node1", "pod/db"]),
        (["pods", "-n", "other"], ["pod/db"]),
        (["pods", "-l", "app=web"], ["pod/web-node1"]),
        (["pods", "--selector", "app notin (web)"], ["pod/db"]),
        (["pod", "db", "web"], ["pod/db", "pod/web-node1"]),
        (["pod", "-n", "other", "db"], ["pod/db"]),
        (["pod/db", "pods/web"], ["pod/db", "pod/web-node1"]),
        (["node/node1"], ["node/node1"]),
        (["no", "-l", "a=b"], ["node/node1"]),
        (["events", "web-node1"], ["event/web-node1.1"]),
    ],
)
def test_what_is_asked_for_as_with_kubectl(
    asked: list[str], names: list[str], agent: Path, two_pods: None, capsys: pytest.CaptureFixture[str]
) -> None:
    EVENTS[:] = [an_event(1)]
    try:
        assert run(agent, "get", *asked, "-o", "name") == 0
    finally:
        EVENTS.clear()
    assert sorted(capsys.readouterr().out.split()) == sorted(names)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (["get", "services"], "no kind 'services', but pod, node, event, top"),
        (["get", "pod/web", "node/node1"], "of one kind"),
        (["get", "pod/"], "named"),
        (["get", "pods", "-l", "a b"], "no label selector"),
        (["get", "pods", "web", "-l", "a"], "exclude each other"),
        (["get", "events", "-l", "a"], "no labels"),
        (["get", "top", "-o", "json"], "as a table"),
        (["get", "pods", "--nope"], "unrecognized arguments: --nope"),
        (["logs", "web", "c"], "unrecognized arguments: c"),
        (["top", "events"], "no kind 'event'"),
        (["top", "pods", "a", "b"], "of one pod or of all"),
    ],
)
def test_what_cannot_be_asked_for(asked: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(asked)
    assert ended.value.code == 2
    assert why in capsys.readouterr().err


def test_names_that_are_not_there_do_not_hide_those_that_are(
    agent: Path, two_pods: None, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("get", "describe"):
        assert run(agent, command, "pods", "nope", "db", "nor-this") == 1
        said = capsys.readouterr()
        assert "db" in said.out
        assert "there is no pod 'nope', 'nor-this'" in said.err


def test_tables_without_their_headers(
    agent: Path, events: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    for asked in (["get", "pods"], ["get", "node"], ["get", "events"], ["top", "pods"], ["top", "node"]):
        assert run(agent, *asked) == 0
        whole = capsys.readouterr().out.splitlines()
        assert run(agent, *asked, "--no-headers") == 0
        assert capsys.readouterr().out.splitlines() == whole[1:]


def test_a_name_in_several_namespaces(agent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    PODS.append({**POD, "metadata": {**POD["metadata"], "namespace": "other", "uid": "u2"}})
    try:
        for command in (["get", "pod", "web"], ["describe", "pod", "web"]):
            assert run(agent, *command) == 1
            said = capsys.readouterr()
            assert said.out == ""
            assert "namespaces default, other: choose one with -n" in said.err
        assert run(agent, "describe", "pod", "web", "-n", "default") == 0
    finally:
        PODS[:] = [POD]


@pytest.fixture
def passing_seconds(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """What happens to the pods in each second of a watch; then it is broken off."""
    happens: list[object] = []

    def sleep(seconds: float) -> None:
        if not happens:
            raise KeyboardInterrupt
        PODS[:] = [happens.pop(0)]  # type: ignore[list-item]

    monkeypatch.setattr(time, "sleep", sleep)
    yield happens
    PODS[:] = [POD]


def test_a_watch_prints_what_changes(
    agent: Path, passing_seconds: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    gone = {**POD, "status": {"phase": "Failed", "reason": "Evicted"}}
    passing_seconds += [{**POD}, gone, gone]
    assert run(agent, "get", "pods", "-w", "-o", "json") == 0
    text = capsys.readouterr().out
    decoder, found = json.JSONDecoder(), []
    while text.strip():
        document, end = decoder.raw_decode(text.lstrip())
        found.append(document)
        text = text.lstrip()[end:]
    assert [each["status"]["phase"] for each in found] == ["Running", "Failed"]
    assert {each["kind"] for each in found} == {"Pod"}


def test_a_watch_of_the_table(
    agent: Path,
    passing_seconds: list[object],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passing_seconds += [{**POD}, {**POD, "status": {"phase": "Failed", "reason": "Evicted"}}]
    seconds = itertools.count(10**9, 1000)
    monkeypatch.setattr(time, "time_ns", lambda: next(seconds) * 10**9)  # an age alone is no change
    assert run(agent, "get", "pods", "--watch") == 0
    out = capsys.readouterr().out
    assert out.count("READY") == out.count("ImagePullBackOff") == out.count("Evicted") == 1


def test_documents(agent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(agent, "get", "pods", "-o", "yaml") == 0
    assert yaml.safe_load(capsys.readouterr().out) == {"apiVersion": "v1", "kind": "PodList", "items": [POD]}
    assert run(agent, "get", "pods", "-n", "other", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["items"] == []


def test_describe(agent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(agent, "describe", "pod", "web") == 0
    assert "Story:" in capsys.readouterr().out
    assert run(agent, "describe", "pod", "nope") == 1
    assert "'nope'" in capsys.readouterr().err
    assert run(agent, "describe", "pods", "-n", "other") == 0
    assert "No pods" in capsys.readouterr().err


def test_all_pods_are_described(agent: Path, two_pods: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(agent, "describe", "pods") == 0
    said = capsys.readouterr().out
    assert [line.split()[1] for line in said.splitlines() if line.startswith("Name:")] == ["web-node1", "db"]
    assert "\n\n\nName:" in said


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


def test_a_watch_of_the_node(
    agent: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A heartbeat alone is no news."""
    ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": "2023-11-14T22:13:00Z"}
    news = [{**ready, "lastHeartbeatTime": "2023-11-14T22:13:10Z"}, {**ready, "status": "False"}]
    status: dict[str, Any] = {"conditions": [ready]}
    monkeypatch.setitem(NODE, "status", status)

    def sleep(seconds: float) -> None:
        if not news:
            raise KeyboardInterrupt
        status["conditions"] = [news.pop(0)]

    monkeypatch.setattr(time, "sleep", sleep)
    assert run(agent, "get", "node", "-w") == 0
    rows = [line.split()[1] for line in capsys.readouterr().out.splitlines()]
    assert rows == ["STATUS", "Ready", "NotReady"]


def test_no_agent_is_said_with_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "get", "pods") == 1
    assert "is the agent running" in capsys.readouterr().err


def test_an_agent_that_does_not_answer_http(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trio-kubelet.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen(1)

        def hang_up() -> None:
            accepted, _ = listening.accept()
            accepted.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        assert run(tmp_path, "get", "pods") == 1
        thread.join()
    assert "no answer" in capsys.readouterr().err


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """What the agent knows of events, at a fixed time."""
    monkeypatch.setattr(time, "time_ns", lambda: NOW)
    EVENTS[:] = [
        an_event(3, count=4, reason="BackOff", type="Warning", message="Back-off\nrestarting \x1b[2J"),
        an_event(7, kind="Node", name="node1", namespace="", uid="", fieldPath="", reason="NodeReady"),
    ]
    yield EVENTS
    EVENTS.clear()


def test_events_read_like_kubectls(
    agent: Path, events: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(agent, "get", "events") == 0
    assert capsys.readouterr().out.splitlines() == [
        "NAMESPACE   LAST SEEN          TYPE      REASON      OBJECT          MESSAGE",
        "default     5s (x4 over 10m)   Warning   BackOff     pod/web-node1   Back-off restarting \\x1b[2J",
        "default     5s                 Normal    NodeReady   node/node1      here",
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
    assert run(agent, "get", "events", "--watch") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["NAMESPACE", *["default"] * 4]
    assert "Killing" in lines[3]
    assert "(x5 over" in lines[4]


def test_the_node(agent: Path, events: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(agent, "get", "node", "-o", "wide") == 0
    assert capsys.readouterr().out.splitlines()[1].split() == [
        *("node1", "Ready", "worker", "<unknown>", "v1.36.2"),
        *("10.0.0.1", "<none>", "Debian", "6.1", "containerd://1.7"),
    ]
    assert run(agent, "get", "nodes", "other") == 1
    assert "this is node 'node1'" in capsys.readouterr().err
    assert run(agent, "get", "no", "-o", "yaml") == 0
    assert yaml.safe_load(capsys.readouterr().out) == NODE


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


def test_a_description_of_a_pod_has_its_events(
    agent: Path, events: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(agent, "describe", "pod", "web") == 0
    text = capsys.readouterr().out
    assert "Back-off restarting \\x1b[2J" in text
    assert "NodeReady" not in text
    assert text.index("Events:") < text.index("Story:")


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


def test_a_log_is_passed_on_as_it_is(agent: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    ASKED.clear()
    assert run(agent, "logs", "web", "-c", "d", "--tail=5", "--since=1m30s", "-p", "--timestamps") == 0
    said = capfdbinary.readouterr()
    assert said.out == b"a line\n\xff\x1b[31m"
    query = "previous=true&timestamps=true&tailLines=5&sinceSeconds=90"
    assert ASKED[-1] == f"/containerLogs/default/web-node1/d?{query}"
    assert run(agent, "logs", "pod/web") == 0
    assert b'Defaulted container "c" out of: c, d' in capfdbinary.readouterr().err
    assert run(agent, "logs", "web", "-c", "nope") == 1
    assert b"it has: c, d" in capfdbinary.readouterr().err


@pytest.mark.parametrize("text", ["", "5", "-5s", "5s5", "1d", "s"])
def test_what_is_no_duration_is_refused(agent: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(agent, "logs", "web", f"--since={text}")
    assert "is no duration" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("status", "code", "why"),
    [
        ({"status": "Success"}, 0, ""),
        (
            {
                "status": "Failure",
                "reason": "NonZeroExitCode",
                "details": {"causes": [{"reason": "ExitCode", "message": "7"}]},
            },
            7,
            "",
        ),
        ({"status": "Failure", "reason": "InternalError", "message": "no such file"}, 1, "no such file"),
        ({"status": "Failure", "reason": "NonZeroExitCode"}, 1, "not understood"),
        ([], 1, "not understood"),
    ],
)
def test_exit_codes(status: object, code: int, why: str) -> None:
    found, said = exit_code(json.dumps(status).encode())
    assert found == code
    assert why in said


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory whose sockets' paths are not too long."""
    with tempfile.TemporaryDirectory(prefix="tk") as path:
        yield Path(path)


def test_a_standalone_node_is_found(
    agent: Path, short: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where no agent of the machine answers; of several one has to be chosen."""
    monkeypatch.setattr(client, "DEFAULT_ROOT_DIR", str(short / "nobody"))
    monkeypatch.setattr(client, "STANDALONE_BASE", str(short / "base"))
    monkeypatch.setattr(tempfile, "tempdir", str(short / "tmp"))
    assert main(["get", "pods"]) == 1
    assert "is the agent running" in capsys.readouterr().err

    def put(directory: Path) -> None:
        directory.mkdir(parents=True)
        (agent / SOCKET_NAME).rename(directory / SOCKET_NAME)

    put(short / "tmp" / "trio-kubelet-x" / "kubelet")
    assert main(["get", "pods"]) == 0
    dead = short / "base" / "old" / "kubelet"
    dead.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(dead / SOCKET_NAME))  # nobody listens there
        assert main(["get", "pods"]) == 0
        bound.listen(1)
        assert main(["get", "pods"]) == 1
        assert "choose with --socket" in capsys.readouterr().err
        assert pagecommand.main([]) == 1
        assert "choose with --socket" in capsys.readouterr().err
    monkeypatch.setattr(os, "geteuid", lambda: 12345)  # somebody else's
    assert client.standalone_sockets() == []
