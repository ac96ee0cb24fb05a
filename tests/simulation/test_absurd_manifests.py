"""Manifests of absurd pods, the agent as a process, cgroups and all: it lives, and lets go of them."""

from __future__ import annotations

import json
import os
import random
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import trio

from bench.node_figures import simulated
from tests.containerd.harness import container, pod, wait_until
from tests.simulation.hostile_pods import LONGEST_GRACE, UNEXPECTED, Absurd
from trio_kubelet.api.errors import ManifestError
from trio_kubelet.sources.manifest import Origin, static_pod
from trio_kubelet.standalone.agent import command_line, configuration, free_ports
from trio_kubelet.standalone.cleanup import take_down
from trio_kubelet.standalone.node import new_layout

PODS = 150
LOOKS = 12.0  # seconds the pods have
PAGES = ("/metrics", "/metrics/cadvisor", "/metrics/resource", "/metrics/probes", "/stats/summary")


def absurd_manifests(seed: int) -> dict[str, bytes]:
    """Manifests that the file source takes, by name."""
    rng, made = random.Random(seed), dict[str, bytes]()
    while len(made) < PODS:
        name = f"absurd-{len(made)}"
        drawn = msgspec.to_builtins(Absurd(rng, rng.choice([0.03, 0.1, 0.2])).pod(name))
        manifest = msgspec.json.encode({**drawn, "apiVersion": "v1", "kind": "Pod"})
        try:
            static_pod(manifest, Origin("node", "file", "x"))
        except ManifestError:  # what refers to objects of the API
            continue
        made[name] = manifest
    return made


def grace(manifest: bytes) -> int:
    """Seconds that a pod has to end."""
    seconds: int = json.loads(manifest)["spec"]["terminationGracePeriodSeconds"]
    return seconds


@pytest.mark.skipif(os.geteuid() != 0, reason="cgroups need root")
@pytest.mark.parametrize(
    "extra", [{}, {"featureGates": {"AllAlpha": True, "AllBeta": True}}], ids=["defaults", "all gates"]
)
async def test_absurd_manifests_are_their_own_affair(extra: Mapping[str, Any]) -> None:
    with tempfile.TemporaryDirectory(prefix="tk-") as base:
        layout = await new_layout(f"a{os.getpid() % 10**6}", Path(base))
        manifests, ports = layout.base / "manifests", free_ports()
        manifests.mkdir()
        healthy = json.dumps(pod("healthy", container(imagePullPolicy="IfNotPresent"))).encode()
        file, log = layout.base / "agent.json", layout.base / "agent.log"
        config = {"maxPods": 2 * PODS, "registryPullQPS": 0, "clusterDNS": ["10.96.0.10"], **extra}
        file.write_text(configuration(layout, manifests, ports, config))

        async def get(path: str) -> httpx.Response:
            assert process.poll() is None, log.read_text()[-5000:]
            async with httpx.AsyncClient(trust_env=False, timeout=20) as client:
                return (await client.get(f"http://127.0.0.1:{ports.read_only}{path}")).raise_for_status()

        async def pods() -> dict[str, Any]:
            return {each["metadata"]["name"]: each for each in (await get("/pods")).json()["items"] or ()}

        async def is_healthy() -> bool:
            return str((await pods())[f"healthy-{layout.name}"]["status"]["phase"]) == "Running"

        async def are_known() -> bool:
            return len(await pods()) == PODS + 1

        async def are_gone() -> bool:
            return (await pods()).keys() <= {f"{name}-{layout.name}" for name in ("healthy", *patient)}

        async with simulated(layout):
            with log.open("wb") as out:
                process = await trio.lowlevel.open_process(
                    command_line(layout, file), stdin=subprocess.DEVNULL, stdout=out, stderr=out
                )
            try:
                (manifests / "healthy.json").write_bytes(healthy)
                await wait_until(is_healthy, 60, "the healthy pod runs", interval=0.3)
                before = (await pods())[f"healthy-{layout.name}"]["status"]
                absurd = absurd_manifests(1)
                patient = [name for name, manifest in absurd.items() if grace(manifest) > LONGEST_GRACE]
                for name, manifest in absurd.items():
                    (manifests / f"{name}.json").write_bytes(manifest)
                await wait_until(are_known, 60, "all are known", interval=1)
                await trio.sleep(LOOKS)
                for page in PAGES:
                    await get(page)
                for name in absurd:
                    (manifests / f"{name}.json").unlink()
                await wait_until(
                    are_gone, 2 * LONGEST_GRACE, "all without years of grace are gone", interval=1
                )
                assert (await pods())[f"healthy-{layout.name}"]["status"] == before
            finally:
                with trio.CancelScope(shield=True):
                    process.kill()
                    await process.wait()
                    said = log.read_text()
                    left = await take_down(layout)
        unexpected = [line for line in said.splitlines() if UNEXPECTED.search(line)]
        assert not unexpected, "\n".join(unexpected)
        assert not left
