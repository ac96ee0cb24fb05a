"""`/exec`, `/attach`, `/portForward` and `/run`: into a container, on the streams of its runtime.

Who is meant is asked of the runtime at that moment, as the kubelet does: the newest running container of that
name in the pod. The runtime then gives a URL, and the connection is handed over to it (`upgrade`); two
newer WebSocket protocols, which runtimes do not speak, are translated (`translation`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from prometheus_client import CollectorRegistry

from trio_kubelet.api import v1
from trio_kubelet.api.containers import all_containers
from trio_kubelet.common.metrics import MetricMaker
from trio_kubelet.cri.errors import CRIError, NotFound, ResourceExhausted
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.cri.services import RuntimeService
from trio_kubelet.observed.types import POD_UID
from trio_kubelet.pods.refs import pod_full_name
from trio_kubelet.server.doors import PodsByName
from trio_kubelet.server.http.messages import Hijack, Request, Response, text
from trio_kubelet.server.streams.options import (
    BadStreamOptions,
    StreamOptions,
    read_ports,
    read_stream_options,
)
from trio_kubelet.server.streams.upgrade import (
    V5,
    is_websocket,
    offered_protocols,
    pass_to_runtime,
    tunnel_protocols,
)

_URL_LIFETIME_SECONDS = "60"  # after which a runtime forgets URLs that nobody came for
_QUOTED = 64 * 1024  # bytes of what a command that failed said


class StreamingMetrics:
    """What is counted of streams."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.websockets = MetricMaker(registry).counter(
            "kubelet_websocket_streaming_requests",
            "Total number of WebSocket streaming requests (exec/attach/portforward) received by the kubelet.",
            ["subresource"],
        )


class _Refused(Exception):
    def __init__(self, answer: Response) -> None:
        super().__init__(answer.status)
        self.answer = answer


_REFUSALS = (BadStreamOptions, _Refused, CRIError)
_AskForURL = Callable[[Request, StreamOptions], Awaitable[str]]


