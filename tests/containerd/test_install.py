"""Installed with `make install`, on a node as kubeadm leaves it, and taken away again. It writes where a real
node has its files: only in the machine of `make test-node`.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cgroups.machine import has_systemd, shell
from tests.containerd.conftest import NewNode
from tests.containerd.harness import Node, pod, wait_until
from tests.containerd.test_service import shown
from trio_kubelet.node.tunables import WANTED
from trio_kubelet.standalone.agent import configuration

pytestmark = [
    pytest.mark.node,
    pytest.mark.skipif(
        os.environ.get("TRIO_KUBELET_NODE_MACHINE") != "1" or not has_systemd(),
        reason="changes the machine's own services: only in the machine of make test-node",
    ),
]

PROJECT = Path(__file__).parents[2]
UNIT = Path("/etc/systemd/system/trio-kubelet.service")
KUBELET_UNIT = Path("/run/systemd/system/kubelet.service")
CONFIG, FLAGS = Path("/var/lib/kubelet/config.yaml"), Path("/var/lib/kubelet/kubeadm-flags.env")
DEFAULTS = Path("/etc/default/kubelet")


def make(target: str, prefix: Path) -> None:
    """With what the machine has, for nothing can be downloaded here."""
    options = "PIP_FLAGS=--no-index --no-deps --no-build-isolation"
    command = ["make", "-s", target, f"PREFIX={prefix}", options]
    subprocess.run(command, cwd=PROJECT, check=True, timeout=600)


@pytest.fixture
def prefix(tmp_path: Path) -> Iterator[Path]:
    """A place to install to, whose Python finds what this one has."""
    prefix = tmp_path / "prefix"
    home = prefix / "lib/trio-kubelet"
    subprocess.run(["/usr/bin/python3", "-m", "venv", home], check=True, timeout=300)
    (packages,) = home.glob("lib/python3*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    yield prefix
    for path in (UNIT, KUBELET_UNIT, CONFIG, FLAGS, DEFAULTS):
        path.unlink(missing_ok=True)
    subprocess.run(["systemctl", "daemon-reload"], check=True, timeout=60)


def as_of_kubeadm(node: Node) -> None:
    KUBELET_UNIT.write_text("[Service]\nExecStart=sleep infinity\n[Install]\nWantedBy=multi-user.target\n")
    CONFIG.parent.mkdir(exist_ok=True)
    CONFIG.write_text(configuration(node.layout, node.manifests, node.ports))
    flags = f"--root-dir={node.layout.agent_root} --hostname-override={node.layout.name}"
    FLAGS.write_text(f"KUBELET_KUBEADM_ARGS={shlex.quote(flags)}\n")
    DEFAULTS.write_text("KUBELET_KUBECONFIG_ARGS=\n")  # there is no API server here


async def test_from_the_kubelet_to_this_agent_and_back(new_node: NewNode, prefix: Path) -> None:
    async with new_node() as node:
        as_of_kubeadm(node)
        make("install", prefix)
        await shell("systemctl start kubelet")
        node.write(pod("stays"))

        await shell("systemctl disable -q --now kubelet; systemctl enable -q --now trio-kubelet")
        assert await shown("trio-kubelet", "ActiveState") == "active"
        assert await shown("kubelet", "ActiveState") == "inactive"
        assert {name: int(await shell(f"cat /proc/sys/{name}")) for name in WANTED} == WANTED
        (before,) = await node.wait_running("stays")

        async def says(text: str) -> bool:
            return await shown("trio-kubelet", "StatusText") == text

        await wait_until(lambda: says("1 pod"), 30, "the status line shows the pod")
        version = await shell(f"{prefix}/bin/trio-kubelet --version")
        assert "(behaves like kubelet v1.36)" in version

        await shell("systemctl start kubelet")
        assert await shown("trio-kubelet", "ActiveState") == "inactive", "the two are never there together"
        await shell("systemctl start trio-kubelet")
        assert await shown("kubelet", "ActiveState") == "inactive"
        await wait_until(lambda: says("1 pod"), 30, "the pod was found again")
        make("uninstall", prefix)
        assert await shown("trio-kubelet", "LoadState") == "not-found"
        assert [
            path for path in (UNIT, prefix / "bin/trio-kubelet", prefix / "lib/trio-kubelet") if path.exists()
        ] == []
        assert [container.id for container in await node.running()] == [before.id]
