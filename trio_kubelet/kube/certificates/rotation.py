"""Keeps one certificate current: asks for the first one, and for the next one in good time.

When to ask is decided from the certificate alone; a restart changes nothing. A new certificate is wanted
when there is none, when the one there is has expired, when it no longer says what it should (the node's
addresses changed), and at a moment between 70 and 90 % of its life, drawn per certificate, so that the
nodes of a cluster do not come all at once. Failures are repeated after 2, 4, 8, 16 and then 32 seconds.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import NamedTuple

import msgspec
import trio

from trio_kubelet.common.backoff import Pauses, generator
from trio_kubelet.common.clock import NANOSECONDS, Clock
from trio_kubelet.common.lanes import CERTIFICATES
from trio_kubelet.common.log import get_logger
from trio_kubelet.common.small_files import replace_small
from trio_kubelet.kube.certificates.files import PairFiles
from trio_kubelet.kube.certificates.pair import PrivateKey, key_pem, new_key, parse_key
from trio_kubelet.kube.certificates.request import (
    SERVER_AUTH,
    SERVING_SIGNER,
    Ask,
    RequestRefused,
    Template,
    digested_name,
    obtain,
)
from trio_kubelet.kube.certificates.serving import ServingCertificate
from trio_kubelet.kube.certificates.store import PairStore, Stored
from trio_kubelet.kube.client import KubeClient
from trio_kubelet.kube.errors import APIError, APIUnavailable
from trio_kubelet.kube.metrics import KubeMetrics

log = get_logger(__name__)

SIGNING_TIMEOUT = 900.0
PAUSES = Pauses(2.0, 32.0, jitter=0.1)
SHORTEST_USE = 60.0
"""Seconds after which a certificate that is to be replaced has been of use."""


class Measures(NamedTuple):
    """Who hears what is counted: of failed attempts, and of the age in seconds at which one was replaced."""

    failed: Callable[[], None]
    replaced: Callable[[float], None] | None = None


class Purpose(msgspec.Struct, frozen=True, kw_only=True):
    """What a certificate is for.

    `look_period`: seconds between two looks at clock and template, neither of which tells when it changes.
    `first_key`: file for the key of a request made while there is no valid certificate, so that the request
    is found again after a restart; "" for none.
    """

    name: str
    signer: str
    usage: str
    look_period: float
    first_key: str = ""


class CertificateRotation:
    """One certificate's life. `stored` is what is in use, expired or not."""

    def __init__(
        self,
        purpose: Purpose,
        store: PairStore,
        template: Callable[[], Template | None],
        client: Callable[[bool], AbstractAsyncContextManager[KubeClient]],
        deliver: Callable[[PairFiles], Awaitable[None]],
        clock: Clock,
        measures: Measures,
        rng: random.Random | None = None,
    ) -> None:
        """`template` says what is wanted now (None: cannot be said yet); `client` opens a way to ask, told
        whether the current certificate is good for it; `deliver` gets each new pair.
        """
        self.stored: Stored | None = None
        self._purpose = purpose
        self._store = store
        self._template = template
        self._client = client
        self._deliver = deliver
        self._clock = clock
        self._measures = measures
        self._random = generator(rng).random
        self._due_ns = 0

    async def load(self) -> None:
        """Takes what is stored. Raises OSError when it cannot be read; only somebody's hand can help then."""
        self._adopt(await CERTIFICATES.run(self._store.current))

    def must_rotate_now(self) -> None:
        """What is stored was only lent: it is to be replaced at once."""
        self._due_ns = 0

    def seconds_left(self) -> float:
        """For the ttl gauges: whole seconds, infinite without a valid certificate, as with the kubelet."""
        now_ns = self._clock.now_ns()
        if self.stored is None or self.stored.leaf.expired(now_ns):
            return math.inf
        return float(math.trunc((self.stored.leaf.not_after_ns - now_ns) / NANOSECONDS))

    @property
    def valid(self) -> bool:
        """Whether there is a certificate that others will take."""
        return self.stored is not None and not self.stored.leaf.expired(self._clock.now_ns())

    async def run(self) -> None:
        """Rotates until cancelled. A certificate that is due at once is of no use, and the next one may be
        like it: it counts as a failure.
        """
        got, useless = -math.inf, 0
        while True:
            await self._wait_until_due()
            useless = useless + 1 if trio.current_time() - got < SHORTEST_USE else 0
            await trio.sleep(PAUSES.after(useless, self._random()))
            await self.rotate()
            got = trio.current_time()

    async def rotate(self) -> None:
        """Asks until there is a new certificate, whatever it takes."""
        failures = 0
        while True:
            template = self._template()
            if template is None:
                await trio.sleep(self._purpose.look_period)
                continue
            if await self._attempt_unless_changed(template):
                return
            failures += 1
            await trio.sleep(PAUSES.after(failures, self._random()))

    async def _wait_until_due(self) -> None:
        while True:
            template = self._template()
            wrong = self.stored is None or (
                template is not None and not template.satisfied_by(self.stored.leaf)
            )
            left = (self._due_ns - self._clock.now_ns()) / NANOSECONDS
            if template is not None and (wrong or left <= 0):
                return
            period = self._purpose.look_period
            # Not less than a second: the last nanosecond may be below the resolution of the clock.
            await trio.sleep(max(1.0, min(period, left)) if left > 0 else period)

    async def _attempt_unless_changed(self, template: Template) -> bool:
        """One attempt; given up when something else is wanted meanwhile. Whether it succeeded."""
        done = False
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                while self._template() == template:  # noqa: ASYNC110 - nobody tells when it changes
                    await trio.sleep(self._purpose.look_period)
                log.v(2).info("Certificate template changed", certificate=self._purpose.name)
                nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            done = await self._attempt(template)
            nursery.cancel_scope.cancel()
        return done

    async def _attempt(self, template: Template) -> bool:
        log.v(2).info("Requesting a certificate", certificate=self._purpose.name)
        try:
            await self._request(template)
        except (RequestRefused, APIError, APIUnavailable, OSError, ValueError, trio.TooSlowError) as exc:
            self._measures.failed()
            why = "nobody signed the request in time" if isinstance(exc, trio.TooSlowError) else exc
            log.error("Cannot get a certificate, will try again", certificate=self._purpose.name, err=why)
            return False
        return True

    async def _request(self, template: Template) -> None:
        valid = self.valid
        key, name = await self._key(template, valid)
        ask = Ask(
            template=template, key=key, signer=self._purpose.signer, purpose=self._purpose.usage, name=name
        )
        try:
            async with self._client(valid) as client:
                certificate = await obtain(client, ask, SIGNING_TIMEOUT, self._clock.now_ns())
        except RequestRefused:
            if name:  # with another key it is another request
                await CERTIFICATES.run(_forget, self._purpose.first_key)
            raise
        with trio.CancelScope(shield=True):  # what was signed is not thrown away half stored
            await self._take(certificate, key)

    async def _take(self, certificate: bytes, key: PrivateKey) -> None:
        old, now_ns = self.stored, self._clock.now_ns()
        stored = await CERTIFICATES.run(self._store.update, certificate, key_pem(key), now_ns)
        self._adopt(stored)
        if old is not None and self._measures.replaced is not None:
            self._measures.replaced((now_ns - old.leaf.not_before_ns) / NANOSECONDS)
        if self._purpose.first_key:
            await CERTIFICATES.run(_forget, self._purpose.first_key)
        log.info("New certificate", certificate=self._purpose.name, file=stored.files.certificate)
        try:
            await self._deliver(stored.files)
        except OSError as exc:  # it is stored; who uses it looks at the files again
            log.error("Cannot use the new certificate", certificate=self._purpose.name, err=exc)

    async def _key(self, template: Template, valid: bool) -> tuple[PrivateKey, str]:
        """The key of the next request, and the request's name if it has one."""
        if valid or not self._purpose.first_key:
            return new_key(), ""
        key = await CERTIFICATES.run(_load_or_make_key, self._purpose.first_key)
        asked = Ask(template=template, key=key, signer=self._purpose.signer, purpose=self._purpose.usage)
        return key, digested_name(template, key, asked.usages)

    def _adopt(self, stored: Stored | None) -> None:
        self.stored = stored
        self._due_ns = 0 if stored is None else rotation_due(stored, self._random())


