"""Whether the container runtime can be worked with: asked every few seconds, told when it changes.

As with the kubelet (`updateRuntimeUp`, `runtimeState`) pods are synced until the runtime has not answered
well for half a minute, or says that it is not ready. A call that fails once is no reason to leave them alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import msgspec
import trio

from trio_kubelet.api.errors import aggregate_errors
from trio_kubelet.common.clock import sleep_with_others
from trio_kubelet.common.log import get_logger
from trio_kubelet.cri.errors import CRIError
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.cri.services import RuntimeService
from trio_kubelet.podinfo.context import RuntimeHandler

log = get_logger(__name__)

PERIOD = 5.0
PERIOD_WHILE_DOWN = 1.0
TIMEOUT = 20.0
PATIENCE = 30.0
"""Seconds without a good answer after which the node is not ready (the kubelet's)."""


_VERSION = re.compile(r"\s*v?([0-9]{1,18}(?:\.[0-9]{1,18})+)(?![0-9])(.*)", re.ASCII)
_IDENTIFIERS = r"[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*"
_PRE_RELEASE_AND_BUILD = re.compile(rf"(?:-({_IDENTIFIERS}))?(?:\+{_IDENTIFIERS})?\s*", re.ASCII)
_ZERO_PREFIXED = re.compile(r"0[0-9]+")


class RuntimeFeatures(msgspec.Struct, frozen=True):
    """What the runtime can do, whatever the handler (CRI `RuntimeFeatures`)."""

    supplemental_groups_policy: bool = False
    user_namespaces_host_network: bool = False


def version_text(said: str) -> str:
    """The runtime's version as the node shows it; `Unknown` if it is none.

    A leading `v` goes, and what follows the numbers is shown only if the whole is a semantic version
    (apimachinery's `ParseSemantic`, then `ParseGeneric`).
    """
    found = _VERSION.fullmatch(said)
    if found is None:
        return "Unknown"
    parts = found[1].split(".")
    extra = _PRE_RELEASE_AND_BUILD.fullmatch(found[2])
    pre_release = (extra[1] or "").split(".") if extra else []
    if extra and len(parts) == 3 and not any(map(_ZERO_PREFIXED.fullmatch, [*parts, *pre_release])):
        return found[1] + found[2].rstrip()
    if _ZERO_PREFIXED.fullmatch(parts[0]):
        return "Unknown"
    return ".".join(str(int(part)) for part in parts)


def condition_error(status: cri.RuntimeStatus, kind: str) -> str | None:
    """Why a condition of the runtime does not hold, in the kubelet's words (`<nil>`: it is not told); None if
    it holds.
    """
    for condition in status.conditions:
        if condition.type == kind:
            if condition.status:
                return None
            return f"{kind}=false reason:{condition.reason} message:{condition.message}"
    return "<nil>"


def handlers_of(answer: cri.StatusResponse) -> dict[str, RuntimeHandler]:
    """The runtime's handlers by name, with what they can do."""
    return {
        handler.name: RuntimeHandler(
            recursive_read_only_mounts=handler.features.recursive_read_only_mounts,
            user_namespaces=handler.features.user_namespaces,
        )
        for handler in answer.runtime_handlers
    }


def features_of(answer: cri.StatusResponse) -> RuntimeFeatures | None:
    """The runtime's features; None if it does not tell."""
    if not answer.HasField("features"):
        return None
    return RuntimeFeatures(
        supplemental_groups_policy=answer.features.supplemental_groups_policy,
        user_namespaces_host_network=answer.features.user_namespaces_host_network,
    )


class RuntimeHealth:
    """Keeps what the runtime last said of itself."""

    def __init__(self, runtime: RuntimeService) -> None:
        self._runtime = runtime
        self._pleg_error: Callable[[], str | None] = lambda: None
        self._down: str | None = "container runtime status check may not have completed yet"
        self._network: str | None = "network state unknown"
        self._not_ready: str | None = None
        self._good_at: float | None = None
        self._told: tuple[str | None, str | None] = (None, None)
        self.name = ""
        self.last_name = ""
        """Its name also while it does not answer: what the ids of its containers begin with in statuses."""
        self.version = ""
        self.shown: str | None = None
        """The runtime as the Node shows it: its name, and its version or, when it does not tell any more,
        `Unknown`; None before it has told."""
        self.handlers: Mapping[str, RuntimeHandler] = {}
        self.features: RuntimeFeatures | None = None

    def watch_pleg(self, error: Callable[[], str | None]) -> None:
        """From now on an unhealthy PLEG counts as a runtime error, too."""
        self._pleg_error = error

    def runtime_error(self) -> str | None:
        """Why pods cannot be synced, None if they can."""
        errors = self._errors()
        return aggregate_errors(errors) if errors else None

    def network_error(self) -> str | None:
        """Why pods with a network of their own cannot start, None if they can."""
        return self._network

    def node_errors(self) -> list[str]:
        """Why the node is not ready as far as runtime, PLEG and network go, in the kubelet's words."""
        return [*self._errors(), *([] if self._network is None else [self._network])]

    def _errors(self) -> list[str]:
        errors = []
        if self._good_at is None:
            errors.append("container runtime status check may not have completed yet")
        elif trio.current_time() - self._good_at >= PATIENCE:
            errors.append("container runtime is down")
        if (unwell := self._pleg_error()) is not None:
            errors.append(f"PLEG is not healthy: {unwell}")
        return errors if self._not_ready is None else [*errors, self._not_ready]

    def handler(self, name: str) -> RuntimeHandler:
        """What a handler can do, "" for the default one; nothing if the runtime does not say."""
        return self.handlers.get(name, RuntimeHandler())

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Asks for ever; started once the runtime was asked for the first time."""
        await self.ask()
        task_status.started()
        while True:
            if self._down is None and self._network is None:
                await sleep_with_others(PERIOD)
            else:
                await trio.sleep(PERIOD_WHILE_DOWN)
            await self.ask()

    async def ask(self) -> None:
        """Asks once."""
        try:
            with trio.fail_after(TIMEOUT):
                if not self.name:
                    version = await self._runtime.version()
                    self.name = self.last_name = version.runtime_name
                    self.version = version_text(version.runtime_version)
                    self.shown = f"{self.name}://{self.version}"
                self._take(await self._runtime.status())
        except CRIError as exc:
            self._down = f"container runtime is down: {exc}"
            if not self.name and self.shown is not None:
                self.shown = f"{self.shown.partition('://')[0]}://Unknown"
            self.name = ""  # it may come back as another one
        except trio.TooSlowError:
            self._down = f"container runtime is down: no status within {TIMEOUT:g} seconds"
        self._tell()

    def _take(self, answer: cri.StatusResponse) -> None:
        """What the runtime says of itself; one that is not ready says nothing of what it can do (kubelet:
        `updateRuntimeUp`).
        """
        if not answer.HasField("status"):
            self._down = "container runtime is down: runtime status is nil"
            return
        not_ready = condition_error(answer.status, "RuntimeReady")
        self._down = None if not_ready is None else f"container runtime not ready: {not_ready}"
        self._not_ready = self._down
        not_ready = condition_error(answer.status, "NetworkReady")
        self._network = None if not_ready is None else f"container runtime network not ready: {not_ready}"
        if self._down is None:
            self._good_at = trio.current_time()
            self.handlers = handlers_of(answer)
            self.features = features_of(answer)

    def _tell(self) -> None:
        """Says once per change what is wrong, and that it is well again.

        That the runtime is down is said by the sync loop, which then does nothing; here it is a detail.
        """
        now = (self._down, self._network if self._down is None else self._told[1])
        for level, was, is_ in zip((2, 0), self._told, now, strict=True):
            if is_ is not None and (was is None or _kind(was) != _kind(is_)):
                log.v(level).error("Container runtime is not ready, pods stay as they are", err=is_)
        if self._told[0] is not None and self._down is None:
            log.info("Container runtime is ready", runtime=self.name, version=self.version)
        self._told = now


def _kind(error: str) -> str:
    """What an error is about: the wording of a refused connection may vary from call to call."""
    return error.partition(":")[0]
