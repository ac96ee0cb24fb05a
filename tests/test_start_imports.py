"""What is imported when: most of a start is imports, so what nobody waits for comes later.

The rule is in docs/architecture.md ("What is imported when"). Time depends on the machine; what is imported
does not, so that is what is held.
"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import trio

from tests.simulated_node import ROOT, simulated_node

BUDGET = 830
"""Modules that have been imported when an agent without an API server says that it is healthy."""

NOT_BEFORE_HEALTHY = (
    # libraries of doors that nobody has opened yet
    *(
        "asyncio",
        "grpclib",
        "h2",
        "httpx",
        "httpcore",
        "cryptography",
        "wsproto",
        "trio_websocket",
        "jeepney",
    ),
    # rooms and parts of rooms that come afterwards, or with an API server only
    *("afterwards", "cluster", "membership", "pressure", "images", "stats", "podresources", "commands"),
    *("eviction.manager", "server.ports", "server.node_server", "server.access", "server.streams"),
    *("server.logs", "dbus.bus", "kube.network", "kube.certificates", "plugins.manager", "native.pure_table"),
    *("sources.http", "sources.apiserver", "probes.grpc", "grpc.grpclib_calls", "grpc.grpclib_server"),
)


def modules_after(code: str, *args: str) -> set[str]:
    """What a new interpreter has imported when `code` prints its modules."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *args],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return set(json.loads(done.stdout.splitlines()[-1]))


def present(unwanted: tuple[str, ...], modules: set[str]) -> list[str]:
    names = {name for each in unwanted for name in (each, f"trio_kubelet.{each}")}
    return sorted(names & modules)


@pytest.mark.parametrize("words", ["--version", "--help"])
def test_the_version_needs_no_agent(words: str) -> None:
    code = """
        import json, sys
        from trio_kubelet.cli import main
        assert main(sys.argv[1:]) == 0
        print(); print(json.dumps(sorted(sys.modules)))
    """
    modules = modules_after(code, words)
    unwanted = ("trio", "prometheus_client", "google.protobuf", "yaml", "agent", *NOT_BEFORE_HEALTHY)
    assert present(unwanted, modules) == []
    assert len(modules) < 200


async def test_an_agent_is_healthy_before_it_imports_the_rest(tmp_path: Path) -> None:
    code = """
        import json, os, sys
        from trio_kubelet import cli
        from trio_kubelet.server import health_port

        async def tell(*_):
            print(json.dumps(sorted(sys.modules)), flush=True)
            os._exit(0)

        health_port.health_port = tell
        cli.main(sys.argv[1:])
    """
    async with simulated_node("imports", tmp_path) as (command, _):
        flags = [word for word in command if word.startswith("--")]
        modules = await trio.to_thread.run_sync(modules_after, code, *flags)
    assert present(NOT_BEFORE_HEALTHY, modules) == []
    assert len(modules) < BUDGET


def test_a_node_without_a_cluster_never_needs_the_library_for_certificates() -> None:
    """It would stay in the agent's memory, 8 MB, for what another process does once a year."""
    modules = modules_after(
        "import json, sys, trio_kubelet.afterwards; print(json.dumps(sorted(sys.modules)))"
    )
    assert present(("cryptography", "httpx", "grpclib", "asyncio"), modules) == []
