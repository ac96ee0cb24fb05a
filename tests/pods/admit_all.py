"""Admitters for tests in which resources are not the point."""

from __future__ import annotations

from collections.abc import Collection

from trio_kubelet.api.v1 import Pod
from trio_kubelet.pods.admission.admitter import Admit, Decision, Postpone, Reject
from trio_kubelet.pods.admission.occupancy import Others


class AdmitAll:
    """Takes every pod."""

    def admit(self, pod: Pod, others: Others) -> Decision:
        return Admit()

    def granted(self, pod: Pod) -> None:
        pass

    def actuated(self, uid: str) -> None:
        pass

    def as_granted(self, pod: Pod) -> Pod:
        return pod

    def as_actuated(self, pod: Pod) -> Pod:
        return pod

    def resize(self, pod: Pod, others: Others) -> Admit | Postpone:
        return Admit()

    def lacks(self, before: Pod, pod: Pod) -> str:
        return ""

    def grant(self, pod: Pod) -> None:
        pass

    def forget(self, uid: str) -> None:
        pass

    def keep_only(self, uids: Collection[str]) -> None:
        pass


class Few(AdmitAll):
    """A node that takes two pods."""

    def admit(self, pod: Pod, others: Others) -> Decision:
        return Admit() if len(others) < 2 else Reject("OutOfpods", "full")
