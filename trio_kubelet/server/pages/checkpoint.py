"""`/checkpoint/{namespace}/{pod}/{container}`: the runtime writes a container's state to an archive."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Awaitable, Callable
from functools import partial

from trio_kubelet.api import v1
from trio_kubelet.common.clock import NANOSECONDS, Clock
from trio_kubelet.common.lanes import NODE_FILES
from trio_kubelet.cri.errors import CRIError
from trio_kubelet.pods.refs import pod_full_name
from trio_kubelet.server.doors import ObservedStatuses, PodsByName, has_container
from trio_kubelet.server.http.messages import Hijack, Request, Response, json_body, text
from trio_kubelet.server.logs.options import read_int64


class Checkpoints:
    """The handler. Archives go to `<root_dir>/checkpoints`; it waits `request_timeout` seconds at least."""

    def __init__(
        self,
        *,
        pods: PodsByName,
        observed: ObservedStatuses,
        checkpoint: Callable[[str, str, int], Awaitable[None]],
        clock: Clock,
        root_dir: str,
        request_timeout: float,
    ) -> None:
        self._pods = pods
        self._observed = observed
        self._checkpoint = checkpoint
        self._clock = clock
        self._dir = os.path.join(root_dir, "checkpoints")
        self._request_timeout = int(request_timeout)

    async def post(self, request: Request) -> Response | Hijack:
        """Answers POST with the archive's path."""
        namespace, name = request.params["podNamespace"], request.params["podID"]
        container = request.params["containerName"]
        pod = self._pods.get_by_name(namespace, name)
        if pod is None:
            return text(404, "pod does not exist")
        if not has_container(pod, container):
            return text(404, f"container {container} does not exist")
        try:
            timeout = read_int64(request.query.get("timeout", ["0"])[-1]) or 0
        except ValueError:
            return text(404, "cannot parse value of timeout parameter")
        try:
            path = await self._write(pod, container, timeout)
        except (CRIError, OSError, LookupError, ValueError) as exc:
            reason = exc.args[0] if isinstance(exc, LookupError) else exc
            return text(500, f"checkpointing of {namespace}/{name}/{container} failed ({reason})")
        return json_body(json.dumps({"items": [path]}, separators=(",", ":")).encode())

    async def _write(self, pod: v1.Pod, container: str, timeout: int) -> str:
        observed = self._observed.get(pod.metadata.uid)
        running = [c for c in observed.running() if c.name == container] if observed else []
        if not running:
            raise LookupError(f"container {container} not found")
        if timeout < 0:
            raise ValueError("CheckpointContainer requires the timeout value to be > 0")
        await NODE_FILES.run(partial(os.makedirs, self._dir, mode=0o700, exist_ok=True))
        now = datetime.datetime.fromtimestamp(self._clock.now_ns() // NANOSECONDS).astimezone()
        stamp = now.isoformat(timespec="seconds").replace("+00:00", "Z")
        path = os.path.join(self._dir, f"checkpoint-{pod_full_name(pod)}-{container}-{stamp}.tar")
        newest = max(running, key=lambda c: c.created_at_ns)
        await self._checkpoint(newest.id, path, max(timeout, self._request_timeout))
        return path
