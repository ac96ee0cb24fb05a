"""How operations on volumes fail. What an error says of what may still go on is part of it."""

from __future__ import annotations

import enum


class Ending(enum.Enum):
    """What is known of an operation that failed.

    FINISHED: nothing of it goes on, and nothing is there. UNCERTAIN: it may go on, or something of it may be
    there. TRANSIENT: it was not begun, because something it needs was not there.
    """

    FINISHED = "finished"
    UNCERTAIN = "uncertain"
    TRANSIENT = "transient"


class OperationError(Exception):
    """A step of an operation failed; the text is shown to the user, after the name of the step."""

    def __init__(self, text: str, ending: Ending = Ending.FINISHED) -> None:
        super().__init__(text)
        self.ending = ending

    @property
    def finished(self) -> bool:
        """Whether nothing of the operation goes on."""
        return self.ending is Ending.FINISHED


class NotBegun(OperationError):
    """What the kubelet finds, and tells, before the first step (`NewMounter`, `NewBlockVolumeMapper`)."""

    def __init__(self, text: str) -> None:
        super().__init__(text, Ending.TRANSIENT)


class StepError(Exception):
    """An operation ended with an error; the text is that of the kubelet's event and log.

    `reason` is the event's, "" for one that is only logged.
    """

    def __init__(self, text: str, reason: str = "") -> None:
        super().__init__(text)
        self.reason = reason


class ExpansionRefused(OperationError):
    """The driver will not expand the volume as things are; `infeasible`: never to this size."""

    def __init__(self, text: str, *, infeasible: bool) -> None:
        super().__init__(text)
        self.infeasible = infeasible


class FilesystemMismatch(OperationError):
    """A disk could not be mounted, and has another filesystem than is asked for."""


class NotSupported(OperationError):
    """The plugin has no such operation."""
