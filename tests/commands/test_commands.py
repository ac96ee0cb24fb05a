"""`trio-kubelet get` and `describe` against a socket that answers as the agent does."""

from __future__ import annotations

import itertools
import json
import os
import socket
import sys
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
from hypothesis import given
from hypothesis import strategies as st

from tests.commands.test_render import NOW, POD, SECOND, STORY
from trio_kubelet import page_command
from trio_kubelet.commands import client
from trio_kubelet.commands.client import SOCKET_NAME
from trio_kubelet.commands.exec import exit_code
from trio_kubelet.commands.logs import lines
from trio_kubelet.commands.main import main

PODS = [POD]
REFUSED = ""
"""What it answers with an error."""
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
        if path == REFUSED:
            self.send_response(400)
            self.send_header("Content-Length", "16")
            self.end_headers()
            self.wfile.write(b"waiting to start")
            return
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
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
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
        (["get", "pods", "--nope"], "unknown flag: --nope"),
        (["get"], "arguments are required: KIND\n"),
        (["get", "pods", "-o", "xml"], "there is no form 'xml', but wide, json, yaml, name, jsonpath=…"),
        (["get", "pods", "-o", "jsonpath"], "jsonpath= has to be followed"),
        (["get", "pods", "-o", "jsonpath={.a"], "unclosed action"),
        (["get", "pods", "-o", "jsonpath-file=/nowhere"], "No such file"),
        (["get", "pods", "-o", "custom-columns=NAME"], "'NAME' are no columns"),
        (["get", "pods", "--sort-by", "{.a}{.b}"], "is no path such as"),
        (["get", "pods", "--watch=perhaps"], "--watch is true or false, not 'perhaps'"),
        (["events", "web"], "what they are about is said with --for"),
        (["top", "events"], "no kind 'event'"),
        (["top", "pods", "a", "b"], "of one pod or of all"),
        (["top", "pods", "--sort-by=name"], "accepts only cpu or memory"),
        (["logs"], "logs POD [CONTAINER]"),
        (["logs", "web", "c", "d"], "logs POD [CONTAINER]"),
        (["logs", "web", "c", "-c", "d"], "named twice"),
        (["logs", "web", "c", "--all-containers"], "exclude each other"),
        (["logs", "web", "-l", "a"], "exclude each other"),
        (["logs", "web", "--since=5s", "--since-time=2026-01-01T00:00:00Z"], "exclude each other"),
        (["logs", "web", "--tail=-2"], "--tail must be greater than or equal to -1"),
        (["logs", "web", "--limit-bytes=-1"], "--limit-bytes must be greater than 0"),
        (["logs", "web", "--since-time=yesterday"], "not an RFC 3339 timestamp: 'yesterday'"),
        (["logs", "web", "--tail=some"], "invalid int value: 'some'"),
        (["exec", "web"], "the command stands behind --"),
        (["exec", "web", "date"], "the command stands behind --"),
    ],
)
def test_what_cannot_be_asked_for(asked: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(asked)
    assert ended.value.code == 1
    said = capsys.readouterr().err.splitlines(keepends=True)
    assert said[0].startswith("error: ")
    assert why in said[0]
    assert said[1:] == [f"See 'trio-kubelet {asked[0]} --help' for usage.\n"]


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
    head = {"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}}
    items = [{"apiVersion": "v1", "kind": "Pod", **POD}]
    assert yaml.safe_load(capsys.readouterr().out) == {**head, "items": items}
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
    assert run(agent, "get", "no", "node1", "-o", "yaml") == 0
    assert yaml.safe_load(capsys.readouterr().out) == NODE
    assert run(agent, "get", "no", "-o", "yaml") == 0
    assert yaml.safe_load(capsys.readouterr().out)["items"] == [NODE]


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
    assert "spec.containers{c}: Back-off restarting \\x1b[2J" in text
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


def test_usage_in_order(agent: Path, two_pods: None, capsys: pytest.CaptureFixture[str]) -> None:
    busy = {"cpu": {"usageNanoCores": 1_000_000}, "memory": {"workingSetBytes": 99 << 20}}
    idle: dict[str, object] = {"cpu": {"usageNanoCores": 1}, "memory": {"workingSetBytes": 0}}
    containers = [{"name": "idle", **idle}, {"name": "busy", **busy}]
    other = {"podRef": {"name": "db", "namespace": "other"}, **busy, "containers": containers}
    SUMMARY["pods"].append(other)  # type: ignore[attr-defined]
    try:
        for sort_by, names in (("cpu", ["web-node1", "db"]), ("memory", ["db", "web-node1"])):
            assert run(agent, "top", "pods", "--no-headers", f"--sort-by={sort_by}") == 0
            assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == names
        assert run(agent, "top", "pod", "db", "--containers", "--no-headers", "--sort-by=cpu") == 0
        assert [line.split()[2] for line in capsys.readouterr().out.splitlines()] == ["busy", "idle"]
        assert run(agent, "top", "pods", "-n", "nowhere") == 0
        assert "No pods" in capsys.readouterr().err
    finally:
        SUMMARY["pods"].pop()  # type: ignore[attr-defined]
    assert run(agent, "top", "pod", "db") == 1  # of which nothing is measured
    assert "what they use is not known" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("asked", "out"),
    [
        (["pods", "-o", "jsonpath={.items[*].metadata.name}"], "web-node1 db"),
        (["pods", "-o", "jsonpath={range .items[*]}{.kind}:{.metadata.name}{'\\t'}{end}"], None),
        (["pod", "db", "-o", "jsonpath={.metadata.name}"], "db"),
        (["pod/db", "pod/web", "-o", "jsonpath={.items[*].metadata.name}"], "db web-node1"),
        (["pods", "-o", "jsonpath-as-json={.items[*].metadata.name}"], '[\n    "web-node1",\n    "db"\n]\n'),
        (["pods", "-n", "nowhere", "-o", "jsonpath={.items}"], "[]"),
        (
            ["pods", "-o", "custom-columns=N:metadata.name,X:.x"],
            "N           X\nweb-node1   <none>\ndb          <none>\n",
        ),
        (["pod", "db", "--no-headers", "-o", "custom-columns=N:{.metadata.labels}"], "map[app:db]\n"),
        (["pods", "-o", "name", "--sort-by=.metadata.name"], "pod/db\npod/web-node1\n"),
        (["pods", "-o", "name", "--sort-by={metadata.namespace}"], "pod/web-node1\npod/db\n"),
        (["node", "-o", "jsonpath={.items[0].status.allocatable.cpu}"], "2"),
        (
            ["node", "node1", "-o", "jsonpath={.status.addresses[?(@.type=='InternalIP')].address}"],
            "10.0.0.1",
        ),
        (["Pods", "-A=true", "--no-headers=false", "-o", "name"], "pod/web-node1\npod/db\n"),
        (["pods", "-n", "other", "-A", "-o", "name"], "pod/web-node1\npod/db\n"),
    ],
)
def test_forms(
    asked: list[str], out: str | None, agent: Path, two_pods: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(agent, "get", *asked) == 0
    assert capsys.readouterr().out == (out if out is not None else "Pod:web-node1\tPod:db\t")


def test_forms_in_files(agent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "template"
    file.write_text("{.items[0].metadata.name}\n")
    assert run(agent, "get", "pods", "-o", f"jsonpath-file={file}") == 0
    assert capsys.readouterr().out == "web-node1\n"
    file.write_text("NAME KIND\nmetadata.name .kind\n")
    assert run(agent, "get", "pods", "-o", f"custom-columns-file={file}") == 0
    assert capsys.readouterr().out == "NAME        KIND\nweb-node1   Pod\n"
    for columns in ("", "NAME KIND\nmetadata.name\n"):
        file.write_text(columns)
        with pytest.raises(SystemExit):
            run(agent, "get", "pods", "-o", f"custom-columns-file={file}")
        assert "as many paths" in capsys.readouterr().err


def test_a_template_that_does_not_fit(agent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for asked in (["-o", "jsonpath={.items[9]}"], ["--sort-by=.nope"], ["--sort-by=.spec"]):
        assert run(agent, "get", "pods", *asked) == (0 if asked == ["--sort-by=.spec"] else 1)
    said = capsys.readouterr().err
    assert "array index out of bounds: index 9, length 1" in said
    assert "--sort-by: none of them has such a field" in said


def test_what_a_template_finds_reaches_no_terminal_as_it_is(
    agent: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """But a program, for which it is."""
    PODS[:] = [{**POD, "metadata": {**POD["metadata"], "annotations": {"a": "b\x1b[2J\rc"}}}]
    try:
        asked = ("get", "pod", "web", "-o", 'jsonpath={.metadata.annotations.a}{"\\n\\t"}')
        assert run(agent, *asked) == 0
        assert capsys.readouterr().out == "b\x1b[2J\rc\n\t"
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        assert run(agent, *asked) == 0
        assert capsys.readouterr().out == "b\\x1b[2J\\rc\n\t"
    finally:
        PODS[:] = [POD]


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


@pytest.mark.parametrize(
    ("asked", "out", "targets"),
    [
        (["web", "d"], b"a line\n\xff\x1b[31m", ["default/web-node1/d"]),
        (["web", "d", "--since=0"], b"a line\n\xff\x1b[31m", ["default/web-node1/d"]),
        (["web", "d", "--since=1ms"], b"a line\n\xff\x1b[31m", ["default/web-node1/d?sinceSeconds=1"]),
        (["-p", "web", "d"], b"a line\n\xff\x1b[31m", ["default/web-node1/d?previous=true"]),
        (["web", "--tail", "-1", "d"], b"a line\n\xff\x1b[31m", ["default/web-node1/d"]),
        (
            ["web", "--all-containers=true", "--prefix"],
            b"".join(
                b"[pod/web-node1/%c] %s\n" % (c, x) for c in b"cd" for x in (b"a line", b"\xff\x1b[31m")
            ),
            ["default/web-node1/c", "default/web-node1/d"],
        ),
        (
            ["-l", "app in (web,db)", "-c", "d"],
            b"a line\n\xff\x1b[31m\n" * 2,
            ["default/web-node1/d?tailLines=10", "other/db/d?tailLines=10"],
        ),
        (["-l", "app=db", "-c", "c", "--tail=-1"], b"a line\n\xff\x1b[31m\n", ["other/db/c"]),
        (["-l", "app=nope"], b"", []),
    ],
)
def test_which_logs(
    asked: list[str],
    out: bytes,
    targets: list[str],
    agent: Path,
    two_pods: None,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    ASKED.clear()
    assert run(agent, "logs", *asked) == 0
    said = capfdbinary.readouterr()
    assert said.out == out
    assert [each for each in ASKED if "Logs" in each] == [f"/containerLogs/{target}" for target in targets]
    assert (b"No such pods on this node." in said.err) is (not targets)


def test_logs_that_are_followed_side_by_side(
    agent: Path, two_pods: None, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert run(agent, "logs", "-f", "-l", "app", "--all-containers", "--prefix") == 0
    sources = [b"web-node1/c", b"web-node1/d", b"db/c", b"db/d"]
    said = [b"[pod/%s] %s" % (each, line) for each in sources for line in (b"a line", b"\xff\x1b[31m")]
    assert sorted(capfdbinary.readouterr().out.splitlines()) == sorted(said)
    assert run(agent, "logs", "-f", "-l", "app", "--all-containers", "--max-log-requests=3") == 1
    assert b"these are 4 logs, 3 may be followed: see --max-log-requests" in capfdbinary.readouterr().err


def test_a_log_that_cannot_be_had(
    agent: Path, two_pods: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Ends the command, also where several are followed, or is told among the others."""
    monkeypatch.setattr(f"{__name__}.REFUSED", "/containerLogs/default/web-node1/d")
    for follow in ([], ["-f"]):
        asked = ("logs", "-l", "app", "--all-containers", "--prefix", *follow)
        assert run(agent, *asked) == 1
        assert capfd.readouterr().err == "trio-kubelet: waiting to start\n"
        assert run(agent, *asked, "--ignore-errors") == 0
        said = capfd.readouterr()
        assert said.err == "error: waiting to start\n"
        assert len(said.out.splitlines()) == 6


@given(st.lists(st.binary(max_size=6) | st.sampled_from([b"\n", b"a\n"])), st.binary(max_size=2))
def test_lines_behind_a_prefix(pieces: list[bytes], prefix: bytes) -> None:
    whole = b"".join(pieces)
    parts = whole.split(b"\n")
    expected = [prefix + part + b"\n" for part in (parts if parts[-1] else parts[:-1])]
    assert b"".join(lines(iter(pieces), prefix)) == b"".join(expected)


def test_a_line_without_end_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trio_kubelet.commands.logs.MAX_LINE", 10)
    endless = lines(itertools.repeat(b"abc"), b"> ")
    assert [next(endless), next(endless)] == [b"> abcabcabcabc", b"> abcabcabcabc"]


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
        assert page_command.main([]) == 1
        assert "choose with --socket" in capsys.readouterr().err
    monkeypatch.setattr(os, "geteuid", lambda: 12345)  # somebody else's
    assert client.standalone_sockets() == []
    assert main(["get", "pods"]) == 1
    said = capsys.readouterr().err
    assert "may be a standalone node of user " in said
    assert ": ask as that user, as with sudo\n" in said


def test_a_standalone_node_is_found_beside_an_agent_of_somebody_else(
    agent: Path, short: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(client, "DEFAULT_ROOT_DIR", str(short / "nobody"))
    monkeypatch.setattr(client, "STANDALONE_BASE", str(short / "base"))
    monkeypatch.setattr(tempfile, "tempdir", str(short / "tmp"))

    class Locked(socket.socket):
        def connect(self, address: Any) -> None:
            if "nobody" in address:
                raise PermissionError
            super().connect(address)

    monkeypatch.setattr(socket, "socket", Locked)
    assert main(["get", "pods"]) == 1
    assert "permission denied; ask as the agent's user" in capsys.readouterr().err
    own = short / "tmp" / "trio-kubelet-x" / "kubelet"
    own.mkdir(parents=True)
    (agent / SOCKET_NAME).rename(own / SOCKET_NAME)
    assert main(["get", "pods"]) == 0
