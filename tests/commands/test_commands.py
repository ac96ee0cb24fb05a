"""`trio-kubelet get` and `describe` against a socket that answers as the agent does."""

from __future__ import annotations

import itertools
import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import UnixStreamServer

import pytest
import yaml

from tests.commands.test_render import POD, STORY
from trio_kubelet import commands

PODS = [POD]


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        answers = {"/pods": {"kind": "PodList", "items": PODS}, "/debug/story/u1": STORY}
        body = json.dumps(answers[self.path]).encode()
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
    return commands.main([*argv, "--root-dir", str(agent)])


def test_get(agent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(agent, "get", "pods", "-o", "wide") == 0
    assert "web-node1" in capsys.readouterr().out
    assert run(agent, "get", "pods", "web", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["items"] == [POD]
    assert run(agent, "get", "pods", "-n", "other") == 0
    assert "No pods" in capsys.readouterr().err
    assert run(agent, "get", "pods", "nope") == 1
    assert "nope" in capsys.readouterr().err


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
