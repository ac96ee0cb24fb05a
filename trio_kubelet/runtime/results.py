"""What a look at one pod led to: one entry for each thing that was done, with the reason words of the
kubelet.

The reasons end up in container statuses (`state.waiting.reason`) and the texts in their messages and in
events, so they are spelled as the kubelet spells them.
"""

from __future__ import annotations

import enum

import msgspec

from trio_kubelet.common.log import go_quote, shortened

LONGEST_MESSAGE = 4 * 1024
"""Characters; a message becomes part of the pod's status, and runtimes may quote megabytes."""


class SyncAction(enum.StrEnum):
    """What was attempted (kubelet: `container.SyncAction`)."""

    START_CONTAINER = "StartContainer"
    KILL_CONTAINER = "KillContainer"
    REMOVE_CONTAINER = "RemoveContainer"
    CREATE_POD_SANDBOX = "CreatePodSandbox"
    KILL_POD_SANDBOX = "KillPodSandbox"
    RESIZE_POD_IN_PLACE = "ResizePodInPlace"


class Reason(enum.StrEnum):
    """Why something could not be done, as it appears in pod statuses."""

    CRASH_LOOP_BACK_OFF = "CrashLoopBackOff"
    IMAGE_PULL_BACK_OFF = "ImagePullBackOff"
    ERR_IMAGE_PULL = "ErrImagePull"
    ERR_IMAGE_NEVER_PULL = "ErrImageNeverPull"
    IMAGE_INSPECT_ERROR = "ImageInspectError"
    INVALID_IMAGE_NAME = "InvalidImageName"
    REGISTRY_UNAVAILABLE = "RegistryUnavailable"
    SIGNATURE_VALIDATION_FAILED = "SignatureValidationFailed"
    CREATE_CONTAINER_CONFIG_ERROR = "CreateContainerConfigError"
    CREATE_CONTAINER_ERROR = "CreateContainerError"
    RUN_CONTAINER_ERROR = "RunContainerError"
    POST_START_HOOK_ERROR = "PostStartHookError"
    KILL_CONTAINER_ERROR = "KillContainerError"
    REMOVE_CONTAINER_ERROR = "RemoveContainerError"
    CREATE_POD_SANDBOX_ERROR = "CreatePodSandboxError"
    KILL_POD_SANDBOX_ERROR = "KillPodSandboxError"
    RESIZE_POD_IN_PLACE_ERROR = "ResizePodInPlaceError"


class StartError(Exception):
    """A container could not be started, or its image is not there; `reason` and `message` are shown in the
    pod's status.
    """

    def __init__(self, reason: Reason, message: str, retry_at_ns: int | None = None) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message
        self.retry_at_ns = retry_at_ns


class SyncResult(msgspec.Struct, frozen=True):
    """One thing that was attempted.

    `target` is the container's name, or the pod's for sandbox actions. `reason` is None when it went well.
    `retry_at_ns` is the moment a back-off ends, where one is the cause.
    """

    action: SyncAction
    target: str
    reason: Reason | None = None
    message: str = ""
    retry_at_ns: int | None = None


class PodSyncResult:
    """Everything one `sync_pod` or `kill_pod` attempted, in order.

    `error` is a failure that belongs to none of the entries ("" if there is none).
    """

    def __init__(self) -> None:
        self.results: list[SyncResult] = []
        self.error = ""

    def add(
        self,
        action: SyncAction,
        target: str,
        reason: Reason | None = None,
        message: str = "",
        retry_at_ns: int | None = None,
    ) -> None:
        """Appends one entry."""
        message = shortened(message, LONGEST_MESSAGE)
        self.results.append(SyncResult(action, target, reason, message, retry_at_ns))

    def fail(self, error: str) -> None:
        """Takes a failure that belongs to none of the entries."""
        self.error = shortened(error, LONGEST_MESSAGE)

    def extend(self, other: PodSyncResult) -> None:
        """Appends another result's entries and takes over its error."""
        self.results.extend(other.results)
        self.error = other.error or self.error

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return not self.error and all(result.reason is None for result in self.results)

    @property
    def failures(self) -> list[SyncResult]:
        """The entries that failed."""
        return [result for result in self.results if result.reason is not None]

    def start_results(self) -> list[SyncResult]:
        """The entries about starting containers; a status shows the reason of those that failed as
        waiting.
        """
        return [result for result in self.results if result.action is SyncAction.START_CONTAINER]

    def retry_at_ns(self) -> int | None:
        """The earliest moment at which a back-off ends, None when no entry waits for one."""
        moments = [result.retry_at_ns for result in self.results if result.retry_at_ns is not None]
        return min(moments, default=None)

    def only_back_offs(self) -> bool:
        """Whether every failure is a back-off (kubelet: such a sync counts as done, it only has to come
        again).
        """
        return not self.error and all(result.retry_at_ns is not None for result in self.failures)

    def __str__(self) -> str:
        """The kubelet's text for the errors; several are joined in brackets, as its aggregates print."""
        said = [f"failed to SyncPod: {self.error}"] if self.error else []
        for result in self.failures:
            message = go_quote(result.message)
            said.append(f'failed to "{result.action}" for "{result.target}" with {result.reason}: {message}')
        texts = list(dict.fromkeys(said))
        return texts[0] if len(texts) == 1 else "[" + ", ".join(texts) + "]" if texts else ""
