"""A signer of PodCertificateRequests, on the test's clock."""

from __future__ import annotations

import base64
import datetime
from typing import Any

from cryptography import x509

from tests.kube.apiserver import APIServer
from tests.kube.certs import CA
from tests.kube.signer import Decider
from tests.kube.store import Tree, selector
from trio_kubelet.api.timestamps import rfc3339
from trio_kubelet.common.clock import NANOSECONDS, Clock

REQUESTS = "podcertificaterequests"


class PodSigner(Decider):
    """Its attributes are the switches."""

    def __init__(self, server: APIServer, clock: Clock, lifetime: int) -> None:
        super().__init__(server, REQUESTS, "Issued")
        self.clock = clock
        self.ca = CA("pods")
        self.lifetime = lifetime
        self.renewal = lifetime // 2

    def requests(self) -> list[Tree]:
        found = self.server.store.list(selector(REQUESTS))
        return sorted(found, key=lambda r: (r["metadata"]["creationTimestamp"], r["metadata"]["name"]))

    def decide(self, request: Tree) -> None:
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
