"""What the page asks of the agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.nodepage.rows import PodFacts


class Use(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a container uses now: thousandths of a core (None: not known yet) and bytes of working set."""

    cpu: int | None = None
    memory: int | None = None


class Detail(msgspec.Struct, frozen=True, kw_only=True):
    """One pod in full. `manifest` and `configs` are plain values, `notes` what of it could not be made."""

    uid: str
    manifest: object
    configs: object
    notes: Sequence[str]


class LogTail(NamedTuple):
    """The end of a log. `stamp` compares equal while the file is the same, None if that is not known."""

    text: str
    stamp: object = None


class NodeDoor(Protocol):
    """The agent as the page sees it. Nothing but `use` and `log_tail` waits, and nothing raises."""

    def uids(self) -> Sequence[str]:
        """The pods there are: those the sources want, and those that still end."""
        ...

    def stamp(self, uid: str) -> object:
        """Compares unequal when something to be shown of the pod may be different."""
        ...

    def rounds(self) -> Mapping[str, object]:
        """The pods whose round is under way for longer than a moment, and what it is at: nobody is told."""
        ...

    def facts(self, uid: str) -> PodFacts | None:
        """What is known of the pod; None when it is gone."""
        ...

    def on_change(self, listener: Callable[[str], None]) -> None:
        """Calls `listener` with the UID of a pod that may be different, for all but what `rounds` tells."""
        ...

    def story(self, uid: str) -> object:
        """The agent's decisions about a pod, oldest first, as plain values."""
        ...

    def pod(self, uid: str) -> v1.Pod | None:
        """The pod as its source wants it."""
        ...

    def detail(self, pod: v1.Pod) -> Detail:
        """Its manifest and what the runtime is told of it."""
        ...

    async def use(self, uids: Sequence[str]) -> dict[str, dict[str, Use]]:
        """What containers of these pods use, by UID and name."""
        ...

    async def log_tail(self, uid: str, container: str, previous: bool, before: LogTail | None) -> LogTail:
        """The last lines of a container's log, or why there are none; `before` where nothing was written
        since.
        """
        ...
