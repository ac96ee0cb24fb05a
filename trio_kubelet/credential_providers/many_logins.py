"""Logins by the tens of thousands: pods and plugins choose how many they have, and to look through a megabyte
of them takes a second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from trio_kubelet.common.lanes import CONFIGS, WorkHangs
from trio_kubelet.common.log import get_logger
from trio_kubelet.credential_providers.keyring import Credential

log = get_logger(__name__)


class ManyLogins(NamedTuple):
    """Looked through by `lookup` in a thread, for the pod with the UID `owner` (implements
    `doors.PullSecret`).
    """

    lookup: Callable[[str], Sequence[Credential]]
    owner: str

    async def credentials(self, image: str) -> Sequence[Credential]:
        """What `lookup` finds; nothing where that does not end in time."""
        try:
            return await CONFIGS.run(self.lookup, image, owner=self.owner)
        except WorkHangs as error:
            log.warning("Registry credentials cannot be looked through", podUID=self.owner, err=error)
            return ()
