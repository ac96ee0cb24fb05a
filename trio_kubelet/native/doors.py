"""What both tables of relists offer: the one in C and the one in plain Python."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from trio_kubelet.native.types import ListAnswer, PodChange, PodView, RelistCounts


class RelistTableLike(Protocol):
    """What both tables offer; a table belongs to one task and is not shared between threads."""

    def relist(self, sandboxes: ListAnswer, containers: ListAnswer) -> list[PodChange]:
        """Take both full lists; return the pods that differ from their committed record, by uid.

        Raises MalformedList, after which the table is as before.
        """
        ...

    def relist_pod(self, uid: str, sandboxes: ListAnswer, containers: ListAnswer) -> PodChange | None:
        """Take lists of one pod only (entries of other pods are checked and passed over)."""
        ...

    def commit(self, uid: str) -> None:
        """The pod's changes were acted on: its record moves on to the last relist."""
        ...

    def pod(self, uid: str) -> PodView | None:
        """The pod in the last relist, None when it has no container and no sandbox there."""
        ...

    def pods(self) -> Iterator[str]:
        """Uids of all pods of the last relist."""
        ...

    def running_pods(self) -> Iterator[str]:
        """Uids of the pods with a running container or a ready sandbox (kubelet: `GetPods(false)`)."""
        ...

    def counts(self) -> RelistCounts: ...
