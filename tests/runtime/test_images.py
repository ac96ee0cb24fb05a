"""Images are made present: policies, back-off, shared and bounded pulls, references."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.runtime.pods import pod
from tests.runtime.world import World, world
from trio_kubelet.credential_providers.keyring import Credential, Login
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.cri.services import ImageService
from trio_kubelet.runtime import images
from trio_kubelet.runtime.image_pulls import ImagePullSettings
from trio_kubelet.runtime.images import (
    ImageManager,
    ImageRequest,
    PresentImage,
    image_user,
    pull_failure,
)
from trio_kubelet.runtime.results import LONGEST_MESSAGE, Reason, StartError
from trio_kubelet.sim.door import sim_services


class Asker:
    """An image manager on the simulated runtime."""

    def __init__(self, here: World, **settings: Any) -> None:
        self.here = here
        self.heard: list[tuple[str, int, int]] = []  # pods that have their image, and since when it was tried
        self.service: ImageService = sim_services(here.service).images
        self.manager = ImageManager(
            service=self.service,
            recorder=here.events,
            clock=here.clock,
            settings=ImagePullSettings(**settings),
            metrics=here.metrics,
            pulled=lambda *span: self.heard.append(span),
        )

    async def ask(
        self, image: str, policy: str = "IfNotPresent", uid: str = "uid-1", **more: Any
    ) -> PresentImage:
        return await self.manager.ensure(
            ImageRequest(
                pod=pod(uid=uid), image=image, pull_policy=policy, field_path="spec.containers{web}", **more
            )
        )

    async def refused(self, image: str, policy: str = "IfNotPresent", uid: str = "uid-1") -> StartError:
        with pytest.raises(StartError) as caught:
            await self.ask(image, policy, uid)
        return caught.value

    @property
    def pulls(self) -> int:
        return self.here.service.calls.get("PullImage", 0)


HERE = "localhost/busybox:1"


@pytest.mark.parametrize(("policy", "pulls"), [("IfNotPresent", 0), ("Never", 0), ("Always", 1)])
async def test_an_image_that_is_there(
    tmp_path: Path, autojump_clock: MockClock, policy: str, pulls: int
) -> None:
    async with world(tmp_path) as here:
        asker = Asker(here)
        present = await asker.ask(HERE, policy)
        assert present.ref.startswith("sha256:")
        assert asker.pulls == pulls
        assert here.events.reasons() == (["Pulled"] if not pulls else ["Pulling", "Pulled"])


async def test_an_image_that_is_not_there(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        asker = Asker(here)
        await asker.ask("localhost/slow-2:1")
        assert asker.pulls == 1
        pulling, pulled = here.events.all
        assert pulling.message == 'Pulling image "localhost/slow-2:1"'
        text = (
            r'Successfully pulled image "localhost/slow-2:1" in 2s \(2s including waiting\)\.'
            r" Image size: \d+ bytes\."
        )
        assert re.fullmatch(text, pulled.message)
        error = await asker.refused("localhost/new:1", "Never")
        assert (error.reason, error.message) == (
            Reason.ERR_IMAGE_NEVER_PULL,
            'Container image "localhost/new:1" is not present with pull policy of Never',
        )
        assert here.events.all[-1].reason == "ErrImageNeverPull"


@pytest.mark.parametrize(
    ("image", "policy", "present", "pull_required"),
    [
        (HERE, "IfNotPresent", "true", "false"),
        ("localhost/new:1", "IfNotPresent", "false", "true"),
        (HERE, "Always", "unknown", "true"),
        (HERE, "Never", "true", "false"),
        ("localhost/new:1", "Never", "false", "unknown"),
        ("localhost/BAD NAME", "IfNotPresent", "unknown", "unknown"),
    ],
)
async def test_requests_are_counted(
    tmp_path: Path, autojump_clock: MockClock, image: str, policy: str, present: str, pull_required: str
) -> None:
    async with world(tmp_path) as here:
        with contextlib.suppress(StartError):
            await Asker(here).ask(image, policy)
        labels = (policy.lower(), present, pull_required)
        [counted] = here.metrics.ensure_image_requests.collect()
        found = [each for each in counted.samples if each.name.endswith("_total")]
        assert [(tuple(each.labels.values()), each.value) for each in found] == [(labels, 1)]


async def test_an_image_that_was_there_a_moment_ago_is_not_asked_for_again(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Until that much time has passed, a container could not be created, or it is pulled."""
    async with world(tmp_path) as here:
        asker = Asker(here)

        def looks() -> int:
            return here.service.calls.get("ImageStatus", 0)

        for uid in ("uid-1", "uid-2"):
            await asker.ask(HERE, uid=uid)
        assert looks() == 1
        await trio.sleep(images._FOUND_LASTS)
        await asker.ask(HERE)
        assert looks() == 2
        asker.manager.doubt()
        await asker.ask(HERE)
        assert looks() == 3
        await asker.ask(HERE, "Always")
        before = looks()
        await asker.ask(HERE)
        assert looks() == before + 1


