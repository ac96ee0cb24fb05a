"""Which agent a command asks: that of the machine, or a standalone one of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socketserver import StreamRequestHandler, UnixStreamServer
from typing import Any

import pytest

from tests.commands.stand_in import run
from trio_kubelet import page_command
from trio_kubelet.commands import client
from trio_kubelet.commands.client import SOCKET_NAME
from trio_kubelet.commands.main import main


def test_no_agent_is_said_with_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "get", "pods") == 1
    where = f"no answer at {tmp_path}/trio-kubelet.sock (no such file or directory)"
    assert f"{where}; is the agent running" in capsys.readouterr().err


@pytest.mark.parametrize("port", ["65536", "99999", "-1", "http", "9" * 5000])
def test_the_page_is_on_the_port_that_was_asked_for(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        page_command.main([f"--port={port}"])
    assert ended.value.code == 1
    assert "is no port such as 8080" in capsys.readouterr().err


def test_a_port_that_is_taken(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(page_command, "ask", lambda path, target: b"")  # the agent is there
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert page_command.main(["--root-dir=/", f"--port={port}"]) == 1
    assert capsys.readouterr().err == "trio-kubelet: address already in use\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_page_is_served_until_it_is_told_to_stop(agent: Path, number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "trio_kubelet", "page", "--root-dir", str(agent)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"http://127.0.0.1:")
        process.send_signal(number)
        assert process.communicate(timeout=60) == (b"", b"")
    assert process.returncode == 0


@contextmanager
def answering(path: Path, answer: bytes) -> Iterator[None]:
    """Somebody who answers each request so, and hangs up."""

    class Answer(StreamRequestHandler):
        def handle(self) -> None:
            while self.rfile.readline().strip():
                pass
            self.wfile.write(answer)

    with UnixStreamServer(str(path), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


OK = b"HTTP/1.1 200 OK\r\n"
COMMANDS = (["get", "pods"], ["get", "node"], ["get", "events"], ["top", "node"], ["logs", "web"])


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"Content-Length: 9\r\n\r\n{",
        OK + b"Transfer-Encoding: chunked\r\n\r\n9\r\n{",
        OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
    ],
)
def test_an_answer_that_breaks_off_is_no_whole_one(
    answer: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As when the agent is ended meanwhile."""
    with answering(tmp_path / SOCKET_NAME, answer):
        for words in COMMANDS:
            assert run(tmp_path, *words) == 1
            assert f"{tmp_path}/{SOCKET_NAME}: the agent's answer broke off" in capsys.readouterr().err


def test_a_page_that_is_switched_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    absent = b"HTTP/1.1 404 Not Found\r\nContent-Length: 18\r\n\r\n404 page not found"
    with answering(tmp_path / SOCKET_NAME, absent):
        assert page_command.main([f"--root-dir={tmp_path}"]) == 1
    assert capsys.readouterr().err == "trio-kubelet: this agent has no page: it runs with --node-page=false\n"


@pytest.mark.parametrize("body", [b"", b"<html>", b"null", b"7", b"[" * 100_000])
def test_who_is_no_agent_is_told_from_one(
    body: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(tmp_path / SOCKET_NAME, OK + b"Content-Length: %d\r\n\r\n" % len(body) + body):
        for words in COMMANDS:
            assert run(tmp_path, *words) == 1
            assert "no agent answers there, or one of another version" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("body", "words", "why"),
    [
        ({"items": [{}]}, ["get", "pods"], "there is no field 'metadata' (queries.py:"),
        ({"items": [{"metadata": []}]}, ["logs", "web"], "'list' object has no attribute"),
        ({"items": [{"metadata": {"name": 7}}]}, ["get", "pods"], "'int' object has no attribute"),
        ({"items": {"a": 1}}, ["exec", "web", "--", "true"], "string indices must be"),
        ({"metadata": {"name": "node1"}}, ["top", "node"], "there is no field 'node'"),
        ({"items": 7}, ["describe", "pods"], "'int' object is not iterable"),
        ([{"kind": "Pod"}], ["events"], "there is no field 'name'"),
    ],
)
def test_an_agent_of_another_version_that_answers_otherwise(
    body: object, words: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is one line, not a traceback."""
    text = json.dumps(body).encode()
    with answering(tmp_path / SOCKET_NAME, OK + b"Content-Length: %d\r\n\r\n" % len(text) + text):
        assert main([words[0], f"--root-dir={tmp_path}", *words[1:]]) == 1
    said = capsys.readouterr().err
    begin = (
        f"trio-kubelet: {tmp_path}/{SOCKET_NAME}: the agent's answer is not what `{words[0]}` of this version"
    )
    assert said.startswith(begin)
    assert why in said
    assert said.endswith("is the agent of another version?\n")
    assert said.count("\n") == 1


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
