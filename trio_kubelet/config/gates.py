"""Feature gates: what the user's settings come to, with the kubelet's rules about stages and locks."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from msgspec import Struct

from trio_kubelet.config.gate_table import GATES, NEEDS


class GateError(Exception):
    """Settings the kubelet refuses: an unknown gate, a locked one set otherwise, an unmet dependency."""


class Gate(Struct, frozen=True):
    """One gate as v1.36 has it; `stage` is ALPHA, BETA, GA or DEPRECATED."""

    name: str
    stage: str
    default: bool
    locked: bool


class FeatureGates(Struct, frozen=True):
    """The gates in force; `warnings` names finished and deprecated ones that were set."""

    settings: Mapping[str, bool]
    warnings: tuple[str, ...] = ()

    def enabled(self, name: str) -> bool:
        """Whether the feature `name` is on; KeyError for a name that is no gate."""
        setting = self.settings.get(name)
        return known_gates()[name].default if setting is None else setting


@functools.cache
def known_gates() -> Mapping[str, Gate]:
    """All gates by name, without the collective AllAlpha and AllBeta."""
    return {
        name: Gate(name, stage, default, locked)
        for (stage, default, locked), names in GATES.items()
        for name in names.split()
    }


_COLLECTIVE = {"AllAlpha": "ALPHA", "AllBeta": "BETA"}


def uses_runtime_events(wanted: Mapping[str, bool]) -> bool:
    """Whether the runtime's events are used, by the settings of gates: unless `EventedPLEG` is switched off.

    The kubelet ships its evented PLEG switched off because it lost events; this agent's does not.
    """
    return wanted.get("EventedPLEG", True)


def resolve_gates(wanted: Mapping[str, bool]) -> FeatureGates:
    """The gates under the settings `wanted`; GateError names everything that cannot be."""
    known = known_gates()
    errors, warnings = [], []
    settings: dict[str, bool] = {}
    for collective, stage in _COLLECTIVE.items():
        if collective in wanted:
            settings |= {gate.name: wanted[collective] for gate in known.values() if gate.stage == stage}
    for name, value in wanted.items():
        if name in _COLLECTIVE:
            continue
        gate = known.get(name)
        if gate is None:
            errors.append(f"unrecognized feature gate: {name}{_nearest(name)}")
            continue
        shown = str(value).lower()
        if gate.locked and value != gate.default:
            errors.append(
                f"cannot set feature gate {name} to {shown}, feature is locked to {str(gate.default).lower()}"
            )
            continue
        settings[name] = value
        if gate.stage in ("GA", "DEPRECATED"):
            warnings.append(f"{name}={shown} ({gate.stage})")
    gates = FeatureGates(settings, tuple(warnings))
    if not errors:
        errors = _unmet(gates)
    if errors:
        raise GateError("; ".join(errors))
    return gates


def _unmet(gates: FeatureGates) -> list[str]:
    errors = []
    for name, needs in NEEDS.items():
        missing = [need for need in needs.split() if not gates.enabled(need)]
        if missing and gates.enabled(name):
            errors.append(
                f"{name} is enabled, but depends on features that are disabled: {', '.join(missing)}"
            )
    return errors


def _nearest(name: str) -> str:
    import difflib  # only for a mistake

    near = difflib.get_close_matches(name, known_gates(), n=1)
    return f" (did you mean {near[0]}?)" if near else ""