@pytest.mark.parametrize(("by_handler", "handler"), [(False, ""), (True, "kata")])
async def test_an_image_is_of_a_runtime_handler_with_the_gate(
    tmp_path: Path, autojump_clock: MockClock, by_handler: bool, handler: str
) -> None:
    async with world(tmp_path) as here:
        present = await Asker(here, by_handler=by_handler).ask(HERE, runtime_handler="kata")
        assert present.handler == handler


async def test_a_back_off_that_is_long_over_is_forgotten(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        asker = Asker(here)
        await asker.refused("localhost/missing:1")
        asker.manager.collect_back_offs()
        assert asker.manager.held_until_ns("uid-1", "localhost/missing:1") > here.clock.now_ns()
        await trio.sleep(3600)
        asker.manager.collect_back_offs()
        assert asker.manager.held_until_ns("uid-1", "localhost/missing:1") == 0


async def test_failed_pulls_back_off(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        asker = Asker(here)
        error = await asker.refused("localhost/missing:1")
        assert error.reason is Reason.ERR_IMAGE_PULL
        assert here.events.of("Failed")[0].message.startswith('Failed to pull image "localhost/missing:1": ')
        cause = f"ErrImagePull: {error.message}"
        for delay in (10, 20, 40, 80, 160, 300, 300):
            waiting = await asker.refused("localhost/missing:1")
            assert waiting.reason is Reason.IMAGE_PULL_BACK_OFF
            assert waiting.message == f'Back-off pulling image "localhost/missing:1": {cause}'
            assert here.events.all[-1].message == 'Back-off pulling image "localhost/missing:1"'
            assert waiting.retry_at_ns == here.clock.now_ns() + delay * 10**9
            before = asker.pulls
            await trio.sleep(delay)
            await asker.refused("localhost/missing:1")
            assert asker.pulls == before + 1


async def test_why_a_pull_failed_is_remembered_shortened(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Registries may answer with pages, and each pod with each of its images has one."""
    async with world(tmp_path) as here:
        asker = Asker(here)
        here.fail("PullImage", message="x" * 1_400_000)
        await asker.refused("localhost/missing:1")
        waiting = await asker.refused("localhost/missing:1")
        assert waiting.reason is Reason.IMAGE_PULL_BACK_OFF
        assert len(waiting.message) < 2 * LONGEST_MESSAGE


async def test_a_pod_waits_for_its_image_from_the_first_try_to_the_one_that_goes_well(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        asker = Asker(here)
        begun = here.clock.now_ns()

        def seconds() -> list[tuple[str, float, float]]:
            return [(uid, (a - begun) / 1e9, (b - begun) / 1e9) for uid, a, b in asker.heard]

        here.fail("PullImage")
        await asker.refused("localhost/slow-2:1")
        await trio.sleep(10)
        here.fail("PullImage")
        await asker.refused("localhost/slow-2:1")
        assert asker.heard == []
        await trio.sleep(20)
        await asker.ask("localhost/slow-2:1")
        assert seconds() == [("uid-1", 0, 32)]
        await asker.ask("localhost/slow-2:1")  # it is there
        await asker.ask("localhost/slow-2:1", "Always")
        assert seconds()[1:] == [("uid-1", 32, 34)]
        here.fail("PullImage")
        await asker.refused("localhost/slow-3:1", uid="uid-2")
        await asker.ask("localhost/slow-3:1")
        await asker.ask("localhost/slow-3:1", uid="uid-2")  # another pod has pulled it
        assert seconds()[2:] == [("uid-1", 34, 37), ("uid-2", 34, 37)]


async def test_the_back_off_of_one_pod_is_not_that_of_another(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        asker = Asker(here)
        for uid in ("uid-1", "uid-2"):
            assert (await asker.refused("localhost/missing:1", uid=uid)).reason is Reason.ERR_IMAGE_PULL
        assert (await asker.refused("localhost/missing:1")).reason is Reason.IMAGE_PULL_BACK_OFF


async def test_a_name_that_makes_no_sense(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        error = await Asker(here).refused("Bad:::name")
        assert error.reason is Reason.INVALID_IMAGE_NAME
        assert error.message.startswith(
            'Failed to apply default image tag "Bad:::name": couldn\'t parse image name'
        )
        assert here.events.all[-1].reason == "InspectFailed"


async def test_an_image_that_cannot_be_looked_at(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        here.fail("ImageStatus", message="snapshotter is gone")
        error = await Asker(here).refused(HERE)
        assert error.reason is Reason.IMAGE_INSPECT_ERROR
        assert "snapshotter is gone" in error.message
        assert error.message.startswith('Failed to inspect image "": rpc error: code = ')
        assert here.events.all[-1].message == error.message


async def test_many_pods_share_one_pull(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        asker = Asker(here)
        async with trio.open_nursery() as nursery:
            for n in range(20):
                nursery.start_soon(asker.ask, "localhost/slow-5:1", "Always", f"uid-{n}")
        assert asker.pulls == 1
        assert len(here.events.of("Pulled")) == 20
        assert trio.current_time() == pytest.approx(5, abs=0.1)


async def test_a_pull_outlives_the_one_who_began_it(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        asker = Asker(here)
        done: list[PresentImage] = []

        async def second() -> None:
            await trio.sleep(1)
            done.append(await asker.ask("localhost/slow-5:1", uid="uid-2"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(second)
            with trio.move_on_after(2):
                await asker.ask("localhost/slow-5:1")
        assert len(done) == 1
        assert asker.pulls == 2


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [({"serialize": True}, 6), ({"serialize": False}, 2), ({"serialize": False, "max_parallel": 2}, 4)],
)
async def test_how_many_pulls_at_once(
    tmp_path: Path, autojump_clock: MockClock, settings: dict[str, Any], seconds: int
) -> None:
    async with world(tmp_path) as here:
        asker = Asker(here, **settings)
        async with trio.open_nursery() as nursery:
            for n in range(3):
                nursery.start_soon(asker.ask, f"localhost/slow-2-{n}:1")
        assert trio.current_time() == pytest.approx(seconds, abs=0.1)


async def test_too_many_pulls_per_second_are_refused(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        asker = Asker(here, serialize=False, qps=1.0, burst=2)
        for n in range(2):
            await asker.ask(f"localhost/i{n}:1")
        error = await asker.refused("localhost/i2:1")
        assert (error.reason, error.message) == (Reason.ERR_IMAGE_PULL, "pull QPS exceeded")
        await trio.sleep(11)
        await asker.ask("localhost/i2:1")


async def test_no_rate_is_no_limit(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        asker = Asker(here, qps=0.0, burst=0)
        for n in range(30):
            await asker.ask(f"localhost/i{n}:1")


class Secret:
    """Credentials for one repository."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self.asked: list[str] = []

    async def credentials(self, image: str) -> list[Credential]:
        self.asked.append(image)
        return [Credential(Login(name, "")) for name in self._names]


async def test_credentials_are_tried_one_after_the_other(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        asker = Asker(here)
        secret = Secret("a", "b")
        here.fail("PullImage", message="denied")
        await asker.ask("private/app:1", pull_secrets=(secret,))
        assert asker.pulls == 2
        assert secret.asked == ["docker.io/private/app"]
        here.fail("PullImage", message="denied", count=2)
        with pytest.raises(StartError) as caught:
            await asker.ask("private/other:1", pull_secrets=(secret,))
        assert caught.value.message == "denied"


async def test_what_different_credentials_led_to_is_told_together(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        here.fail("PullImage", message="denied")
        here.fail("PullImage", code="NOT_FOUND", message="no such image")
        with pytest.raises(StartError) as caught:
            await Asker(here).ask("private/app:1", pull_secrets=(Secret("a", "b"),))
        assert caught.value.message == "[denied, rpc error: code = NotFound desc = no such image]"
        here.fail("PullImage", code="NOT_FOUND", message="no such image")
        assert (await Asker(here).refused("app:1")).message == (
            "rpc error: code = NotFound desc = no such image"
        )


async def test_a_pull_with_many_credentials_is_one_towards_the_rate(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        asker = Asker(here, qps=0.1, burst=1)
        here.fail("PullImage", message="denied", count=2)
        await asker.ask("private/app:1", pull_secrets=(Secret("a", "b", "c"),))
        assert asker.pulls == 3


async def test_a_pod_with_many_credentials_holds_up_nobody(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Each is tried in a turn of its own, and there is an end."""
    async with world(tmp_path) as here:
        asker, took = Asker(here, serialize=True), list[float]()

        async def neighbour() -> None:
            await trio.sleep(1)
            await asker.ask("localhost/slow-1:1", uid="uid-2")
            took.append(trio.current_time())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(neighbour)
            secret = Secret(*(f"user-{n}" for n in range(20_000)))
            with pytest.raises(StartError) as caught:
                await asker.ask("localhost/slow-2-denied:1", pull_secrets=(secret,))
        assert "pull access denied" in caught.value.message
        assert took == [pytest.approx(3, abs=0.1)]
        assert asker.pulls == 101


def test_the_user_of_an_image() -> None:
    assert image_user(cri.Image(uid=cri.Int64Value(value=7))).uid == 7
    named = image_user(cri.Image(username="web"))
    assert (named.uid, named.name) == (None, "web")
    assert image_user(cri.Image()).uid == 0


@pytest.mark.parametrize(
    ("text", "reason", "message"),
    [
        (
            "RegistryUnavailable: no route",
            Reason.REGISTRY_UNAVAILABLE,
            "image pull failed for x because the registry is unavailable: no route",
        ),
        (
            "SignatureValidationFailed",
            Reason.SIGNATURE_VALIDATION_FAILED,
            "image pull failed for x because the signature validation failed",
        ),
        ("something else", Reason.ERR_IMAGE_PULL, "something else"),
    ],
)
def test_causes_that_runtimes_mark(text: str, reason: Reason, message: str) -> None:
    assert pull_failure("x", text) == (reason, message)
