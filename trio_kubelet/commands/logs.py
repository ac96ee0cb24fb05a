"""`trio-kubelet logs POD`: what a container wrote, from the agent of this node."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from urllib.parse import quote, urlencode

from trio_kubelet.commands.client import follow
from trio_kubelet.commands.render import Json
from trio_kubelet.commands.show import NotThere, the_pod

DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
_UNITS: Mapping[str, float] = {"h": 3600, "m": 60, "s": 1, "ms": 0.001}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|h|m|s)")


def logs(options: argparse.Namespace, socket_path: str) -> None:
    """Writes the log to standard output as it is. Raises AgentUnreachable, NotThere."""
    pod = the_pod(options, socket_path)
    target = log_target(pod, options)
    for piece in follow(socket_path, target, patient=options.follow):
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()


def log_target(pod: Json, options: argparse.Namespace) -> str:
    """The path that gives the log, with its query."""
    query: dict[str, object] = {}
    for name, key in (("follow", "follow"), ("previous", "previous"), ("timestamps", "timestamps")):
        if getattr(options, name):
            query[key] = "true"
    if options.tail >= 0:
        query["tailLines"] = options.tail
    if options.limit_bytes:
        query["limitBytes"] = options.limit_bytes
    if options.since:
        query["sinceSeconds"] = options.since
    if options.since_time:
        query["sinceTime"] = options.since_time
    container = choose_container(pod, options.container)
    path = path_of(pod, container, "containerLogs")
    return f"{path}?{urlencode(query)}" if query else path


def path_of(pod: Json, container: str, root: str) -> str:
    """The path of one container's endpoint."""
    metadata = pod["metadata"]
    parts = (metadata.get("namespace", ""), metadata["name"], container)
    return f"/{root}/" + "/".join(quote(part, safe="") for part in parts)


def choose_container(pod: Json, wanted: str) -> str:
    """The container that is meant: that named, the pod's default one, else the first, which is then said.

    Raises NotThere.
    """
    spec = pod["spec"]
    regular = [container["name"] for container in spec.get("containers") or ()]
    inits = [container["name"] for container in spec.get("initContainers") or ()]
    ephemerals = [container["name"] for container in spec.get("ephemeralContainers") or ()]
    every = [*regular, *inits, *ephemerals]
    pod_name = pod["metadata"]["name"]
    if wanted:
        if wanted not in every:
            raise NotThere(f"pod {pod_name!r} has no container {wanted!r}, it has: {', '.join(every)}")
        return wanted
    default = (pod["metadata"].get("annotations") or {}).get(DEFAULT_CONTAINER, "")
    if default in regular:
        return str(default)
    if len(every) > 1:
        marked = [*(f"{name} (init)" for name in inits), *(f"{name} (ephem)" for name in ephemerals)]
        out_of = ", ".join([*regular, *marked])
        print(f'Defaulted container "{regular[0]}" out of: {out_of}', file=sys.stderr)
    return str(regular[0])


def seconds(text: str) -> int:
    """A duration such as `5s`, `2m` or `3h30m` in whole seconds, at least one. Raises ValueError."""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text!r} is no duration such as 5s, 2m or 3h")
    return max(1, round(sum(float(number) * _UNITS[unit] for number, unit in parts)))
