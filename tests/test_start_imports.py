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

BUDGET = 785
"""Modules that have been imported when an agent without an API server says that it is healthy."""
BUDGET_IN_A_CLUSTER = 850
SETTLED_BUDGET = 895
"""When it has settled."""

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
        "yaml",
    ),
    # rooms and parts of rooms that come afterwards, or with an API server only
    *("afterwards", "pressure", "images", "stats", "podresources", "commands"),
    *("eviction.manager", "server.ports", "server.node_server", "server.access", "server.streams"),
    *("server.logs", "dbus.bus", "kube.network", "kube.bootstrap", "plugins.manager", "native.pure_table"),
    *("sources.http", "probes.grpc", "grpc.grpclib_calls", "grpc.grpclib_server"),
    # of those who have static pods, device plugins, credential plugins, a grace period for shutdowns
    *("sources.manifest", "api.validation.pod", "devices.plugin", "credential_providers.plugin"),
    *("nodeshutdown.manager", "nodeshutdown.logind"),
    # behind feature gates
    *("kube.pod_certificates", "kube.trust_bundles"),
)
NEEDED_IN_A_CLUSTER = (
    *("cluster", "membership", "dra.api", "kube.client", "sources.apiserver", "kube.certificates"),
)

KUBECONFIG = """
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
"""


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


UNTIL_HEALTHY = """
        import json, os, sys
        from trio_kubelet import cli
        from trio_kubelet.server import health_port

        async def tell(*_):
            print(json.dumps(sorted(sys.modules)), flush=True)
            os._exit(0)

        health_port.health_port = tell
        cli.main(sys.argv[1:])
"""


async def modules_of_a_healthy_agent(directory: Path, *more: str) -> set[str]:
    async with simulated_node("imports", directory) as (command, _):
        flags = [*(word for word in command if word.startswith("--")), *more]
        return await trio.to_thread.run_sync(lambda: modules_after(UNTIL_HEALTHY, *flags))


async def test_an_agent_is_healthy_before_it_imports_the_rest(tmp_path: Path) -> None:
    modules = await modules_of_a_healthy_agent(tmp_path)
    assert present((*NOT_BEFORE_HEALTHY, *NEEDED_IN_A_CLUSTER), modules) == []
    assert len(present(("machine.cgroup_v1", "machine.cgroup_v2"), modules)) == 1
    assert len(modules) < BUDGET


@pytest.mark.parametrize("bootstrap", [False, True], ids=["kubeconfig", "as set up by kubeadm"])
async def test_a_node_of_a_cluster_is_healthy_before_it_joins(tmp_path: Path, bootstrap: bool) -> None:
    """So long as no server is asked, none of the libraries for it is needed, nor that for certificates."""
    kubeconfig = tmp_path / "kubelet.conf"
    kubeconfig.write_text(KUBECONFIG)
    flags = [f"--kubeconfig={kubeconfig}", f"--cert-dir={tmp_path}/pki"]
    if bootstrap:
        flags += [f"--bootstrap-kubeconfig={tmp_path}/bootstrap.conf", "--rotate-certificates=true"]
    modules = await modules_of_a_healthy_agent(tmp_path, *flags)
    # The kubeconfig is; who bootstraps reads it when the node joins.
    assert present(NOT_BEFORE_HEALTHY, modules) == ([] if bootstrap else ["yaml"])
    assert present(("cluster", "membership"), modules) != []
    assert len(modules) < BUDGET_IN_A_CLUSTER


async def test_a_kubeconfig_that_cannot_be_used_ends_an_agent_that_never_was_healthy(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubelet.conf"
    kubeconfig.write_text(KUBECONFIG.replace("current-context: x", "current-context: other"))
    async with simulated_node("no-context", tmp_path) as (command, _):
        flags = [word for word in command if word.startswith("--")]
        code = textwrap.dedent(UNTIL_HEALTHY).replace("cli.main(", "code = cli.main(") + "sys.exit(code)"
        done = await trio.run_process(
            [sys.executable, "-c", code, *flags, f"--kubeconfig={kubeconfig}"],
            cwd=ROOT,
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"--kubeconfig: " in done.stderr
    assert b"there is no context" in done.stderr
    assert b"Traceback" not in done.stderr


UNTIL_SETTLED = """
        import json, os, sys
        from trio_kubelet import agent, cli

        def tell(*_):
            print(json.dumps(sorted(sys.modules)), flush=True)
            os._exit(0)

        agent.keep_for_good = tell
        cli.main(sys.argv[1:])
"""

NEVER_WITHOUT = (
    # of who calls or is called by plugins, reads the page, is behind an API server, gives CPUs away
    *("asyncio", "concurrent", "grpclib", "h2", "wsproto", "jeepney", "httpx", "cryptography", "yaml"),
    *("argparse", "commands.main", "podsapi", "server.streams.translation", "dra.driver"),
    *("storage.csi.driver", "storage.disks.iscsi", "storage.flex.volumes", "placement.cpu_policy"),
    *("placement.memory_policy", "placement.topology"),
)


async def test_a_node_without_plugins_has_nothing_for_them_when_it_has_settled(tmp_path: Path) -> None:
    """It would stay in the agent's memory: asyncio and grpclib alone are three megabytes."""
    async with simulated_node("settled", tmp_path) as (command, _):
        flags = [word for word in command if word.startswith("--")]
        modules = await trio.to_thread.run_sync(lambda: modules_after(UNTIL_SETTLED, *flags))
    assert present(("afterwards", "server.ports"), modules) != []
    assert present(NEVER_WITHOUT, modules) == []
    assert len(modules) < SETTLED_BUDGET


def test_a_node_without_a_cluster_never_needs_the_library_for_certificates() -> None:
    """It would stay in the agent's memory, 8 MB, for what another process does once a year."""
    modules = modules_after(
        "import json, sys, trio_kubelet.afterwards; print(json.dumps(sorted(sys.modules)))"
    )
    assert present(("cryptography", "httpx", "grpclib", "asyncio"), modules) == []
