"""Approver and signer of certificate signing requests, on the test's clock."""

from __future__ import annotations

import abc
import base64
import datetime
from typing import Any

import trio
from cryptography import x509

from tests.kube.apiserver import APIServer
from tests.kube.certs import CA
from tests.kube.store import Tree, selector
from trio_kubelet.common.clock import NANOSECONDS, Clock

CSRS = "certificatesigningrequests"


class Decider(abc.ABC):
    """Looks at requests, which are this resource, a second after one was written."""

    def __init__(self, server: APIServer, resource: str, verdict: str) -> None:
        self.server = server
        self._resource = resource
        self._verdict = verdict

    @property
    def verdict(self) -> str:
        """The condition that requests get: the good one, Denied, Failed, or "" to leave them alone."""
        return self._verdict

    @verdict.setter
    def verdict(self, verdict: str) -> None:
        self._verdict = verdict
        self.server.store.advance(0)  # have a look at what waits

    @abc.abstractmethod
    def requests(self) -> list[Tree]:
        """What was asked for, in order."""

    @abc.abstractmethod
    def decide(self, request: Tree) -> None:
        """What becomes of one request."""

    async def run(self) -> None:
        while True:
            await trio.sleep(1)
            for request in self.requests():
                if not request.get("status", {}).get("conditions") and self.verdict:
                    self.decide(request)
            with trio.move_on_after(3600):
                await self.server.store.wait_for_change(self._resource)


class Signer(Decider):
    """Its attributes are the switches."""

    def __init__(self, server: APIServer, ca: CA, clock: Clock, lifetime: float = 86400.0) -> None:
        super().__init__(server, CSRS, "Approved")
        self.ca = ca
        self.clock = clock
        self.lifetime = lifetime
        self.issues = True

    def requests(self) -> list[Tree]:
        found = self.server.store.list(selector(CSRS))
        return sorted(found, key=lambda r: int(r["metadata"]["resourceVersion"]))

    def csrs(self) -> list[x509.CertificateSigningRequest]:
        return [x509.load_pem_x509_csr(base64.b64decode(r["spec"]["request"])) for r in self.requests()]

    def decide(self, request: Tree) -> None:
        status: dict[str, Any] = {
            "conditions": [{"type": self.verdict, "status": "True", "reason": "Test", "message": "so it is"}]
        }
        if self.verdict == "Approved" and self.issues:
            now = datetime.datetime.fromtimestamp(self.clock.now_ns() / NANOSECONDS, datetime.UTC)
            certificate = self.ca.sign_request(
                base64.b64decode(request["spec"]["request"]),
                datetime.timedelta(seconds=self.lifetime),
                now.replace(microsecond=0),
            )
            status["certificate"] = base64.b64encode(certificate).decode()
        self.server.store.set_status(CSRS, "", request["metadata"]["name"], **status)
