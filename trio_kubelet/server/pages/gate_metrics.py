"""`kubernetes_feature_enabled`: every feature gate, its stage and whether it is on.

Gates do not change while the agent runs, but there are some 250 of them: their lines are made for each
scrape, in 0.1 ms, rather than kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trio_kubelet.config.gates import FeatureGates, known_gates, uses_runtime_events
from trio_kubelet.server.http.exposition import WrittenCollector, head

NAME = "kubernetes_feature_enabled"
COLLECTIVE = {"AllAlpha": "ALPHA", "AllBeta": "BETA"}


class GateMetrics(WrittenCollector):
    """The gates in force; `wanted` are the settings they came from, the collective ones included."""

    def __init__(self, gates: FeatureGates, wanted: Mapping[str, bool]) -> None:
        self._settings = {**gates.settings, "EventedPLEG": uses_runtime_events(wanted)}
        self._collective = {name: (stage, wanted.get(name, False)) for name, stage in COLLECTIVE.items()}

    def lines(self) -> Iterator[str]:
        """All gates by name, in one piece; a finished one has no stage."""
        gates = {
            name: ("" if gate.stage == "GA" else gate.stage, gate.default)
            for name, gate in known_gates().items()
        } | self._collective
        settings = self._settings
        yield head(NAME, "gauge", "Stage of a feature, and whether it is on.") + "".join(
            [
                f'{NAME}{{name="{name}",stage="{stage}"}} {settings.get(name, on):d}\n'
                for name, (stage, on) in sorted(gates.items())
            ]
        )
