"""`trio-kubelet logs POD`: what containers wrote, from the agent of this node."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final
from urllib.parse import quote, urlencode

from trio_kubelet.commands import queries
from trio_kubelet.commands.client import AgentRefused, follow
from trio_kubelet.commands.output import complain
from trio_kubelet.commands.queries import NotThere
from trio_kubelet.commands.render import Json
from trio_kubelet.common.duration import parse_duration

DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
SELECTED_TAIL: Final = 10
"""How many last lines a selector gives of each log, where it is not said, as with kubectl."""
MAX_LINE: Final = 1 << 20
"""Bytes of a line that is waited for; a longer one is passed on in parts."""


class TooManyLogs(Exception):
    """More logs than may be followed at once."""


@dataclass(frozen=True)
class Log:
    """The log of a container: the path that gives it, and what stands before its lines."""

    target: str
    prefix: bytes


def logs(options: argparse.Namespace, socket_path: str) -> None:
    """Writes the logs to standard output as they are. Raises AgentUnreachable, NotThere, SeveralPods,
    TooManyLogs.
    """
    chosen = _chosen(options, socket_path)
    if not options.follow or len(chosen) < 2:
        for log in chosen:
            _copy(log, options, socket_path, _write)
        return
    if len(chosen) > options.max_log_requests:
        most = options.max_log_requests
        raise TooManyLogs(f"these are {len(chosen)} logs, {most} may be followed: see --max-log-requests")
    from trio_kubelet.commands.side_by_side import run_side_by_side

    run_side_by_side([partial(_copy, log, options, socket_path) for log in chosen], _write)


def _chosen(options: argparse.Namespace, socket_path: str) -> list[Log]:
    if options.selector:
        pods, _ = queries.chosen_pods(options, socket_path)
        if not pods:
            complain(queries.nothing(options, "pods"))
    else:
        pods = [queries.the_pod(options.pod, options.namespace, socket_path)]
    return [
        Log(log_target(pod, container, options), _prefix(pod, container) if options.prefix else b"")
        for pod in pods
        for container in (
            containers_of(pod) if options.all_containers else [choose_container(pod, options.container)]
        )
    ]


def _prefix(pod: Json, container: str) -> bytes:
    return f"[pod/{pod['metadata']['name']}/{container}] ".encode()


def _copy(log: Log, options: argparse.Namespace, socket_path: str, write: Callable[[bytes], object]) -> None:
    pieces = follow(socket_path, log.target, patient=options.follow)
    whole_lines = log.prefix or options.all_containers or options.selector
    try:
        for piece in lines(pieces, log.prefix) if whole_lines else pieces:
            write(piece)
    except AgentRefused as exc:
        if not options.ignore_errors:
            raise
        complain(f"error: {exc}")


def _write(piece: bytes) -> None:
    sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()


def lines(pieces: Iterator[bytes], prefix: bytes) -> Iterator[bytes]:
    """The pieces of a log as whole lines behind the prefix; also the last is ended, for others may follow."""
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        if whole:
            yield b"".join(prefix + line + b"\n" for line in whole)
        if len(rest) > MAX_LINE:
            yield prefix + rest
            rest = b""
    if rest:
        yield prefix + rest + b"\n"


def log_target(pod: Json, container: str, options: argparse.Namespace) -> str:
    """The path that gives the log, with its query."""
    query: dict[str, object] = {}
    for name, key in (("follow", "follow"), ("previous", "previous"), ("timestamps", "timestamps")):
        if getattr(options, name):
            query[key] = "true"
    tail = options.tail if options.tail is not None else SELECTED_TAIL if options.selector else -1
    if tail >= 0:
        query["tailLines"] = tail
    if options.limit_bytes:
        query["limitBytes"] = options.limit_bytes
    if options.since:
        query["sinceSeconds"] = options.since
    if options.since_time:
        query["sinceTime"] = options.since_time
    path = path_of(pod, container, "containerLogs")
    return f"{path}?{urlencode(query)}" if query else path


def path_of(pod: Json, container: str, root: str) -> str:
    """The path of one container's endpoint."""
    metadata = pod["metadata"]
    parts = (metadata.get("namespace", ""), metadata["name"], container)
    return f"/{root}/" + "/".join(quote(part, safe="") for part in parts)


def containers_of(pod: Json) -> Sequence[str]:
    """The names of all containers, in the order of their starts."""
    kinds = ("initContainers", "containers", "ephemeralContainers")
    return [container["name"] for kind in kinds for container in pod["spec"].get(kind) or ()]


def choose_container(pod: Json, wanted: str, *, quiet: bool = False) -> str:
    """The container that is meant: that named, the pod's default one, else the first, which is then said
    unless `quiet`. Raises NotThere.
    """
    tell: Callable[[str], None] = (lambda text: None) if quiet else complain
    spec = pod["spec"]
    regular = [container["name"] for container in spec.get("containers") or ()]
    inits = [container["name"] for container in spec.get("initContainers") or ()]
    ephemerals = [container["name"] for container in spec.get("ephemeralContainers") or ()]
    every = [*regular, *ephemerals, *inits]
    pod_name = pod["metadata"]["name"]
    if wanted:
        if wanted not in every:
            raise NotThere(f"pod {pod_name!r} has no container {wanted!r}, it has: {', '.join(every)}")
        return wanted
    if default := default_container(pod):
        if default in every:
            return default
        tell(f'Default container name "{default}" not found in pod {pod_name}')
    if len(every) > 1:
        marked = [*(f"{name} (ephem)" for name in ephemerals), *(f"{name} (init)" for name in inits)]
        out_of = ", ".join([*regular, *marked])
        tell(f'Defaulted container "{regular[0]}" out of: {out_of}')
    return str(regular[0])


def default_container(pod: Json) -> str:
    """The container that the pod itself says is meant where none is named, or "" if it says none."""
    return str((pod["metadata"].get("annotations") or {}).get(DEFAULT_CONTAINER, ""))


def seconds(text: str) -> int:
    """A duration such as `5s`, `2m` or `3h30m` in whole seconds, halves up, and at least one if it is any.

    Raises ValueError.
    """
    try:
        found = parse_duration(text)
        if found < 0:
            raise ValueError
    except ValueError:
        raise ValueError(f"{text!r} is no duration such as 5s, 2m or 3h") from None
    return max(1, int(found + 0.5)) if found else 0
