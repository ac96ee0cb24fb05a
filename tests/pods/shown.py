"""What the test API server shows of pods."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.kube.store import Refused, Store
from trio_kubelet.api import v1


class Shown:
    """A view of the server's pods in the namespace `default`."""

    store: Store

    def shown(self, name: str) -> dict[str, Any] | None:
        """The pod as the API server has it."""
        try:
            return self.store.get("pods", "default", name)
        except Refused:
            return None

    def status(self, name: str) -> dict[str, Any]:
        found = self.shown(name)
        return found["status"] if found is not None else {}

    def phase(self, name: str) -> str:
        return str(self.status(name).get("phase", ""))

    def condition(self, name: str, kind: str) -> str:
        found = [c["status"] for c in self.status(name).get("conditions", ()) if c["type"] == kind]
        return str(found[0]) if found else ""

    def ready(self, name: str) -> bool:
        return self.condition(name, "Ready") == "True"

    def shows(self, name: str, status: v1.PodStatus | None) -> bool:
        """Whether that is the pod's status there, conditions of others apart."""
        if status is None or self.shown(name) is None:
            return False
        there = msgspec.convert(self.status(name), v1.PodStatus)
        own = {c.type for c in status.conditions or ()}
        there.conditions = [c for c in there.conditions or () if c.type in own] or None
        return there == status
