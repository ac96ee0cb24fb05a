"""A signer of PodCertificateRequests, on the test's clock."""

from __future__ import annotations

import base64
import datetime
from typing import Any

import trio
from cryptography import x509

from tests.kube.apiserver import APIServer
from tests.kube.certs import CA
from tests.kube.store import Tree, selector
from trio_kubelet.api.timestamps import rfc3339
from trio_kubelet.clock import NANOSECONDS, Clock

REQUESTS = "podcertificaterequests"


class PodSigner:
    """Looks at requests a second after something was written. Its attributes are the switches."""

    def __init__(self, server: APIServer, clock: Clock, lifetime: int) -> None:
        self.server = server
        self.clock = clock
        self.ca = CA("pods")
        self.lifetime = lifetime
        self.renewal = lifetime // 2
        self._verdict = "Issued"

    @property
    def verdict(self) -> str:
        """Issued, Denied, Failed, or "" to leave requests alone."""
        return self._verdict

    @verdict.setter
    def verdict(self, verdict: str) -> None:
        self._verdict = verdict
        self.server.store.advance(0)  # have a look at what waits

    def requests(self) -> list[Tree]:
        """What was asked for, in order."""
        found = self.server.store.list(selector(REQUESTS))
        return sorted(found, key=lambda r: (r["metadata"]["creationTimestamp"], r["metadata"]["name"]))

    async def run(self) -> None:
        while True:
            await trio.sleep(1)
            for request in self.requests():
                if not request.get("status", {}).get("conditions") and self.verdict:
                    self.decide(request)
            with trio.move_on_after(3600):
                await self.server.store.wait_for_change()

    def decide(self, request: Tree) -> None:
        """What a signer does with one request."""
        condition = {"type": self.verdict, "status": "True", "reason": "Test", "message": 'so "it" is'}
        status: dict[str, Any] = {"conditions": [condition]}
        if self.verdict == "Issued":
            now_ns = self.clock.now_ns()
            csr = x509.load_der_x509_csr(base64.b64decode(request["spec"]["stubPKCS10Request"]))
            assert csr.is_signature_valid
            began = datetime.datetime.fromtimestamp(now_ns // NANOSECONDS, datetime.UTC)
            lifetime = datetime.timedelta(seconds=self.lifetime)
            leaf = self.ca.issue(csr.subject, csr.public_key(), ("p",), lifetime, began)
            status |= {
                "certificateChain": f"leaf\n{leaf.decode()}intermediate\n{self.ca.pem.decode()}",
                "notBefore": rfc3339(now_ns),
                "beginRefreshAt": rfc3339(now_ns + self.renewal * NANOSECONDS),
                "notAfter": rfc3339(now_ns + self.lifetime * NANOSECONDS),
            }
        meta = request["metadata"]
        self.server.store.set_status(REQUESTS, meta["namespace"], meta["name"], **status)