class Streaming:
    """The handlers; see the module. `idle_seconds`: configuration streamingConnectionIdleTimeout."""

    def __init__(
        self,
        *,
        pods: PodsByName,
        runtime: RuntimeService,
        idle_seconds: float = 4 * 3600.0,
        translate: bool = True,  # feature gate ExtendWebSocketsToKubelet
        metrics: StreamingMetrics | None = None,
    ) -> None:
        self._pods = pods
        self._runtime = runtime
        self._idle_seconds = idle_seconds
        self._translate = translate
        self._metrics = metrics

    async def exec(self, request: Request) -> Response | Hijack:
        """A command with streams."""
        return await self._command(request, "exec", self._exec_url)

    async def attach(self, request: Request) -> Response | Hijack:
        """The streams of a container's first process. Whether it has a terminal, its pod says."""
        return await self._command(request, "attach", self._attach_url)

    async def port_forward(self, request: Request) -> Response | Hijack:
        """Connections to ports of a pod."""
        tunnelled = self._translate and bool(tunnel_protocols(request))
        try:
            ports = read_ports(request.query) if is_websocket(request) and not tunnelled else []
            pod = self._pod(request)
            if request.params.get("uid", "") not in ("", pod.metadata.uid):
                raise _Refused(text(404, "pod not found"))
            url = await self._runtime.port_forward(await self._sandbox(pod), ports)
        except _REFUSALS as exc:
            return _refusal(exc)
        if tunnelled:
            self._count("portforward")
            from trio_kubelet.server.streams.translation import tunnel_spdy  # and with it WebSockets

            return await tunnel_spdy(request, url, self._idle_seconds)
        return await pass_to_runtime(request, url, self._idle_seconds)

    async def run(self, request: Request) -> Response | Hijack:
        """A command (`cmd`, split at blanks) whose output is the answer; an exit code is a 500."""
        command = request.first("cmd").split(" ")
        try:
            container = await self._container(request, self._pod(request))
            result = await self._runtime.exec_sync(container, command)
        except _Refused as exc:
            return exc.answer
        except CRIError as exc:
            return text(500, str(exc))
        if result.exit_code:
            said = result.stderr[:_QUOTED].decode("utf-8", "replace")
            return text(500, f"command '{' '.join(command)}' exited with {result.exit_code}: {said}")
        output = result.stdout + result.stderr
        headers = (("Content-Type", "application/json"),) if output else ()
        return Response(headers=headers, body=output)

    async def _command(self, request: Request, subresource: str, ask: _AskForURL) -> Response | Hijack:
        """Hands the connection to the URL of the runtime that `ask` gets."""
        try:
            options = read_stream_options(request.query)
            url = await ask(request, options)
        except _REFUSALS as exc:
            return _refusal(exc)
        if self._translate and V5 in offered_protocols(request):
            self._count(subresource)
            from trio_kubelet.server.streams.translation import translate_command

            return await translate_command(request, url, options, self._idle_seconds)
        return await pass_to_runtime(request, url, self._idle_seconds)

    async def _exec_url(self, request: Request, options: StreamOptions) -> str:
        container = await self._container(request, self._pod(request))
        return await self._runtime.exec(
            cri.ExecRequest(container_id=container, cmd=request.query.get("command", []), **options._asdict())
        )

    async def _attach_url(self, request: Request, options: StreamOptions) -> str:
        pod = self._pod(request)
        name, full_name = request.params["containerName"], pod_full_name(pod)
        container = await self._container(request, pod, f"container {name} not found in pod {full_name}")
        if request.params.get("uid", "") not in ("", pod.metadata.uid):
            raise _Refused(text(500, f"pod {full_name} not found"))
        streams = options._replace(tty=_has_terminal(pod, name))
        return await self._runtime.attach(cri.AttachRequest(container_id=container, **streams._asdict()))

    def _count(self, subresource: str) -> None:
        """Counts a request of those that need translation, as the kubelet does."""
        if self._metrics is not None:
            self._metrics.websockets.labels(subresource).inc()

    def _pod(self, request: Request) -> v1.Pod:
        pod = self._pods.get_by_name(request.params["podNamespace"], request.params["podID"])
        if pod is None:
            raise _Refused(text(404, "pod does not exist"))
        return pod

    async def _container(self, request: Request, pod: v1.Pod, missing: str = "") -> str:
        """The id of the running container that is meant. Raises CRIError."""
        name = request.params["containerName"]
        selector = {POD_UID: pod.metadata.uid}
        running = cri.ContainerStateValue(state=cri.CONTAINER_RUNNING)
        listed = await self._runtime.list_containers(
            cri.ContainerFilter(label_selector=selector, state=running)
        )
        found = [container for container in listed if container.metadata.name == name]
        if not found:
            raise _Refused(text(500, missing or f'container not found ("{name}")'))
        return max(found, key=lambda container: container.created_at).id

    async def _sandbox(self, pod: v1.Pod) -> str:
        """The id of the pod's newest sandbox that runs. Raises CRIError."""
        selector = {POD_UID: pod.metadata.uid}
        ready = cri.PodSandboxStateValue(state=cri.SANDBOX_READY)
        found = await self._runtime.list_pod_sandboxes(
            cri.PodSandboxFilter(label_selector=selector, state=ready)
        )
        if not found:
            raise _Refused(text(500, f'pod not found ("{pod_full_name(pod)}")'))
        return max(found, key=lambda sandbox: sandbox.created_at).id


def _refusal(error: BadStreamOptions | _Refused | CRIError) -> Response:
    """What a client is told; of a runtime's error as `streaming.WriteError` does."""
    if isinstance(error, _Refused):
        return error.answer
    if isinstance(error, BadStreamOptions):
        return text(400, str(error))
    if isinstance(error, NotFound):
        return text(404, str(error))
    if isinstance(error, ResourceExhausted):
        return text(429, str(error), (("Retry-After", _URL_LIFETIME_SECONDS),))
    return text(500, str(error))


def _has_terminal(pod: v1.Pod, name: str) -> bool:
    return any(each.name == name and each.tty for each in all_containers(pod.spec))
