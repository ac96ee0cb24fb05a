"""What becomes of one certificate a pod mounts: asked for, issued, renewed, or refused for good. Pure.

    nothing ──▶ asked ──▶ issued ──▶ asked again ──▶ issued …
                  └──────────┬───────────┘
                             ▼
                     denied or failed

Moments are nanoseconds since the epoch. Nothing of this outlives the agent: after a restart everything is
asked for anew (kubelet: `podcertificate.IssuingManager`).
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.api.timestamps import parse_rfc3339
from trio_kubelet.common.clock import NANOSECONDS
from trio_kubelet.common.log import go_quote
from trio_kubelet.kube.certificates.files import clean_chain
from trio_kubelet.podinfo.doors import CredentialBundle, ObjectError

MAX_JITTER: Final = 300.0
"""Seconds, so that certificates that were issued together are not renewed together."""
ABANDON_AFTER: Final = 600.0
"""Seconds after which a request that is nowhere to be seen counts as deleted."""
OVERDUE_AFTER: Final = 600.0
"""Seconds a renewal may take before that is told."""


class RequestStatus(v1.Object):
    """The status of a PodCertificateRequest."""

    conditions: list[v1.Condition] | None = None
    certificate_chain: str = ""
    begin_refresh_at: v1.Time | None = None
    not_after: v1.Time | None = None


class CertificateRequest(v1.Object):
    """What is read of a PodCertificateRequest."""

    metadata: v1.ObjectMeta = msgspec.field(default_factory=v1.ObjectMeta)
    status: RequestStatus = msgspec.field(default_factory=RequestStatus)


class PendingRequest(msgspec.Struct, frozen=True):
    """A request that is at the API server, and the key it is for."""

    name: str
    key: bytes
    abandon_ns: int

    def __repr__(self) -> str:  # never the key
        return f"PendingRequest({self.name})"


class Issued(msgspec.Struct, frozen=True):
    """A certificate, and when it is to be renewed."""

    bundle: CredentialBundle
    renew_ns: int
    not_after_ns: int

    def __repr__(self) -> str:
        return f"Issued(renew_ns={self.renew_ns}, not_after_ns={self.not_after_ns})"


class Refusal(msgspec.Struct, frozen=True):
    """The signer's last word; `verdict` is the condition's type, Denied or Failed."""

    verdict: str
    reason: str
    message: str

    def told(self, request: str) -> str:
        """The text of the pod's event."""
        what = "was denied" if self.verdict == "Denied" else "failed"
        reason, message = go_quote(self.reason), go_quote(self.message)
        return f"PodCertificateRequest {request} {what}, reason={reason}, message={message}"

    @property
    def error(self) -> str:
        """Why the volume cannot be had."""
        reason, message = go_quote(self.reason), go_quote(self.message)
        what = f"permanently {self.verdict.lower()}"
        return f"PodCertificateRequest was {what}: reason={reason} message={message}"


class Told(enum.Flag):
    """What was told of the present certificate."""

    NOTHING = 0
    OVERDUE = enum.auto()
    EXPIRED = enum.auto()


class CertificateState(msgspec.Struct, frozen=True):
    """One certificate. A refusal is the end of it, whatever was issued before."""

    asked: PendingRequest | None = None
    issued: Issued | None = None
    refusal: Refusal | None = None
    told: Told = Told.NOTHING

    @property
    def settled(self) -> bool:
        """Whether a reader has something to go by."""
        return self.issued is not None or self.refusal is not None


class Event(msgspec.Struct, frozen=True):
    """A warning about the pod."""

    reason: str
    message: str


def bundle_of(state: CertificateState) -> CredentialBundle:
    """Key and chain as they are to be mounted. Raises ObjectError."""
    if state.refusal is not None:
        raise ObjectError(state.refusal.error)
    if state.issued is None:
        raise ObjectError("credential bundle is not issued yet")
    return state.issued.bundle


def wants_request(state: CertificateState, now_ns: int) -> bool:
    """Whether a certificate is to be asked for."""
    if state.refusal is not None or state.asked is not None:
        return False
    return state.issued is None or now_ns >= state.issued.renew_ns


def after_news(
    state: CertificateState, found: CertificateRequest | None, now_ns: int, jitter: float
) -> CertificateState:
    """The state after a look at its request; None: there is none to be seen. `jitter` in [0, 1).

    Raises ValueError for an answer that makes no sense.
    """
    asked = state.asked
    if asked is None:
        return state
    if found is None:
        return msgspec.structs.replace(state, asked=None) if now_ns > asked.abandon_ns else state
    for condition in found.status.conditions or ():
        if condition.type in ("Denied", "Failed"):
            return CertificateState(refusal=Refusal(condition.type, condition.reason, condition.message))
        if condition.type == "Issued":
            return CertificateState(issued=_issued(asked, found.status, jitter))
    return state


def _issued(asked: PendingRequest, status: RequestStatus, jitter: float) -> Issued:
    renew_ns = parse_rfc3339(status.begin_refresh_at or "") + round(jitter * MAX_JITTER * NANOSECONDS)
    bundle = CredentialBundle(asked.key, clean_chain(status.certificate_chain))
    return Issued(bundle, renew_ns, parse_rfc3339(status.not_after or ""))


def overdue(state: CertificateState, now_ns: int) -> tuple[CertificateState, list[Event]]:
    """What is to be told of a certificate that should have been renewed, each once."""
    issued, told = state.issued, state.told
    if issued is None or now_ns < issued.renew_ns:
        return state, []
    events = []
    if now_ns > _overdue_ns(issued) and Told.OVERDUE not in told:
        told |= Told.OVERDUE
        events.append(Event("CertificateOverdueForRefresh", "PodCertificate refresh overdue"))
    if now_ns > issued.not_after_ns and Told.EXPIRED not in told:
        told |= Told.EXPIRED
        events.append(Event("CertificateExpired", "PodCertificate expired"))
    return msgspec.structs.replace(state, told=told) if events else state, events


def next_moment_ns(state: CertificateState, now_ns: int) -> int | None:
    """When time alone changes something next."""
    moments = []
    if state.asked is not None:
        moments.append(state.asked.abandon_ns + 1)
    if state.issued is not None:
        moments += [state.issued.renew_ns, _overdue_ns(state.issued) + 1, state.issued.not_after_ns + 1]
    return min((moment for moment in moments if moment > now_ns), default=None)


def metric_state(state: CertificateState, now_ns: int) -> str:
    """The state as the metric names it."""
    if state.refusal is not None:
        return state.refusal.verdict.lower()
    if state.issued is None:
        return "not_yet_issued"
    if now_ns > state.issued.not_after_ns:
        return "expired"
    return "overdue_for_refresh" if now_ns > _overdue_ns(state.issued) else "fresh"


def _overdue_ns(issued: Issued) -> int:
    return issued.renew_ns + round(OVERDUE_AFTER * NANOSECONDS)