def rotation_due(stored: Stored, jitter: float) -> int:
    """When to replace a certificate: between 70 and 90 % of its life, `jitter` in [0, 1)."""
    begin, end = stored.leaf.not_before_ns, stored.leaf.not_after_ns
    return begin + math.floor((end - begin) * (0.7 + 0.2 * jitter))


def _load_or_make_key(path: str) -> PrivateKey:
    try:
        with open(path, "rb") as file:
            return parse_key(file.read(1 << 20), path)
    except FileNotFoundError:
        pass
    except OSError as exc:
        log.warning("Key of an unfinished request cannot be used, making a new one", err=exc)
    key = new_key()
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    replace_small(path, key_pem(key), mode=0o600)
    return key


def _forget(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)


_PREFIX = "kubelet-server"
_LOOK_PERIOD = 5.0


class ServingRotation:
    """Hands signed pairs to a `ServingCertificate`. `load` first, then `run`."""

    def __init__(
        self,
        *,
        serving: ServingCertificate,
        client: KubeClient,
        template: Callable[[], Template | None],
        store: PairStore,
        clock: Clock,
        metrics: KubeMetrics,
        rng: random.Random | None = None,
    ) -> None:
        """`template`: what a certificate has to say by the node's present addresses."""
        self._serving = serving
        self._kube = client
        self.rotation = CertificateRotation(
            purpose=Purpose(
                name=SERVING_SIGNER, signer=SERVING_SIGNER, usage=SERVER_AUTH, look_period=_LOOK_PERIOD
            ),
            store=store,
            template=template,
            client=self._client,
            deliver=serving.use,
            clock=clock,
            measures=Measures(metrics.server_renew_errors.inc, metrics.server_rotation.observe),
            rng=rng,
        )
        metrics.server_ttl.set_function(self.rotation.seconds_left)

    async def load(self) -> None:
        """Shows what is stored. Raises OSError when it cannot be read."""
        await self.rotation.load()
        if self.rotation.stored is not None:
            await self._serving.use(self.rotation.stored.files)

    async def run(self) -> None:
        """Rotates until cancelled."""
        await self.rotation.run()

    @asynccontextmanager
    async def _client(self, valid: bool) -> AsyncIterator[KubeClient]:
        yield self._kube


def serving_store(cert_dir: str, given: PairFiles) -> PairStore:
    """Where signed serving certificates are; `given` (tlsCertFile, tlsPrivateKeyFile) serves before them."""
    return PairStore(cert_dir, _PREFIX, given if given.certificate and given.key else None)
