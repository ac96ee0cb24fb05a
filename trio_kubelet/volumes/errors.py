"""What can go wrong with volumes. Imports nothing: the pods' room names it too."""

from __future__ import annotations


class VolumeError(Exception):
    """A pod's volumes could not be made or taken away now; the text is shown in an event, unless the user
    was `told` of each volume already. With a `rejection` the pod is refused for good, with that reason.
    """

    def __init__(self, text: str, told: bool = False, rejection: str = "") -> None:
        super().__init__(text)
        self.told = told
        self.rejection = rejection
