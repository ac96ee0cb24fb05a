"""Lifecycle hooks: exec, HTTP GET, sleep (kubelet: `lifecycle.HandlerRunner`).

A hook has no time limit of its own: preStop is bounded by the grace period, postStart by whoever
cancels the sync of its pod.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import trio

from trio_kubelet.api import v1
from trio_kubelet.common.go_words import DEADLINE_EXCEEDED
from trio_kubelet.common.log import get_logger, go_quote
from trio_kubelet.cri.errors import CRIError
from trio_kubelet.cri.services import RuntimeService
from trio_kubelet.net.dial import join_host_port
from trio_kubelet.net.http import HTTPFailure, HTTPRequest, build_request, fetch
from trio_kubelet.podinfo.doors import PodRecorderDoor
from trio_kubelet.runtime.doors import HookHTTP, HookHTTPError
from trio_kubelet.runtime.metrics import RuntimeMetrics
from trio_kubelet.runtime.naming import pod_name

log = get_logger(__name__)

USER_AGENT = "kube-lifecycle/1.36"
_BEGINNING = 10 * 1024  # bytes of what a hook writes, as much as an event or the log could show

PodIPs = Callable[[v1.Pod], Awaitable[Sequence[str]]]
"""Reads the addresses of a pod from the runtime."""


class HookError(Exception):
    """A hook failed; the text is the message shown in the pod's status."""


class ExitError(Exception):
    """A command in a container ended with another exit code than 0."""

    def __init__(self, cmd: Sequence[str], exit_code: int, output: bytes, stderr: bytes) -> None:
        text = stderr.decode("utf-8", "replace")
        super().__init__(f"command '{' '.join(cmd)}' exited with {exit_code}: {text}")
        self.exit_code = exit_code
        self.output = output


async def run_in_container(
    runtime: RuntimeService, container_id: str, cmd: Sequence[str], timeout: float
) -> bytes:
    """Runs a command and returns stdout and stderr, one after the other, of what is large the beginning of
    each. `timeout` in seconds, 0 for none.

    Raises CRIError, ExitError.
    """
    result = await runtime.exec_sync(container_id, cmd, timeout, _BEGINNING)
    output = result.stdout + result.stderr
    if result.exit_code != 0:
        raise ExitError(cmd, result.exit_code, output, result.stderr)
    return output


class HookRunner:
    """Runs the hooks of containers."""

    def __init__(
        self,
        *,
        runtime: RuntimeService,
        http: HookHTTP,
        recorder: PodRecorderDoor,
        pod_ips: PodIPs,
        metrics: RuntimeMetrics,
    ) -> None:
        self._runtime = runtime
        self._http = http
        self._recorder = recorder
        self._pod_ips = pod_ips
        self._metrics = metrics

    async def run(
        self, container_id: str, pod: v1.Pod, container: v1.Container, handler: v1.LifecycleHandler
    ) -> None:
        """Runs one hook to its end. Raises HookError, whatever is wrong with the hook: it must never keep a
        container from being ended.
        """
        try:
            await self._run(container_id, pod, container, handler)
        except HookError:
            raise
        except Exception as error:
            log.error("Unexpected error in a hook", pod=pod, containerName=container.name, err=error)
            raise HookError(f"unexpected {type(error).__name__}: {error}") from error

    async def _run(
        self, container_id: str, pod: v1.Pod, container: v1.Container, handler: v1.LifecycleHandler
    ) -> None:
        where = f'for Container "{container.name}" in Pod "{pod_name(pod)}" failed - error: '
        if handler.exec is not None:
            command = handler.exec.command or []
            try:
                await run_in_container(self._runtime, container_id, command, 0)
            except (CRIError, ExitError) as error:
                output = error.output if isinstance(error, ExitError) else b""
                text = go_quote(output.decode("utf-8", "replace"))
                hook = f"Exec lifecycle hook ([{' '.join(command)}])"
                raise HookError(f"{hook} {where}{error}, message: {text}") from error
        elif handler.http_get is not None:
            try:
                await self._get(pod, container, handler.http_get)
            except HookHTTPError as error:
                raise HookError(f"HTTP lifecycle hook ({handler.http_get.path}) {where}{error}") from error
        elif handler.sleep is not None:
            await trio.sleep(handler.sleep.seconds)
        else:
            # The API takes hooks of this kind, for old objects have them.
            said = (
                f"&LifecycleHandler{{Exec:nil,HTTPGet:nil,TCPSocket:{_shown(handler.tcp_socket)},Sleep:nil,}}"
            )
            raise HookError(f"Cannot run handler: invalid handler: {said}")

    def cut_short(self, handler: v1.LifecycleHandler) -> None:
        """Counts a hook that was ended from outside."""
        if handler.sleep is not None:
            self._metrics.sleep_hooks_cut_short.inc()

    async def _get(self, pod: v1.Pod, container: v1.Container, get: v1.HTTPGetAction) -> None:
        host = get.host or await self._address(pod)
        try:
            request = build_request(get, container, host, USER_AGENT)
        except ValueError as error:
            raise HookHTTPError(str(error)) from error
        try:
            await self._http.get(request)
        except HookHTTPError as error:
            if not error.plain_http or not await self._get_without_tls(pod, request):
                raise

    async def _get_without_tls(self, pod: v1.Pod, request: HTTPRequest) -> bool:
        """Once more over plain HTTP, without credentials (the kubelet does so since hooks learned HTTPS).
        Whether there was an answer.
        """
        headers = tuple((name, value) for name, value in request.headers if name != "Authorization")
        try:
            await self._http.get(request._replace(scheme="http", headers=headers))
        except HookHTTPError:
            return False
        server = join_host_port(request.host, request.port)
        self._metrics.http_fallbacks.inc()
        self._recorder.record(
            pod,
            "Warning",
            "LifecycleHTTPFallback",
            f"request to HTTPS lifecycle hook {server} got HTTP response, retry with HTTP succeeded",
        )
        return True

    async def _address(self, pod: v1.Pod) -> str:
        try:
            ips = await self._pod_ips(pod)
        except CRIError as error:
            raise HookHTTPError(
                f"unable to get pod status, event handlers may be invalid: {error}"
            ) from error
        if not ips:
            raise HookHTTPError("failed to find networking container: the pod has no address")
        return ips[0]


def _shown(socket: v1.TCPSocketAction | None) -> str:
    """As Go writes it."""
    if socket is None:
        return "nil"
    number, name = (socket.port, "") if isinstance(socket.port, int) else (0, socket.port)
    return f"&TCPSocketAction{{Port:{{{int(bool(name))} {number} {name}}},Host:{socket.host},}}"


HTTP_DEADLINE = 600.0
"""Seconds. The kubelet sets none: preStop is bounded by the grace period, a postStart hook may hang
for ever.
"""


class HookClient:
    """Sends hooks' requests, as HTTP probes are sent; any answer will do."""

    async def get(self, request: HTTPRequest) -> None:
        """Sends the request and waits for an answer, whatever it says. Raises HookHTTPError."""
        try:
            await fetch(request, HTTP_DEADLINE)
        except trio.TooSlowError:
            raise HookHTTPError(f"{request.about}: {DEADLINE_EXCEEDED}") from None
        except HTTPFailure as failure:
            raise HookHTTPError(str(failure), plain_http=failure.plain_http) from failure
