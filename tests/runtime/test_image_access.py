"""Who may use an image that is there: records of pulls, policies, and what a crash leaves."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from trio.testing import MockClock

from tests.runtime.test_images import HERE, Asker, Secret
from tests.runtime.world import World, world
from trio_kubelet.credential_providers.keyring import AccountSource, Credential, Login, SecretSource
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.runtime.image_access import PRUNE_PERIOD, AccessMetrics, ImageAccess
from trio_kubelet.runtime.image_pulls import ImagePullSettings
from trio_kubelet.runtime.images import ImageManager
from trio_kubelet.runtime.pull_records import (
    Check,
    Policy,
    PulledRecord,
    Pullers,
    bare_name,
    check,
    fits,
    pullers_of,
    with_pullers,
)
from trio_kubelet.runtime.results import Reason, StartError

DEFAULT = Policy("NeverVerifyPreloadedImages")
APP = "private/app:1"


def from_secret(name: str = "s", password: str = "hidden", uid: str = "u") -> Credential:
    return Credential(Login("puller", password), SecretSource(uid, "ns", name))


def from_account(name: str = "sa") -> Credential:
    return Credential(Login("x", "y"), AccountSource("u", "ns", name))


class Has(Secret):
    """Credentials as they are."""

    def __init__(self, *credentials: Credential) -> None:
        super().__init__()
        self._credentials = list(credentials)

    async def credentials(self, image: str) -> list[Credential]:
        self.asked.append(image)
        return self._credentials


class Guarded(Asker):
    """An image manager with records."""

    def __init__(self, here: World, root: Path, policy: Policy = DEFAULT) -> None:
        super().__init__(here)
        self.root = root
        self.registry = CollectorRegistry()
        self.access = ImageAccess(str(root), self.service, here.clock, policy, AccessMetrics(self.registry))
        self.manager = ImageManager(
            service=self.service,
            recorder=here.events,
            clock=here.clock,
            settings=ImagePullSettings(qps=0.0),
            metrics=here.metrics,
            access=self.access,
        )

    async def run(self, image: str, *credentials: Credential, policy: str = "IfNotPresent") -> None:
        await self.ask(image, policy, pull_secrets=(Has(*credentials),) if credentials else ())

    async def pulls_for(self, image: str, *credentials: Credential) -> int:
        """Pulls that a pod with these causes."""
        before = self.pulls
        await self.run(image, *credentials)
        return self.pulls - before

    def files(self, kind: str) -> list[dict[str, Any]]:
        directory = self.root / "image_manager" / kind
        return [json.loads(path.read_text()) for path in directory.iterdir()] if directory.is_dir() else []

    def on_disk(self) -> dict[str, float | None]:
        return {
            kind: self.registry.get_sample_value(f"kubelet_imagemanager_ondisk_{kind}")
            for kind in ("pullintents", "pulledrecords")
        }

    def checks(self, result: Check) -> float | None:
        name = "kubelet_imagemanager_image_mustpull_checks_total"
        return self.registry.get_sample_value(name, {"result": result.value})


async def test_an_image_pulled_with_a_secret_is_for_those_who_have_it(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        node = Guarded(here, tmp_path / "root")
        await node.run(APP, from_secret())
        assert await node.pulls_for(APP, from_secret()) == 0
        assert await node.pulls_for(APP, from_secret(password="new")) == 0  # the same secret
        assert await node.pulls_for(APP, from_secret("copy", "new")) == 0  # the same login
        assert await node.pulls_for(APP, from_secret("other", "wrong")) == 1
        assert node.checks(Check.FOUND) == 3
        assert node.checks(Check.MUST_AUTHENTICATE) == 1
        assert await node.pulls_for(APP) == 1  # the registry let it, so it is public
        assert await node.pulls_for(APP) == 0


async def test_who_may_not_use_it_is_not_told_that_it_is_there(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        node = Guarded(here, tmp_path / "root")
        await node.run(APP, from_secret())
        with pytest.raises(StartError) as error:
            await node.run(APP, policy="Never")
        assert error.value.reason is Reason.ERR_IMAGE_NEVER_PULL
        assert error.value.message == (f'Container image "{APP}" is not present with pull policy of Never')
        here.fail("PullImage", message="denied")
        with pytest.raises(StartError, match="denied"):
            await node.run(APP)


async def test_public_and_preloaded_images_are_for_all(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        node = Guarded(here, tmp_path / "root")
        assert await node.pulls_for(HERE) == 0
        assert node.checks(Check.POLICY_ALLOWED) == 1
        assert await node.pulls_for(APP) == 1
        assert await node.pulls_for(APP) == 0
        (record,) = node.files("pulled")
        assert record["credentialMapping"] == {"private/app": {"nodePodsAccessible": True}}
        strict = Guarded(here, tmp_path / "strict", Policy("AlwaysVerify"))
        assert await strict.pulls_for(HERE, from_secret()) == 1
        lax = Guarded(here, tmp_path / "root", Policy("NeverVerify"))
        await lax.run("private/two:1", from_secret())
        assert await lax.pulls_for("private/two:1") == 0


async def test_without_the_gate_everybody_may_and_nothing_is_written(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        node = Guarded(here, tmp_path / "root")
        node.manager = ImageManager(
            service=node.service,
            recorder=here.events,
            clock=here.clock,
            settings=ImagePullSettings(),
            metrics=here.metrics,
            access=None,
        )
        await node.run(APP, from_secret())
        assert await node.pulls_for(APP) == 0
        assert here.events.all[-1].message == f'Container image "{APP}" already present on machine'
        assert node.files("pulled") == []


async def test_records_and_intents_as_the_kubelet_writes_them(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        node = Guarded(here, tmp_path / "root")
        here.fail("PullImage", message="denied")
        with pytest.raises(StartError):
            await node.run("private/denied:1")
        assert node.files("pulling") == node.files("pulled") == []
        await node.run(APP, from_account())
        (record,) = node.files("pulled")
        assert list(record) == ["kind", "apiVersion", "lastUpdatedTime", "imageRef", "credentialMapping"]
        assert (record["kind"], record["apiVersion"]) == (
            "ImagePulledRecord",
            "kubelet.config.k8s.io/v1beta1",
        )
        account = {"uid": "u", "namespace": "ns", "name": "sa"}
        assert record["credentialMapping"] == {"private/app": {"kubernetesServiceAccounts": [account]}}
        assert node.files("pulling") == []
        directory = tmp_path / "root" / "image_manager" / "pulled"
        assert directory.stat().st_mode & 0o777 == 0o700
        assert [path.stat().st_mode & 0o777 for path in directory.iterdir()] == [0o600]
        again = Guarded(here, tmp_path / "root")  # the agent starts again
        assert await again.pulls_for(APP, from_account()) == 0
        assert await again.pulls_for(APP, from_account("other")) == 1


async def test_an_intent_is_there_while_a_pull_goes_on_even_if_that_is_given_up(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        node = Guarded(here, tmp_path / "root")
        slow = "localhost/slow-9:1"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.run, slow)
            await trio.sleep(1)
            intent = {
                "kind": "ImagePullIntent",
                "apiVersion": "kubelet.config.k8s.io/v1beta1",
                "image": slow,
            }
            assert node.files("pulling") == [intent]
            with trio.move_on_after(1):
                await node.ask(slow, uid="uid-2")
            assert node.files("pulling") == [intent]  # the first pod still pulls
            assert node.on_disk() == {"pullintents": 1, "pulledrecords": 0}
            nursery.cancel_scope.cancel()
        assert node.files("pulling") == node.files("pulled") == []
        assert node.on_disk() == {"pullintents": 0, "pulledrecords": 0}


async def test_a_crash_while_pulling_leaves_nothing_open_to_all(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        node = Guarded(here, tmp_path / "root")
        await node.run(APP, from_secret())
        pulled = tmp_path / "root" / "image_manager" / "pulled"
        (path,) = pulled.iterdir()
        ref = json.loads(path.read_text())["imageRef"]
        path.unlink()
        intents = tmp_path / "root" / "image_manager" / "pulling"
        listed = next(image for image in await node.service.list_images() if image.id == ref)
        name = listed.repo_tags[0]
        intent = {"kind": "ImagePullIntent", "apiVersion": "kubelet.config.k8s.io/v1alpha1", "image": name}
        (intents / f"sha256-{hashlib.sha256(name.encode()).hexdigest()}").write_text(json.dumps(intent))
        again = Guarded(here, tmp_path / "root")
        assert await again.pulls_for(APP, from_secret()) == 1
        assert again.files("pulling") == []
        assert again.on_disk() == {"pullintents": 0, "pulledrecords": 1}


async def test_files_of_an_older_version_are_written_anew(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        directory = tmp_path / "root" / "image_manager" / "pulled"
        directory.mkdir(parents=True)
        unknown, open_to_all = directory / "sha256-1", directory / "sha256-2"
        old = (
            '{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1alpha1",'
            '"lastUpdatedTime":"2025-06-21T12:26:40Z","imageRef":"'
        )
        unknown.write_text(old + 'sha256:a"}\n')
        mapping = '","credentialMapping":{"private/app":{"nodePodsAccessible":true}}}\n'
        open_to_all.write_text(f"{old}sha256:b{mapping}")
        pulling = directory.parent / "pulling"
        pulling.mkdir()
        intent = '{"kind":"ImagePullIntent","apiVersion":"kubelet.config.k8s.io/v1alpha1","image":"gone:1"}\n'
        (pulling / "sha256-3").write_text(intent)
        await Guarded(here, tmp_path / "root").run(HERE)
        new = old.replace("v1alpha1", "v1beta1")
        assert unknown.read_text() == new + 'sha256:a"}\n'
        assert open_to_all.read_text() == f"{new}sha256:b{mapping}"
        assert (pulling / "sha256-3").read_text() == intent.replace("v1alpha1", "v1beta1")


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        '{"kind": "Other"}',
        "null",
        '{"apiVersion":"v9","lastUpdatedTime":"","imageRef":"sha256:a"}',
        '{"lastUpdatedTime":"","imageRef":"REF","later":1}',
        '{"lastUpdatedTime":"","imageRef":"REF","credentialMapping":'
        '{"private/app":{"nodePodsAccessible":true,"later":1}}}',
    ],
)
async def test_a_damaged_record_lets_nobody_in(
    tmp_path: Path, autojump_clock: MockClock, content: str
) -> None:
    async with world(tmp_path) as here:
        await Guarded(here, tmp_path / "root").run(APP)
        (path,) = (tmp_path / "root" / "image_manager" / "pulled").iterdir()
        ref = json.loads(path.read_text())["imageRef"]
        path.write_text(content.replace("REF", ref))
        node = Guarded(here, tmp_path / "root")
        assert await node.pulls_for(APP) == 1
        assert node.checks(Check.ERROR) == 1
        assert await node.pulls_for(APP) == 0  # it is whole again


async def test_a_damaged_intent_lets_nobody_in(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The image may be one that an agent was pulling when it crashed."""
    async with world(tmp_path) as here:
        node = Guarded(here, tmp_path / "root")
        pulling = tmp_path / "root" / "image_manager" / "pulling"
        pulling.mkdir(parents=True)
        (pulling / f"sha256-{hashlib.sha256(HERE.encode()).hexdigest()}").write_text("{")
        assert await node.pulls_for(HERE) == 1
        assert node.checks(Check.ERROR) == 1
        assert await node.pulls_for(HERE) == 0  # it is known now how it came


