"""An agent for the commands, and what it has."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from socketserver import UnixStreamServer
from typing import Any

import pytest

from tests.commands.stand_in import EVENTS, OTHER, PODS, Handler, an_event
from tests.commands.test_render import NOW, POD


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "trio-kubelet.sock"
    with UnixStreamServer(str(path), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield tmp_path
        server.shutdown()
        thread.join()


@pytest.fixture
def two_pods() -> Iterator[None]:
    PODS[:] = [POD, OTHER]
    yield
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
