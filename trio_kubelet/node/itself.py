"""The Node object of this node, for who asks the node itself.

In a cluster it is the object as the API server has it. A node without an API server has none: it shows the
one that it would register.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from trio_kubelet.api import v1
from trio_kubelet.node.profile import NodeProfile
from trio_kubelet.node.registration import initial_node
from trio_kubelet.node.status import NodeObservation, with_status


class NodeItself:
    """`registered` gives the API server's object, None where there is none (yet); `look` sees the node."""

    def __init__(
        self,
        *,
        profile: NodeProfile,
        look: Callable[[], Awaitable[NodeObservation]],
        registered: Callable[[], v1.Node | None] = lambda: None,
    ) -> None:
        self._profile = profile
        self._look = look
        self._registered = registered
        self._last: v1.Node | None = None

    async def __call__(self) -> v1.Node:
        """The object; conditions of one that is not registered keep the moments of their turns."""
        registered = self._registered()
        if registered is not None:
            return registered
        seen = await self._look()
        if self._last is None:
            self._last, _ = initial_node(self._profile, seen)
        else:
            self._last, _ = with_status(self._last, self._profile, seen)
        return self._last
