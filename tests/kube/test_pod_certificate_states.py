"""What becomes of a pod's certificate, as a function."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.api.timestamps import rfc3339
from trio_kubelet.common.clock import NANOSECONDS
from trio_kubelet.kube.certificates.files import certificate_block
from trio_kubelet.kube.pod_certificate_states import (
    ABANDON_AFTER,
    MAX_JITTER,
    OVERDUE_AFTER,
    CertificateRequest,
    CertificateState,
    Event,
    PendingRequest,
    after_news,
    bundle_of,
    metric_state,
    next_moment_ns,
    overdue,
    wants_request,
)
from trio_kubelet.podinfo.doors import CredentialBundle, ObjectError

START = 1_763_700_000 * NANOSECONDS
HOUR = 3600 * NANOSECONDS
ASKED = PendingRequest("req-1", b"key", START + round(ABANDON_AFTER) * NANOSECONDS)
OVERDUE = Event("CertificateOverdueForRefresh", "PodCertificate refresh overdue")
EXPIRED = Event("CertificateExpired", "PodCertificate expired")


def a_request(verdict: str = "", **status: Any) -> CertificateRequest:
    if verdict:
        status["conditions"] = [{"type": verdict, "status": "True", "reason": "Why", "message": 'so "it" is'}]
    return msgspec.convert({"metadata": {"name": "req-1"}, "status": status}, CertificateRequest)


def issued(jitter: float = 0.0) -> CertificateState:
    """To be renewed after an hour (and jitter), good for two."""
    chain = certificate_block(b"leaf").decode()
    found = a_request(
        "Issued",
        certificateChain=f"noise\n{chain}",
        beginRefreshAt=rfc3339(START + HOUR),
        notAfter=rfc3339(START + 2 * HOUR),
    )
    return after_news(CertificateState(asked=ASKED), found, START, jitter)


def error(state: CertificateState) -> str:
    with pytest.raises(ObjectError) as found:
        bundle_of(state)
    return str(found.value)


def test_from_nothing_to_a_certificate() -> None:
    assert wants_request(CertificateState(), START)
    assert error(CertificateState()) == "credential bundle is not issued yet"
    waits = CertificateState(asked=ASKED)
    assert not wants_request(waits, START)
    assert error(waits) == "credential bundle is not issued yet"
    assert after_news(waits, a_request(), START, 0.5) is waits
    assert bundle_of(issued()) == CredentialBundle(b"key", certificate_block(b"leaf"))
    assert metric_state(waits, START) == metric_state(CertificateState(), START) == "not_yet_issued"


@pytest.mark.parametrize("verdict", ["Denied", "Failed"])
@pytest.mark.parametrize("renewal", [False, True])
def test_a_refusal_is_the_end(verdict: str, renewal: bool) -> None:
    before = msgspec.structs.replace(issued(), asked=ASKED) if renewal else CertificateState(asked=ASKED)
    refused = after_news(before, a_request(verdict), START, 0.5)
    assert error(refused) == (
        f'PodCertificateRequest was permanently {verdict.lower()}: reason="Why" message="so \\"it\\" is"'
    )
    assert refused.refusal is not None
    what = {"Denied": "was denied", "Failed": "failed"}[verdict]
    assert refused.refusal.told("ns/req-1") == (
        f'PodCertificateRequest ns/req-1 {what}, reason="Why", message="so \\"it\\" is"'
    )
    assert not wants_request(refused, START + 100 * HOUR)
    assert next_moment_ns(refused, START) is None
    assert overdue(refused, START + 100 * HOUR) == (refused, [])
    assert metric_state(refused, START + 100 * HOUR) == verdict.lower()


@given(st.booleans(), st.integers(-HOUR, HOUR))
def test_a_request_that_is_not_to_be_seen_is_given_up_after_a_while(renewal: bool, since: int) -> None:
    state = msgspec.structs.replace(issued(), asked=ASKED) if renewal else CertificateState(asked=ASKED)
    now_ns = ASKED.abandon_ns + since
    after = after_news(state, None, now_ns, 0.5)
    assert (after.asked is None) is (since > 0)
    assert after.issued is state.issued


@given(st.floats(0, 1, exclude_max=True))
def test_renewed_when_it_is_time_with_jitter(jitter: float) -> None:
    state = issued(jitter)
    assert state.issued is not None
    due = state.issued.renew_ns
    assert 0 <= due - (START + HOUR) <= MAX_JITTER * NANOSECONDS
    assert not wants_request(state, due - 1)
    assert wants_request(state, due)
    assert not wants_request(msgspec.structs.replace(state, asked=ASKED), due)
    assert next_moment_ns(state, START) == due


def test_a_renewal_that_takes_long_is_told_once_and_its_end_too() -> None:
    state, due = issued(), START + HOUR
    late = due + round(OVERDUE_AFTER) * NANOSECONDS
    assert overdue(state, late) == (state, [])
    assert metric_state(state, late) == "fresh"
    told, events = overdue(state, late + 1)
    assert events == [OVERDUE]
    assert metric_state(told, late + 1) == "overdue_for_refresh"
    assert overdue(told, late + 2) == (told, [])
    over, events = overdue(told, START + 2 * HOUR + 1)
    assert events == [EXPIRED]
    assert metric_state(over, START + 2 * HOUR + 1) == "expired"
    assert overdue(over, START + 9 * HOUR) == (over, [])
    assert overdue(state, START + 9 * HOUR)[1] == [OVERDUE, EXPIRED]
    assert bundle_of(over) == bundle_of(state)
    assert wants_request(over, START + 9 * HOUR)


@given(st.lists(st.integers(0, 4 * HOUR), max_size=30), st.booleans())
def test_nothing_happens_by_time_alone_between_the_moments_that_are_foretold(
    since: list[int], asked: bool
) -> None:
    """Who looks at the foretold moments sees all that who looks more often sees."""
    start = msgspec.structs.replace(issued(), asked=ASKED) if asked else issued()
    looks = {START + moment for moment in since}
    foretold, moment = [], next_moment_ns(start, START)
    while moment is not None:
        foretold.append(moment)
        moment = next_moment_ns(start, moment)

    def seen(moments: list[int]) -> tuple[CertificateState, list[Event]]:
        state, events = start, []
        for now_ns in moments:
            state = after_news(state, None, now_ns, 0.5)
            state, new = overdue(state, now_ns)
            events += new
        return state, events

    end = START + 5 * HOUR
    assert seen([*foretold, end]) == seen([*sorted(looks | set(foretold)), end])


@pytest.mark.parametrize("missing", ["beginRefreshAt", "notAfter"])
def test_an_answer_that_makes_no_sense_is_an_error(missing: str) -> None:
    whole = {"beginRefreshAt": rfc3339(START), "notAfter": rfc3339(START)}
    del whole[missing]
    with pytest.raises(ValueError, match="RFC 3339"):
        after_news(CertificateState(asked=ASKED), a_request("Issued", **whole), START, 0.5)


def test_no_key_is_ever_shown() -> None:
    canary = b"canary"
    asked = PendingRequest("req-1", canary, START)
    state = after_news(
        CertificateState(asked=asked),
        a_request("Issued", beginRefreshAt=rfc3339(START), notAfter=rfc3339(START)),
        START,
        0,
    )
    shown = repr((asked, CertificateState(asked=asked), state, bundle_of(state)))
    assert "canary" not in shown
    assert bundle_of(state).key == canary
