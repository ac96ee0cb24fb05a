"""Small endpoints: configz, running pods, log verbosity, what a Go profiler would ask for, health metrics."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence

import msgspec
import trio
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from trio_kubelet.api import v1
from trio_kubelet.common.go_words import parse_integer
from trio_kubelet.config.decode import to_configz
from trio_kubelet.config.types import KubeletConfiguration
from trio_kubelet.kube.certificates.selfsigned_process import self_signed_files
from trio_kubelet.observed.types import PodStatus
from trio_kubelet.server.http.exposition import CONTENT_TYPE, render
from trio_kubelet.server.http.messages import NOSNIFF, Handler, Hijack, Request, Response, json_body, text
from trio_kubelet.server.http.metrics import HealthCounts

SLICE = 16  # pods that are encoded before others have their turn

_encoder = msgspec.json.Encoder()


def _encode(pod: v1.Pod) -> bytes:
    """An item of a list: kind and version stand at the list."""
    return _encoder.encode(replace(pod, api_version="", kind=""))


def pod_list(pods: Callable[[], Sequence[v1.Pod]]) -> Handler:
    """A v1 PodList, encoded in slices."""

    async def body() -> AsyncGenerator[bytes, None]:
        shown = pods()
        head = b'{"kind":"PodList","apiVersion":"v1","metadata":{},"items":'
        if not shown:
            yield head + b"null}\n"
            return
        for start in range(0, len(shown), SLICE):
            yield (head + b"[" if not start else b",") + b",".join(map(_encode, shown[start : start + SLICE]))
            await trio.lowlevel.checkpoint()
        yield b"]}\n"

    async def page(request: Request) -> Response | Hijack:
        return json_body(body())

    return page


def running_pods(statuses: Callable[[], Iterable[PodStatus]]) -> Callable[[], list[v1.Pod]]:
    """The pods of which something runs, as the runtime shows them: names and images only."""

    def pods() -> list[v1.Pod]:
        return [
            v1.Pod(
                metadata=v1.ObjectMeta(name=status.name, namespace=status.namespace, uid=status.uid),
                spec=v1.PodSpec(
                    containers=[v1.Container(name=c.name, image=c.image_id) for c in status.running()] or None
                ),
            )
            for status in statuses()
            if status.running() or any(sandbox.ready for sandbox in status.sandboxes)
        ]

    return pods


def configz(config: KubeletConfiguration, cert_dir: str, cgroup_driver: str) -> Handler:
    """The configuration in force: with the cgroup driver that the runtime has (kubelet:
    `getCgroupDriverFromCRI`), and the self-signed pair of `cert_dir` where no other is asked for
    (`InitializeTLS`).
    """
    config = replace(config, cgroup_driver=cgroup_driver)
    if not (config.server_tls_bootstrap or config.tls_cert_file or config.tls_private_key_file):
        files = self_signed_files(cert_dir)
        config = replace(config, tls_cert_file=files.certificate, tls_private_key_file=files.key)
    body = json.dumps({"kubeletconfig": to_configz(config)}, separators=(",", ":")).encode()

    async def page(request: Request) -> Response | Hijack:
        return Response(headers=(("Content-Type", "application/json"), *NOSNIFF), body=body)

    return page


def debug_flags(set_verbosity: Callable[[int], None]) -> Handler:
    """`PUT /debug/flags/v`: the log verbosity, a number as text."""

    def plain(status: int, said: str) -> Response:
        headers = (("Content-Type", "text/plain"), *NOSNIFF)
        return Response(status=status, headers=headers, body=said.encode() + b"\n")

    async def page(request: Request) -> Response | Hijack:
        if request.method != "PUT":
            return plain(406, "unsupported http method")
        value = request.body.decode("utf-8", "surrogateescape")
        try:
            parse_integer(value, "ParseUint", 32)
        except ValueError as exc:
            return plain(400, str(exc))
        try:
            set_verbosity(parse_integer(value, "ParseInt", 32))  # klog's levels have a sign
        except ValueError as exc:
            return plain(400, f"failed set klog.logging.verbosity {value}: {exc}")
        return plain(200, f"successfully set klog.logging.verbosity to {value}")

    return page


async def profiling(request: Request) -> Response | Hijack:
    """`/debug/pprof/…`: only the command line; Go's profiles have no counterpart in Python."""
    if request.params.get("subpath") == "cmdline":
        return text(200, "\0".join(sys.orig_argv), NOSNIFF)
    return text(404, "Unknown profile\n", NOSNIFF)


class HealthMetrics:
    """`/metrics/slis`: how often each health check succeeded and how it is now."""

    def __init__(self, registry: CollectorRegistry, counts: HealthCounts) -> None:
        """`registry` has what else the page shows."""
        self._registry = registry
        self._counts = counts

    async def page(self, request: Request) -> Response | Hijack:
        """The metrics as text."""
        lines = []
        if self._counts.last:
            lines.append("# HELP kubernetes_healthcheck [STABLE] The result of a single healthcheck.")
            lines.append("# TYPE kubernetes_healthcheck gauge")
        for name, well in sorted(self._counts.last.items()):
            lines.append(f'kubernetes_healthcheck{{name="{name}",type="healthz"}} {int(well)}')
        if self._counts.totals:
            lines.append("# HELP kubernetes_healthchecks_total [STABLE] The results of all healthchecks.")
            lines.append("# TYPE kubernetes_healthchecks_total counter")
        for (name, well), count in sorted(self._counts.totals.items()):
            status = "success" if well else "error"
            lines.append(
                f'kubernetes_healthchecks_total{{name="{name}",status="{status}",type="healthz"}} {count}'
            )
        body = "".join(line + "\n" for line in lines).encode() + b"".join(render(self._registry))
        return Response(headers=(("Content-Type", CONTENT_TYPE),), body=body)
