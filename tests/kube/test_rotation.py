"""Certificates through their years, on virtual time and with a signer that has its moods."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from trio.testing import MockClock

from tests.kube.apiserver import APIServer
from tests.kube.certs import CA
from tests.kube.door import SimulatedDoor
from tests.kube.signer import Signer
from tests.kube.store import Refused
from trio_kubelet.api import v1
from trio_kubelet.common.clock import NANOSECONDS, TrioClock
from trio_kubelet.kube.certificates import request as request_module
from trio_kubelet.kube.certificates import rotation as rotation_module
from trio_kubelet.kube.certificates.files import PairFiles
from trio_kubelet.kube.certificates.pair import Leaf, key_pem, new_key, read_pair
from trio_kubelet.kube.certificates.request import (
    Ask,
    Template,
    digested_name,
    node_template,
    serving_template,
)
from trio_kubelet.kube.certificates.rotation import CertificateRotation, Measures, Purpose, rotation_due
from trio_kubelet.kube.certificates.store import PairStore, Stored
from trio_kubelet.kube.client import KubeClient
from trio_kubelet.kube.metrics import KubeMetrics

DAY = 86400.0
CLOCK = TrioClock(1_763_700_000 * NANOSECONDS)


class World:
    """A rotation, its API server and its signer."""

    def __init__(
        self, directory: Path, lifetime: float = DAY, serving: bool = False, look_period: float = 60.0
    ) -> None:
        self.directory = directory
        self.server = APIServer(clock=CLOCK)
        self.signer = Signer(self.server, CA(), CLOCK, lifetime)
        self.store = PairStore(str(directory), "kubelet-test")
        self.template: Template | None = node_template("n")
        self.delivered: list[tuple[float, Leaf]] = []
        self.asked_with: list[bool] = []
        self.registry = CollectorRegistry()
        metrics = KubeMetrics(self.registry)
        self.rotation = CertificateRotation(
            purpose=Purpose(
                name="test",
                signer=request_module.SERVING_SIGNER if serving else request_module.CLIENT_SIGNER,
                usage="server auth" if serving else "client auth",
                look_period=look_period,
                first_key="" if serving else str(directory / "first.key"),
            ),
            store=self.store,
            template=lambda: self.template,
            client=self._client,
            deliver=self._deliver,
            clock=CLOCK,
            measures=Measures(metrics.server_renew_errors.inc, metrics.server_rotation.observe),
            rng=random.Random(1),
        )

    @property
    def errors(self) -> float:
        return self.registry.get_sample_value("kubelet_server_expiration_renew_errors") or 0

    @asynccontextmanager
    async def _client(self, valid: bool) -> AsyncIterator[KubeClient]:
        self.asked_with.append(valid)
        yield KubeClient(SimulatedDoor(self.server))

    async def _deliver(self, files: PairFiles) -> None:
        self.delivered.append((trio.current_time(), read_pair(files)))


@asynccontextmanager
async def running(world: World) -> AsyncIterator[World]:
    await world.rotation.load()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.signer.run)
        nursery.start_soon(world.rotation.run)
        yield world
        nursery.cancel_scope.cancel()


async def test_a_year_of_monthly_certificates(tmp_path: Path, autojump_clock: MockClock) -> None:
    month = 30 * DAY
    async with running(World(tmp_path, lifetime=month, look_period=3600)) as world:
        world.signer.server.requests.clear()
        for _ in range(365):
            await trio.sleep(DAY)
            assert world.rotation.valid
        moments = [at for at, _ in world.delivered]
        gaps = [b - a for a, b in itertools.pairwise(moments)]
        assert all(0.7 * month <= gap <= 0.9 * month + 10 for gap in gaps)
        assert len({round(gap / month, 2) for gap in gaps}) > 5  # drawn anew for each
        assert 13 <= len(moments) <= 18
        assert world.errors == 0
        assert world.registry.get_sample_value(
            "kubelet_certificate_manager_server_rotation_seconds_count"
        ) == len(gaps)
        assert world.registry.get_sample_value(
            "kubelet_certificate_manager_server_rotation_seconds_sum"
        ) == pytest.approx(sum(gaps), rel=0.001)
        assert world.asked_with == [False] + [True] * len(gaps)
    pems = [p for p in os.listdir(tmp_path) if p != "kubelet-test-current.pem"]
    assert len(pems) == len(moments)
    assert all((tmp_path / p).stat().st_mode & 0o777 == 0o600 for p in pems)
    assert (tmp_path / "kubelet-test-current.pem").is_symlink()


async def test_what_is_asked_for(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with running(World(tmp_path)) as world:
        await trio.sleep(10)
        (request,), (csr,) = world.signer.requests(), world.signer.csrs()
        assert request["spec"]["signerName"] == "kubernetes.io/kube-apiserver-client-kubelet"
        assert request["spec"]["usages"] == ["digital signature", "client auth"]
        assert csr.subject.rfc4514_string() == "CN=system:node:n,O=system:nodes"
        assert request["metadata"]["name"].startswith("node-csr-")
        world.rotation.must_rotate_now()
        await trio.sleep(100)
        assert world.signer.requests()[1]["metadata"]["name"].startswith("csr-")


async def test_a_restart_resumes_the_same_request(tmp_path: Path, autojump_clock: MockClock) -> None:
    world = World(tmp_path)
    world.signer.verdict = ""
    async with running(world):
        await trio.sleep(30)
    assert (tmp_path / "first.key").stat().st_mode & 0o777 == 0o600
    again = World(tmp_path)
    again.server = again.signer.server = world.server
    async with running(again):
        await trio.sleep(30)
        assert len(again.signer.requests()) == 1
        assert again.delivered
    assert not (tmp_path / "first.key").exists()


async def test_a_request_whose_certificate_has_run_out_is_made_anew(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The agent was away from before it was signed."""
    world = World(tmp_path, lifetime=60)
    world.signer.verdict = ""
    async with running(world):
        await trio.sleep(30)
    world.signer.verdict = "Approved"
    world.signer.decide(world.signer.requests()[0])
    await trio.sleep(3600)
    again = World(tmp_path)
    again.server = again.signer.server = world.server
    async with running(again):
        await trio.sleep(30)
        assert again.errors == 1
        assert again.rotation.valid
        assert len(again.signer.requests()) == 2


