"""Where registry credentials come from, as those who pull images see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from trio_kubelet.credential_providers.keyring import Credential


class PullSecret(Protocol):
    """A place where registry credentials come from; the image manager asks each in turn."""

    async def credentials(self, image: str) -> Sequence[Credential]:
        """What to try for a normalised image reference, best first. Never raises."""
        ...