async def test_without_a_place_for_intents_nothing_is_pulled(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        root = tmp_path / "root"
        root.write_text("no directory")
        node = Guarded(here, root)
        with pytest.raises(StartError, match="Failed to record image pull intent") as error:
            await node.run(APP)
        assert error.value.reason is Reason.ERR_IMAGE_PULL
        assert node.pulls == 0


async def test_records_of_images_that_are_gone_go(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        node = Guarded(here, tmp_path / "root")
        await node.run("private/kept:1")
        await node.run(APP)
        assert node.on_disk() == {"pullintents": 0, "pulledrecords": 2}
        for image in await node.service.list_images():
            if any("app" in tag for tag in image.repo_tags):
                await node.service.remove_image(cri.ImageSpec(image=image.id))
        autojump_clock.jump(PRUNE_PERIOD + 1)
        await node.run("private/two:1")
        records = node.files("pulled")
        assert sorted(name for record in records for name in record["credentialMapping"]) == [
            "private/kept",
            "private/two",
        ]
        assert node.on_disk() == {"pullintents": 0, "pulledrecords": 2}


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("busybox", "busybox"),
        ("busybox:latest", "busybox"),
        ("a.org:5000/b/c:v1", "a.org:5000/b/c"),
        ("a.org/b@sha256:" + "0" * 64, "a.org/b"),
        ("a.org/b:v1@sha256:" + "0" * 64, "a.org/b"),
    ],
)
def test_names_of_images(image: str, name: str) -> None:
    assert bare_name(image) == name