async def test_a_request_nobody_signs_is_kept_up(tmp_path: Path, autojump_clock: MockClock) -> None:
    world = World(tmp_path)
    world.signer.verdict = ""
    async with running(world):
        await trio.sleep(3 * rotation_module.SIGNING_TIMEOUT)
        assert len(world.signer.requests()) == 1
        assert world.errors >= 2
        world.signer.verdict = "Approved"
        world.signer.issues = False
        await trio.sleep(60)
        assert not world.delivered
        (request,) = world.signer.requests()
        request["status"] = {}
        world.signer.issues = True
        world.signer.decide(request)
        await trio.sleep(60)
        assert world.delivered


@pytest.mark.parametrize("verdict", ["Denied", "Failed"])
async def test_after_a_refusal_another_request_is_made(
    tmp_path: Path, autojump_clock: MockClock, verdict: str, capfd: pytest.CaptureFixture[str]
) -> None:
    world = World(tmp_path)
    world.signer.verdict = verdict
    async with running(world):
        await trio.sleep(600)
        refused = len(world.signer.requests())
        assert 15 <= refused <= 22  # after 2, 4, 8, 16 and then 32 seconds
        assert world.errors == refused or world.errors == refused - 1
        world.signer.verdict = "Approved"
        await trio.sleep(60)
        assert len(world.delivered) == 1
    assert "reason: Test, message: so it is" in capfd.readouterr().err


async def test_a_deleted_request_is_made_anew(tmp_path: Path, autojump_clock: MockClock) -> None:
    world = World(tmp_path)
    world.signer.verdict = ""
    async with running(world):
        await trio.sleep(10)
        (request,) = world.signer.requests()
        world.server.store.delete("certificatesigningrequests", "", request["metadata"]["name"])
        world.signer.verdict = "Approved"
        await trio.sleep(60)
        assert world.delivered
        assert world.signer.requests()[0]["metadata"]["uid"] != request["metadata"]["uid"]


