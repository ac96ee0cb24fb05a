"""What feature gate settings come to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.config.gates import GateError, known_gates, resolve_gates


def test_without_settings_the_defaults_hold() -> None:
    gates = resolve_gates({})
    assert gates.enabled("PLEGOnDemandRelist")
    assert not gates.enabled("EventedPLEG")
    assert gates.enabled("SidecarContainers")


def test_a_setting_wins_over_the_default_and_over_the_collective_gate() -> None:
    gates = resolve_gates({"EventedPLEG": False, "AllAlpha": True, "PLEGOnDemandRelist": False})
    assert not gates.enabled("EventedPLEG")
    assert gates.enabled("CRIListStreaming")
    assert not gates.enabled("PLEGOnDemandRelist")


def test_all_beta_off() -> None:
    gates = resolve_gates({"AllBeta": False})
    assert not gates.enabled("PLEGOnDemandRelist")
    assert gates.enabled("SidecarContainers")


def test_a_finished_gate_is_taken_with_a_warning() -> None:
    assert resolve_gates({"SidecarContainers": True}).warnings == ("SidecarContainers=true (GA)",)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"EventdPLEG": True}, "unrecognized feature gate: EventdPLEG (did you mean EventedPLEG?)"),
        ({"SidecarContainers": False}, "SidecarContainers to false, feature is locked to true"),
        ({"GitRepoVolumeDriver": True}, "GitRepoVolumeDriver to true, feature is locked to false"),
        (
            {"GangScheduling": True},
            "GangScheduling is enabled, but depends on features that are disabled: GenericWorkload",
        ),
    ],
)
def test_refusals(wanted: dict[str, bool], message: str) -> None:
    with pytest.raises(GateError) as caught:
        resolve_gates(wanted)
    assert message in str(caught.value)


def test_every_mistake_is_named() -> None:
    with pytest.raises(GateError) as caught:
        resolve_gates({"Qqq": True, "SidecarContainers": False})
    assert "Qqq" in str(caught.value)
    assert "SidecarContainers" in str(caught.value)


def test_asking_for_a_gate_that_does_not_exist_is_a_mistake_of_ours() -> None:
    with pytest.raises(KeyError):
        resolve_gates({}).enabled("EventdPLEG")


@given(st.dictionaries(st.sampled_from(sorted(known_gates())), st.booleans()))
def test_what_is_accepted_is_in_force(wanted: dict[str, bool]) -> None:
    try:
        gates = resolve_gates(wanted)
    except GateError:
        return
    assert {name: gates.enabled(name) for name in wanted} == wanted