def test_policies() -> None:
    listed = Policy("NeverVerifyAllowlistedImages", ["a.org/b", "b.org/*"])
    verdicts = [listed.verifies(name, True) for name in ("a.org/b", "a.org/bc", "b.org/x/y", "b.org.x/y")]
    assert verdicts == [False, True, False, True]
    for name, expected in (
        ("NeverVerify", [False, False]),
        ("NeverVerifyPreloadedImages", [False, True]),
        ("AlwaysVerify", [True, True]),
    ):
        assert [Policy(name).verifies("x", here) for here in (False, True)] == expected


CREDENTIALS = st.one_of(
    st.builds(from_secret, st.sampled_from("ab"), st.sampled_from("pq"), st.sampled_from("uv")),
    st.builds(from_account, st.sampled_from("ab")),
    st.just(Credential(Login("n", "n"))),
    st.none(),
)


@given(st.lists(CREDENTIALS, max_size=6), st.lists(CREDENTIALS, max_size=3))
def test_only_those_who_pulled_get_in(
    used: Sequence[Credential | None], own: Sequence[Credential | None]
) -> None:
    record = PulledRecord(last_updated_time="", image_ref="sha256:1")
    for each in used:
        record = with_pullers(record, "app", pullers_of(each), "now")
    mine = [each for each in own if each is not None]
    found = check(DEFAULT, "app:1", record, True)
    result = fits(found, mine)[0] if isinstance(found, Pullers) else found
    open_to_all = any(each is None or each.source is None for each in used)
    known = [each for each in used if each is not None]
    logins = {each.login for each in known if isinstance(each.source, SecretSource)}
    sources = {(type(each.source), each.source) for each in known}
    # Of a pod's service accounts, of which it has one, the first counts.
    accounts = [(AccountSource, each.source) for each in mine if isinstance(each.source, AccountSource)][:1]
    secrets = [each for each in mine if isinstance(each.source, SecretSource)]
    same_secret = any((SecretSource, each.source) in sources for each in secrets)
    same_login = any(each.login in logins for each in secrets)
    if result is Check.FOUND:
        assert open_to_all or same_secret or same_login or accounts[0] in sources
    else:
        assert not open_to_all
        assert not same_secret
        assert not (accounts and accounts[0] in sources)


@given(st.lists(CREDENTIALS, min_size=1, max_size=6))
def test_the_same_again_changes_nothing(used: Sequence[Credential | None]) -> None:
    record = PulledRecord(last_updated_time="", image_ref="sha256:1")
    for each in used:
        record = with_pullers(record, "app", pullers_of(each), "now")
    assert with_pullers(record, "app", pullers_of(used[-1]), "later") is record
    assert "hidden" not in repr(record)


def test_the_hash_of_a_login_is_the_kubelet_s() -> None:
    # sha256 of {"username":"u\u003cé","password":"p"}: as Go writes it
    assert Login("u<é", "p").hash == "785de272d146125f5a4025cc55ea4400210c86087fe8cd93c0e17b215c42980f"