async def test_a_foreign_request_of_our_name_is_not_taken(tmp_path: Path, autojump_clock: MockClock) -> None:
    world = World(tmp_path)
    await world.rotation.load()
    key = new_key()
    (tmp_path / "first.key").write_bytes(key_pem(key))
    other = request_module.make_csr(node_template("other"), key)
    name = digested_name(node_template("n"), key, ["digital signature", "client auth"])
    created = v1.CertificateSigningRequest(
        metadata=v1.ObjectMeta(name=name),
        spec=v1.CertificateSigningRequestSpec(request=other, signer_name=request_module.CLIENT_SIGNER),
    )
    await KubeClient(SimulatedDoor(world.server)).create(
        request_module.PATH, created, v1.CertificateSigningRequest
    )
    async with running(world):
        await trio.sleep(60)
        assert world.errors == 1
        (_, leaf), *_ = world.delivered
        assert leaf.common_name == "system:node:n"


async def test_an_absent_server_is_waited_for(tmp_path: Path, autojump_clock: MockClock) -> None:
    world = World(tmp_path)
    world.server.down = True
    async with running(world):
        await trio.sleep(3600)
        assert not world.delivered
        world.server.down = False
        world.signer.verdict = ""
        await trio.sleep(60)  # the request is made, then the server goes away again
        world.server.down = True
        world.server.break_watches()
        await trio.sleep(60)
        world.server.down, world.signer.verdict = False, "Approved"
        await trio.sleep(120)
        assert len(world.delivered) == 1
        assert len(world.signer.requests()) == 1


async def test_a_refused_creation_is_repeated(tmp_path: Path, autojump_clock: MockClock) -> None:
    world = World(tmp_path)
    world.server.refuse = lambda request: Refused(403, "Forbidden", "cannot create") if request.body else None
    async with running(world):
        await trio.sleep(120)
        assert world.errors >= 4
        world.server.refuse = lambda request: None
        await trio.sleep(60)
        assert world.delivered


