"""What the page asks of a real agent."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from trio_kubelet.common.clock import SystemClock
from trio_kubelet.node_page import AgentView


async def test_a_log_is_read_again_when_something_was_written(tmp_path: Path) -> None:
    log = tmp_path / "0.log"
    log.write_text("2026-01-01T00:00:00.000000000Z stdout F one\n")
    run = SimpleNamespace(created_at_ns=1, log_path=str(log))
    seen = SimpleNamespace(containers_named=lambda name: [run])
    agent: Any = SimpleNamespace(room=None, cache=SimpleNamespace(get=lambda uid: seen))
    unused: Any = None
    view = AgentView(agent, context=unused, use=unused, clock=SystemClock())
    first = await view.log_tail("uid", "main", False, None)
    assert first.text == "2026-01-01T00:00:00.000000000Z one\n"
    assert await view.log_tail("uid", "main", False, first) is first
    with log.open("a") as file:
        file.write("2026-01-01T00:00:01.000000000Z stdout F two\n")
    assert (await view.log_tail("uid", "main", False, first)).text.endswith("two\n")
    run.log_path = str(tmp_path / "1.log")  # the next run's
    (tmp_path / "1.log").touch()
    assert (await view.log_tail("uid", "main", False, first)).text == ""
    log.unlink()
    run.log_path = str(log)
    assert "no such file" in (await view.log_tail("uid", "main", False, first)).text
