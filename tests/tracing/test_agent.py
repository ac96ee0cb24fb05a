"""Which work of an agent is seen in traces."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import httpx
import trio
import yaml

from tests.containerd.harness import container, pod, wait_until
from tests.images.test_garbage import Runtime
from tests.images.test_garbage import World as Images
from tests.kube.apiserver import APIServer, serving
from tests.pods.build import make_pod
from tests.pods.world import World
from tests.simulated_node import simulated_node
from tests.tracing.taken import Receiver, Taken, receiving
from trio_kubelet.images.manager import PERIOD

ALWAYS = 1_000_000


async def test_syncs_and_collections_of_containers_are_seen(autojump_clock: trio.abc.Clock) -> None:
    taken = Taken(ALWAYS)
    world = World(traces=taken.traces)
    async with world.running():
        await world.add(make_pod("a"))
        await trio.sleep(61)
    assert {"syncPod", "Containers/GarbageCollect"} <= set(taken.spans())


async def test_collections_of_images_are_seen(autojump_clock: trio.abc.Clock) -> None:
    taken = Taken(ALWAYS)
    images = Images(Runtime(a=400), span=taken.traces.span)
    async with images.running():
        await trio.sleep(PERIOD - 1)
        assert not taken.ended()
        await trio.sleep(2)
    assert set(taken.spans()) == {"Images/GarbageCollect"}


def kubeconfig(directory: Path, url: str) -> Path:
    tree = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {}}],
    }
    path = directory / "kubeconfig"
    path.write_text(yaml.safe_dump(tree))
    return path


def names(receiver: Receiver) -> Counter[str]:
    return Counter(
        span.name
        for request in list(receiver.got)
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    )


async def test_an_agent_sends_what_it_and_its_clients_do(tmp_path: Path) -> None:
    server = APIServer()
    async with serving(server) as url:
        with receiving() as (receiver, endpoint):
            tracing = {"tracing": {"endpoint": endpoint, "samplingRatePerMillion": ALWAYS}}
            async with simulated_node("seen", tmp_path, tracing) as (command, ports):
                (tmp_path / "manifests" / "p.yaml").write_text(yaml.safe_dump(pod("p", container("c"))))
                log = tmp_path / "agent.log"
                with log.open("wb") as out:
                    process = await trio.lowlevel.open_process(
                        [*command, f"--kubeconfig={kubeconfig(tmp_path, url)}"], stdout=out, stderr=out
                    )

                async def all_is_seen() -> bool:
                    assert process.poll() is None, log.read_text()[-3000:]
                    async with httpx.AsyncClient(trust_env=False) as client:
                        (await client.get(f"http://127.0.0.1:{ports.read_only}/pods")).raise_for_status()
                    wanted = {"syncPod", "runtime.v1.RuntimeService/RunPodSandbox", "HTTP POST", "/pods/"}
                    return wanted <= set(names(receiver))

                try:
                    await wait_until(all_is_seen, 60, "all is seen", interval=1)
                finally:
                    process.kill()
                    with trio.CancelScope(shield=True):
                        await process.wait()
    assert any(request.header("traceparent") for request in server.requests)
