"""`trio-kubelet get`, of pods and of the node."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.commands.stand_in import EVENTS, NODE, PODS, an_event, run
from tests.commands.test_render import POD
from trio_kubelet.commands.main import main


def test_get(agent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(agent, "get", "pods", "-o", "wide") == 0
    assert "web-node1" in capsys.readouterr().out
    assert run(agent, "get", "pods", "web", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out) == {"apiVersion": "v1", "kind": "Pod", **POD}
    assert run(agent, "get", "pods", "-n", "other") == 0
    assert "No pods" in capsys.readouterr().err
    assert run(agent, "get", "pods", "nope") == 1
    assert "nope" in capsys.readouterr().err


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
        (["po,no"], ["pod/web-node1", "pod/db", "node/node1"]),
        (["po,no,pods", "-l", "a=b"], ["node/node1"]),
        (["pod/web", "node/node1", "po/db"], ["pod/web-node1", "pod/db", "node/node1"]),
        (["no", "-l", "a=b"], ["node/node1"]),
        (["events", "web-node1"], ["event/web-node1.1"]),
        (["pods", "--field-selector", "spec.nodeName=node1,metadata.name!=db"], ["pod/web-node1"]),
        (["pods", "--field-selector=metadata.namespace==other"], ["pod/db"]),
        (["pods", "-l", "app=web", "--field-selector=metadata.namespace=other"], []),
        (["node", "--field-selector", "spec.unschedulable=false"], ["node/node1"]),
        (
            ["events", "--field-selector", "involvedObject.name=web-node1,source=kubelet"],
            ["event/web-node1.1"],
        ),
        (["events", "--field-selector", "type=Warning"], []),
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
    "words",
    [["get", "pods"], ["logs", "web", "-c", "c"], ["top", "pods"], ["get", "--help"], ["page"]],
)
@pytest.mark.parametrize("buffered", [True, False])
def test_an_output_that_cannot_be_written_is_an_error(agent: Path, words: list[str], buffered: bool) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "trio_kubelet", *words, "--root-dir", str(agent)],
            env=os.environ | {"PYTHONUNBUFFERED": "" if buffered else "1"},
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == b"trio-kubelet: write /dev/stdout: no space left on device\n"


def test_a_table_of_each_kind(agent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names say what they are of, as with kubectl."""
    assert run(agent, "get", "po,no", "-L", "a") == 0
    pods, pod, between, nodes, node = capsys.readouterr().out.splitlines()
    assert pods.split()[:2] == ["NAMESPACE", "NAME"]
    assert pod.split()[:2] == ["default", "pod/web-node1"]
    assert between == ""
    assert (nodes.split()[0], nodes.split()[-1]) == ("NAME", "A")
    assert (node.split()[0], node.split()[-1]) == ("node/node1", "b")
    assert run(agent, "get", "po,no", "--no-headers", "-n", "nowhere") == 0
    assert capsys.readouterr().out.startswith("node/node1 ")
    assert run(agent, "get", "no,po", "-o", "json") == 0
    listed = json.loads(capsys.readouterr().out)
    assert (listed["kind"], [each["kind"] for each in listed["items"]]) == ("List", ["Node", "Pod"])
    assert run(agent, "get", "po,no", "-l", "a=c") == 0
    assert capsys.readouterr().err == "No such pods, nodes on this node.\n"