async def test_an_expired_certificate_is_asked_for_as_if_there_were_none(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with running(World(tmp_path)) as world:
        await trio.sleep(10)
        world.server.down = True
        await trio.sleep(2 * DAY)
        assert world.rotation.seconds_left() == float("inf")
        world.server.down = False
        await trio.sleep(100)
        assert world.rotation.valid
        assert world.asked_with[-1] is False
        assert 0 < world.rotation.seconds_left() <= DAY


async def test_a_restart_within_a_certificates_life_asks_for_nothing(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with running(World(tmp_path)):
        await trio.sleep(10)
    async with running(World(tmp_path)) as again:
        await trio.sleep(0.6 * DAY)
        assert not again.signer.requests()
        await trio.sleep(0.35 * DAY)
        assert len(again.signer.requests()) == 1


async def test_a_serving_certificate_follows_the_nodes_addresses(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    def addresses(*pairs: tuple[str, str]) -> Template | None:
        return serving_template("n", [v1.NodeAddress(type=t, address=a) for t, a in pairs])

    world = World(tmp_path, serving=True)
    world.template = addresses(("Hostname", "n"))
    async with running(world):
        await trio.sleep(300)
        assert not world.signer.requests()  # an address is needed first
        world.template = addresses(("Hostname", "n"), ("InternalIP", "10.0.0.1"))
        await trio.sleep(100)
        assert world.delivered[-1][1].dns_names == {"n"}
        assert world.delivered[-1][1].ips == {"10.0.0.1"}
        assert world.signer.requests()[0]["spec"]["usages"] == ["digital signature", "server auth"]
        world.signer.verdict = ""
        world.template = addresses(("Hostname", "n"), ("InternalIP", "10.0.0.2"))
        await trio.sleep(100)
        world.template = addresses(("Hostname", "n"), ("InternalIP", "10.0.0.3"))  # while that one waits
        await trio.sleep(100)
        world.signer.verdict = "Approved"
        await trio.sleep(100)
        assert world.delivered[-1][1].ips == {"10.0.0.3"}
        assert len(world.delivered) == 2
        world.template = addresses(("Hostname", "n"))
        await trio.sleep(300)
        assert len(world.delivered) == 2  # fewer addresses are no reason


async def test_nothing_is_asked_for_while_nobody_knows_what_is_wanted(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    world = World(tmp_path, serving=True)
    world.signer.verdict = "Denied"
    async with running(world):
        await trio.sleep(300)
        asked, errors, template = len(world.signer.requests()), world.errors, world.template
        world.template = None
        await trio.sleep(3600)
        assert len(world.signer.requests()) == asked
        assert world.errors == errors
        world.signer.verdict = "Approved"
        world.template = template
        await trio.sleep(100)
        assert len(world.delivered) == 1


def test_what_addresses_become() -> None:
    pairs = [
        ("Hostname", "10.0.0.9"), ("Hostname", "n"), ("InternalIP", "fd00::1"), ("InternalIP", "10.0.0.1"),
        ("InternalDNS", "n.internal"), ("ExternalDNS", ""), ("Odd", "x"),
        ("ExternalIP", "192.0.2.1"), ("Odd", "192.0.2.2"), ("InternalIP", "x"),
    ]  # fmt: skip
    template = serving_template("n", [v1.NodeAddress(type=t, address=a) for t, a in pairs])
    assert template is not None
    assert template.dns_names == ("n", "n.internal")
    assert template.ips == ("10.0.0.1", "10.0.0.9", "192.0.2.1", "fd00::1")


@pytest.mark.parametrize(
    ("pairs", "dns_only", "names"),
    [
        ([("Hostname", "n")], False, None),
        ([("Hostname", "n")], True, ("n",)),
        ([("ExternalDNS", "b"), ("InternalDNS", "a")], True, ("a", "b")),
        ([("InternalIP", "n"), ("Hostname", "")], True, None),
        ([("InternalIP", "10.0.0.1")], True, ()),
    ],
)
def test_a_name_alone_will_do_where_that_is_allowed(
    pairs: list[tuple[str, str]], dns_only: bool, names: tuple[str, ...] | None
) -> None:
    addresses = [v1.NodeAddress(type=t, address=a) for t, a in pairs]
    template = serving_template("n", addresses, dns_only)
    assert (None if template is None else template.dns_names) == names


def test_rsa_keys_encipher() -> None:
    key = rsa.generate_private_key(65537, 2048)
    ask = Ask(template=node_template("n"), key=key, signer="s", purpose="client auth")
    assert ask.usages == ["digital signature", "key encipherment", "client auth"]


@given(st.integers(1, 10**9), st.floats(0, 1, exclude_max=True))
def test_rotation_is_due_between_70_and_90_percent(life: int, jitter: float) -> None:
    begin = 1_763_700_000 * NANOSECONDS
    leaf = Leaf(not_before_ns=begin, not_after_ns=begin + life * NANOSECONDS)
    share = (rotation_due(Stored(PairFiles("", ""), leaf), jitter) - begin) / (life * NANOSECONDS)
    assert 0.7 - 1e-6 <= share <= 0.9 + 1e-6


@given(st.data())
def test_a_name_stands_for_key_and_contents(data: st.DataObject) -> None:
    part = st.sampled_from(["a", "ab", "b", ""])
    key = new_key()
    one, two = (
        (Template(common_name=data.draw(part), organizations=(data.draw(part),)), [data.draw(part)])
        for _ in range(2)
    )
    same = digested_name(one[0], key, one[1]) == digested_name(two[0], key, two[1])
    assert same is (one == two)
    assert digested_name(one[0], new_key(), one[1]) != digested_name(one[0], key, one[1])


@pytest.mark.parametrize("lifetime", [1, DAY])
async def test_a_signer_whose_certificates_are_of_no_use_is_not_asked_all_the_time(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, lifetime: float
) -> None:
    """They run out at once, or lack what was asked for."""
    if lifetime == DAY:
        monkeypatch.setattr(Template, "satisfied_by", lambda *_: False)
    async with running(World(tmp_path, lifetime=lifetime, serving=True)) as world:
        await trio.sleep(600)
        asked = len(world.signer.csrs())
        assert 10 <= asked <= 30
        monkeypatch.undo()
        world.signer.lifetime = DAY
        await trio.sleep(120)
        assert world.rotation.valid
        asked = len(world.signer.csrs())
        await trio.sleep(600)
        assert len(world.signer.csrs()) == asked
