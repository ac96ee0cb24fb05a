"""An admitter for tests in which admission is not the point."""

from __future__ import annotations

from collections.abc import Sequence

from trio_kubelet.api.v1 import Pod
from trio_kubelet.pods.admitter import Admit, Decision, Postpone


class AdmitAll:
    """Takes every pod."""

    def admit(self, pod: Pod, others: Sequence[Pod]) -> Decision:
        return Admit()

    def granted(self, pod: Pod) -> None:
        pass

    def as_granted(self, pod: Pod) -> Pod:
        return pod

    def resize(self, pod: Pod, others: Sequence[Pod]) -> Admit | Postpone:
        return Admit()

    def grant(self, pod: Pod) -> None:
        pass

    def forget(self, uid: str) -> None:
        pass