def test_of_several_kinds_what_is_there_is_shown(agent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(agent, "get", "po,no", "web") == 1
    said = capsys.readouterr()
    assert "pod/web-node1" in said.out
    assert said.err == "trio-kubelet: this is node 'node1', not 'web'\n"
    assert run(agent, "get", "pod/nope", "node/other", "--ignore-not-found") == 0
    assert capsys.readouterr() == ("", "")
    assert run(agent, "get", "pod/nope", "node/other") == 1
    assert "no pod 'nope' on this node; this is node" in capsys.readouterr().err
    assert run(agent, "describe", "po,no") == 0
    said = capsys.readouterr()
    assert re.findall("^Name: +(.+)$", said.out, re.MULTILINE) == ["web-node1", "node1"]


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (["get", "services"], "no kind 'services', but pod, node, event, top"),
        (["get", "pods,services"], "no kind 'services', but pod, node, event, top"),
        (["get", "pods,"], "no kind '', but pod, node, event, top"),
        (["get", "pods,node", "-w"], "what is watched, is of one kind"),
        (["get", "pods,top"], "of one kind"),
        (["top", "pods,node"], "of one kind"),
        (["get", "pod/"], "named"),
        (["get", "pod/web", "db"], "named"),
        (["get", "pods", "-l", "a b"], "no label selector"),
        (["get", "pods", "web", "-l", "a"], "exclude each other"),
        (["get", "events", "-l", "a"], "no labels"),
        (["get", "top", "-o", "json"], "as a table"),
        (["get", "pods", "web", "--field-selector", "status.phase="], "exclude each other"),
        (["get", "pods", "--field-selector", "status.phase"], "can't understand 'status.phase'"),
        (
            ["get", "pods", "--field-selector", "spec.host=a"],
            "field label not supported: spec.host; supported",
        ),
        (["get", "node", "--field-selector", "status.phase=a"], "supported are metadata.name, spec.unsched"),
        (["get", "pods", "-o", "name", "--show-labels"], "--show-labels is of the table"),
        (["top", "node", "--sum"], "--sum is of pods"),
        (["top", "pods", "--show-capacity"], "--show-capacity is of the node"),
        (["get", "pods", "--nope"], "unknown flag: --nope"),
        (["get"], "arguments are required: KIND\n"),
        (["get", "pods", "-o", "xml"], "there is no form 'xml', but wide, json, yaml, name, jsonpath=…"),
        (["get", "pods", "-o", "jsonpath"], "jsonpath= has to be followed"),
        (["get", "pods", "-o", "jsonpath={.a"], "unclosed action"),
        (["get", "pods", "-o", "jsonpath-file=/nowhere"], "--output: /nowhere: no such file or directory"),
        (["get", "pods", "-o", "custom-columns=NAME"], "'NAME' are no columns"),
        (["get", "pods", "--sort-by", "{.a}{.b}"], "is no path such as"),
        (["get", "pods", "--watch=perhaps"], "--watch is true or false, not 'perhaps'"),
        (["events", "web"], "what they are about is said with --for"),
        (["events", "--types=Normal,Error"], "valid --types are Normal or Warning"),
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
        (["logs", "web", "--tail=some"], 'argument --tail: strconv.Atoi: parsing "some": invalid syntax'),
        (["logs", "web", "--tail=1_0"], "invalid syntax"),
        (["logs", "web", "--limit-bytes", "9" * 20], "value out of range"),
        (["exec", "web"], "the command stands behind --"),
        (["exec", "web", "date"], "the command stands behind --"),
        (["exec", "web", "--", "\udcff"], "the command has to be in UTF-8"),
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


def test_what_is_not_there_may_be_no_error(
    agent: Path, two_pods: None, capsys: pytest.CaptureFixture[str]
) -> None:
    for asked in (["pods", "nope"], ["node", "other"], ["pods", "-n", "nowhere"], ["events", "pod/nope"]):
        for form in ([], ["-o", "name"]):
            assert run(agent, "get", *asked, *form, "--ignore-not-found") == 0
            assert capsys.readouterr() == ("", "")
    assert run(agent, "get", "pods", "nope", "db", "-o", "name", "--ignore-not-found") == 0
    assert capsys.readouterr() == ("pod/db\n", "")


def test_tables_without_their_headers(
    agent: Path, events: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    for asked in (["get", "pods"], ["get", "node"], ["get", "events"], ["top", "pods"], ["top", "node"]):
        assert run(agent, *asked) == 0
        whole = capsys.readouterr().out.splitlines()
        assert run(agent, *asked, "--no-headers") == 0
        assert capsys.readouterr().out.splitlines() == whole[1:]


def test_labels_as_columns(agent: Path, two_pods: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(agent, "get", "pods", "--show-labels", "-L", "example.com/tier,app", "-L=x") == 0
    header, *rows = (line.split() for line in capsys.readouterr().out.splitlines())
    assert header[-4:] == ["TIER", "APP", "X", "LABELS"]
    assert [row[-2:] for row in rows] == [["web", "app=web"], ["db", "app=db"]]
    assert run(agent, "get", "node", "-o", "wide", "--show-labels") == 0
    last = [line.split()[-1] for line in capsys.readouterr().out.splitlines()]
    assert last == ["LABELS", "a=b,node-role.kubernetes.io/worker="]


def test_labels_are_in_the_order_of_their_texts(
    agent: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = {"app": "web", "app.kubernetes.io/name": "web"}
    monkeypatch.setitem(NODE, "metadata", {"name": "node1", "labels": labels})
    assert run(agent, "get", "node", "--show-labels", "--no-headers") == 0
    assert capsys.readouterr().out.split()[-1] == "app.kubernetes.io/name=web,app=web"


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


def test_a_watch_prints_what_changes(
    agent: Path, passing_seconds: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    gone = {**POD, "status": {"phase": "Failed", "reason": "Evicted"}}
    passing_seconds += [{**POD}, gone, gone]
    with pytest.raises(KeyboardInterrupt):
        run(agent, "get", "pods", "-w", "-o", "json")
    text = capsys.readouterr().out
    decoder, found = json.JSONDecoder(), []
    while text.strip():
        document, end = decoder.raw_decode(text.lstrip())
        found.append(document)
        text = text.lstrip()[end:]
    assert [each["status"]["phase"] for each in found] == ["Running", "Failed"]
    assert {each["kind"] for each in found} == {"Pod"}


def test_a_remark_that_cannot_be_written_is_no_error(agent: Path) -> None:
    """That there are no pods, to begin with."""
    words = ["get", "pods", "-n", "none", "--root-dir", str(agent)]
    with open("/dev/full", "wb") as full:
        done = subprocess.run([sys.executable, "-m", "trio_kubelet", *words], stderr=full, check=False)
    assert done.returncode == 0


def test_an_empty_form_is_the_table(agent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a script asks whose variable is empty."""
    for words in (["get", "pods", "-o", "", "--sort-by="], ["get", "top", "-o=", "--sort-by="]):
        assert run(agent, *words) == 0
        assert capsys.readouterr().out.split()[:2] == ["NAMESPACE", "NAME"]


def test_a_watch_of_a_pod_that_is_not_there(
    agent: Path, capsys: pytest.CaptureFixture[str], passing_seconds: list[object]
) -> None:
    passing_seconds += [POD, POD]
    assert run(agent, "get", "pods", "web", "nope", "-w") == 1
    assert capsys.readouterr() == ("", "trio-kubelet: there is no pod 'nope' on this node\n")
    with pytest.raises(KeyboardInterrupt):
        run(agent, "get", "pods", "web", "nope", "-w", "--ignore-not-found")
    assert "web" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["get", "pods", "-w"], ["get", "events", "-w", "-o", "name"]])
def test_ctrl_c_ends_a_watch_as_it_ends_others(agent: Path, words: list[str]) -> None:
    EVENTS[:] = [an_event(1)]
    with subprocess.Popen(
        [sys.executable, "-m", "trio_kubelet", *words, "--root-dir", str(agent)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60)[1] == b""
    EVENTS.clear()
    assert process.returncode == 128 + signal.SIGINT


def test_a_watch_of_the_table(
    agent: Path,
    passing_seconds: list[object],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passing_seconds += [{**POD}, {**POD, "status": {"phase": "Failed", "reason": "Evicted"}}]
    seconds = itertools.count(10**9, 1000)
    monkeypatch.setattr(time, "time_ns", lambda: next(seconds) * 10**9)  # an age alone is no change
    with pytest.raises(KeyboardInterrupt):
        run(agent, "get", "pods", "--watch")
    out = capsys.readouterr().out
    assert out.count("READY") == out.count("ImagePullBackOff") == out.count("Evicted") == 1


def test_documents(agent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(agent, "get", "pods", "-o", "yaml") == 0
    head = {"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}}
    items = [{"apiVersion": "v1", "kind": "Pod", **POD}]
    assert yaml.safe_load(capsys.readouterr().out) == {**head, "items": items}
    assert run(agent, "get", "pods", "-n", "other", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["items"] == []


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
    with pytest.raises(KeyboardInterrupt):
        run(agent, "get", "node", "-w")
    rows = [line.split()[1] for line in capsys.readouterr().out.splitlines()]
    assert rows == ["STATUS", "Ready", "NotReady"]


def test_the_node(agent: Path, events: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(agent, "get", "node", "-o", "wide") == 0
    assert capsys.readouterr().out.splitlines()[1].split() == [
        *("node1", "Ready", "worker", "<unknown>", "v1.36.2"),
        *("10.0.0.1", "<none>", "Debian", "6.1", "(amd64)", "containerd://1.7"),
    ]
    assert run(agent, "get", "nodes", "other") == 1
    assert "this is node 'node1'" in capsys.readouterr().err
    assert run(agent, "get", "no", "node1", "-o", "yaml") == 0
    assert yaml.safe_load(capsys.readouterr().out) == NODE
    assert run(agent, "get", "no", "-o", "yaml") == 0
    assert yaml.safe_load(capsys.readouterr().out)["items"] == [NODE]


def test_a_selector_that_the_node_does_not_meet(agent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for asked in (["-l", "a=c"], ["--field-selector", "metadata.name=other"]):
        assert run(agent, "get", "nodes", *asked) == 0
        assert capsys.readouterr() == ("", "No such nodes on this node.\n")
        assert run(agent, "get", "nodes", *asked, "-o", "jsonpath={.items}") == 0
        assert capsys.readouterr() == ("[]", "")
    assert run(agent, "describe", "nodes", "-l", "a=c") == 0
    assert capsys.readouterr() == ("", "No such nodes on this node.\n")
    assert run(agent, "top", "nodes", "-l", "a=c") == 1
    assert capsys.readouterr().err == "trio-kubelet: No such nodes on this node.\n"
