"""What drivers are told: secrets, tokens, and the same again where they want it again."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import msgspec
import pytest

from tests.storage.drivers import DriverProcess, mounted_below
from tests.storage.world import DRIVER, Claims, pod_of, running_world

TOKENS = "csi.storage.k8s.io/serviceAccount.tokens"


async def test_secrets_of_both_steps(place: Path, driver: DriverProcess) -> None:
    claims = Claims()
    claims.driver()
    source = {
        "driver": DRIVER,
        "volumeHandle": "c",
        "nodeStageSecretRef": {"name": "stage", "namespace": "default"},
        "nodePublishSecretRef": {"name": "publish", "namespace": "default"},
    }
    claims.claim("c", {"csi": source})
    pod = pod_of("p", "c")
    async with running_world(place, claims=claims, driver=driver) as world:
        assert (await world.set_up(pod, patience=0.3)).unmounted == ("c",)
        assert world.reasons("FailedMount")[0] == (
            'MountVolume.MountDevice failed for volume "pv-c" : fetching NodeStageSecretRef default/stage '
            "failed: kubernetes.io/csi: failed to find the secret stage in the namespace default with error: "
            'secrets "stage" not found'
        )
        assert driver.methods("begin") == []
        for name in ("stage", "publish"):
            data = {"key": base64.b64encode(name.encode()).decode()}
            claims.store.create("secrets", "default", {"metadata": {"name": name}, "data": data})
        assert not (await world.set_up(pod)).unmounted
        told = {call["method"]: call.get("secrets") for call in driver.calls()}
        assert told["NodeStageVolume"] == {"key": "stage"}
        assert told["NodePublishVolume"] == {"key": "publish"}
        await world.tear_down(pod)


@pytest.mark.parametrize("as_secret", [False, True])
async def test_tokens_of_the_pod(place: Path, driver: DriverProcess, as_secret: bool) -> None:
    claims = Claims()
    claims.driver(
        tokenRequests=[{"audience": "vault", "expirationSeconds": 3600}],
        serviceAccountTokenInSecrets=as_secret,
    )
    claims.claim("c")
    made = claims.store.create(
        "pods", "default", {"metadata": {"name": "p"}, "spec": {"containers": [], "nodeName": "here"}}
    )
    pod = pod_of("p", "c")
    meta = msgspec.structs.replace(pod.metadata, uid=made["metadata"]["uid"])
    pod = msgspec.structs.replace(pod, metadata=meta)
    async with running_world(place, claims=claims, driver=driver) as world:
        assert not (await world.set_up(pod)).unmounted, world.events
        (published,) = [call for call in driver.calls() if call["method"] == "NodePublishVolume"]
        told = json.loads(published["secrets" if as_secret else "volume_context"][TOKENS])
        assert told["vault"]["token"] in claims.server.tokens
        assert told["vault"]["expirationTimestamp"].endswith("Z")
        await world.tear_down(pod)


async def test_a_driver_that_wants_it_is_asked_again_and_its_failure_harms_nothing(
    place: Path, driver: DriverProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_kubelet.storage.manager.FRESH", 0.0)
    claims = Claims()
    claims.driver(requiresRepublish=True)
    claims.claim("c")
    pod = pod_of("p", "c")
    async with running_world(place, claims=claims, driver=driver) as world:
        assert not (await world.set_up(pod)).unmounted
        before = mounted_below(world.root)
        assert not (await world.set_up(pod)).unmounted
        await world.until(lambda: driver.methods().count("NodePublishVolume") == 2)
        driver.fail(NodePublishVolume={"code": 13})
        assert not (await world.set_up(pod)).unmounted
        await world.until(lambda: "NodePublishVolume" in driver.methods("error"))
        assert not (await world.set_up(pod)).unmounted
        assert mounted_below(world.root) == before
        driver.fail()
        await world.tear_down(pod)
