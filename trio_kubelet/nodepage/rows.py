"""What the page shows of a pod: a row of plain values, made of what the agent knows. Pure.

Everything that a pod can choose is cut to a length. Moments are milliseconds since the epoch, 0 for none,
so that the page can count ages and countdowns by itself and a row stays the same while nothing happens.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.api.containers import is_sidecar
from trio_kubelet.api.timestamps import parse_rfc3339
from trio_kubelet.commands.table import summary
from trio_kubelet.common import utf8
from trio_kubelet.podinfo.amounts import amount, milli, whole

NAME = 253
TEXT = 600
CONTAINERS = 64
WAITS = 12
_TURNS = re.compile("[\u202a-\u202e\u2066-\u2069]")

_MS = 1_000_000
_PROBES = ("startup", "liveness", "readiness")
BACK_OFF = ("CrashLoopBackOff", "ImagePullBackOff")
_STEPS = {
    "cgroup": "its cgroup",
    "directories": "its directories",
    "volumes": "its volumes",
    "credentials": "registry credentials",
}


class Pulling(msgspec.Struct, frozen=True):
    """An image that is being pulled for a container, and since when (ns)."""

    image: str
    since_ns: int


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What the pod's worker is at. `step` names a part of its round that is under way ("" for none) since
    `step_ns`; `next_ns` is when it comes round again; `holder` is the pod that still has its name.
    """

    stage: str = ""
    step: str = ""
    step_ns: int = 0
    next_ns: int = 0
    error: str = ""
    holder: str = ""


class PodFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All that a row is made of. Probe verdicts by kind and container id (without `containerd://`)."""

    pod: v1.Pod
    status: v1.PodStatus
    work: Work = Work()
    pulls: Mapping[str, Pulling] = {}  # by container
    held: Mapping[str, int] = {}  # by container, when its back-off ends (ns)
    verdicts: Mapping[str, Mapping[str, str]] = {}


class Wait(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a pod, or one container of it, waits for; `until` when that is a moment."""

    what: str  # back-off, image, volume, probe, init, name, node
    text: str
    container: str = ""
    since: int = 0
    until: int = 0


class ContainerRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One container. `probes` are kind and verdict; amounts are thousandths of a core and bytes."""

    name: str
    kind: str = ""  # "" for a regular one, else init, sidecar or ephemeral
    state: str = ""
    detail: str = ""
    since: int = 0
    running: bool = False
    ready: bool = False
    restarts: int = 0
    image: str = ""
    last: str = ""  # how it ended before
    last_at: int = 0
    probes: tuple[tuple[str, str], ...] = ()
    cpu_request: int = 0
    cpu_limit: int = 0
    memory_request: int = 0
    memory_limit: int = 0


class PodRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One pod; `state` is kubectl's word. `more_…` are as many as there is no room for."""

    name: str
    namespace: str
    state: str
    health: str  # good, busy, bad, over
    ready: int = 0
    total: int = 0
    restarts: int = 0
    began: int = 0
    ip: str = ""
    qos: str = ""
    message: str = ""
    containers: tuple[ContainerRow, ...] = ()
    more_containers: int = 0
    waits: tuple[Wait, ...] = ()
    more_waits: int = 0


def pod_row(facts: PodFacts) -> PodRow:
    """The row of a pod."""
    pod, status = facts.pod, facts.status
    shown = summary(_as_listed(facts))
    containers = tuple(_containers(facts))
    ended = status.phase in ("Succeeded", "Failed")
    waits = () if ended else tuple(_waits(facts, containers))
    return PodRow(
        name=pod.metadata.name[:NAME],
        namespace=pod.metadata.namespace[:NAME],
        state=cut(shown.state),
        health=_health(shown.state, status.phase, shown.ready, shown.total),
        ready=shown.ready,
        total=shown.total,
        restarts=shown.restarts,
        began=_ms(status.start_time or pod.metadata.creation_timestamp),
        ip=cut(status.pod_ip),
        qos=cut(status.qos_class),
        message=cut(status.message),
        containers=containers[:CONTAINERS],
        more_containers=len(containers[CONTAINERS:]),
        waits=waits[:WAITS],
        more_waits=len(waits[WAITS:]),
    )


def cut(text: str | None) -> str:
    """A text of bounded length that JSON can carry and that turns nothing beside it: what would turn the
    direction of text is replaced, and one with letters that are read from right to left stands for itself.
    """
    text = utf8.valid(text or "")
    if len(text) > TEXT:
        text = text[: TEXT - 1] + "…"
    if text.isascii():
        return text
    text = _TURNS.sub("\N{REPLACEMENT CHARACTER}", text)
    from_right = any(unicodedata.bidirectional(char) in ("R", "AL") for char in text)
    return f"\N{FIRST STRONG ISOLATE}{text}\N{POP DIRECTIONAL ISOLATE}" if from_right else text


def _as_listed(facts: PodFacts) -> dict[str, object]:
    """As much of the pod as kubectl's table looks at, as it stands in a list."""
    pod, spec = facts.pod, facts.pod.spec
    # A pod that no source wants any more has no moment of deletion, but is ended all the same.
    ending = pod.metadata.deletion_timestamp or facts.work.stage == "terminating"
    init = [{"name": c.name, "restartPolicy": c.restart_policy} for c in spec.init_containers or ()]
    return {
        "metadata": {"deletionTimestamp": ending},
        "spec": {"containers": [{}] * len(spec.containers or ()), "initContainers": init},
        "status": msgspec.to_builtins(facts.status),
    }


def _health(state: str, phase: str, ready: int, total: int) -> str:
    if phase == "Succeeded" or state == "Completed":
        return "over"
    if state == "Running":
        return "good" if ready >= total else "busy"
    word = state.removeprefix("Init:")
    if (
        phase == "Failed"
        or word in ("Error", "OOMKilled")
        or word.startswith(("Err", "Invalid", "ExitCode", "Signal"))
    ):
        return "bad"
    return "bad" if word.endswith(("BackOff", "Error")) else "busy"


def _containers(facts: PodFacts) -> Iterator[ContainerRow]:
    spec, status = facts.pod.spec, facts.status
    for container in spec.init_containers or ():
        kind = "sidecar" if is_sidecar(container) else "init"
        yield _container(facts, container, _find(status.init_container_statuses, container.name), kind)
    for container in spec.containers or ():
        yield _container(facts, container, _find(status.container_statuses, container.name), "")
    for ephemeral in spec.ephemeral_containers or ():
        found = _find(status.ephemeral_container_statuses, ephemeral.name)
        yield _container(facts, ephemeral, found, "ephemeral")


def _find(statuses: Sequence[v1.ContainerStatus] | None, name: str) -> v1.ContainerStatus | None:
    return next((status for status in statuses or () if status.name == name), None)


def _container(
    facts: PodFacts,
    container: v1.Container | v1.EphemeralContainer,
    status: v1.ContainerStatus | None,
    kind: str,
) -> ContainerRow:
    resources = container.resources
    requests = (resources.requests if resources else None) or {}
    limits = (resources.limits if resources else None) or {}
    row = ContainerRow(
        name=container.name[:NAME],
        kind=kind,
        state="Waiting",
        image=cut(container.image),
        probes=_probes(facts, container, status),
        cpu_request=_milli(requests.get("cpu")),
        cpu_limit=_milli(limits.get("cpu")),
        memory_request=_bytes(requests.get("memory")),
        memory_limit=_bytes(limits.get("memory")),
    )
    if status is None:
        return row
    word, detail, since = _state(status.state)
    last = status.last_state.terminated
    return msgspec.structs.replace(
        row,
        state=word,
        detail=detail,
        since=since,
        running=status.state.running is not None,
        ready=bool(status.ready),
        restarts=status.restart_count,
        last=_end(last)[0] if last else "",
        last_at=_ms(last.finished_at) if last else 0,
    )


def _state(state: v1.ContainerState) -> tuple[str, str, int]:
    """Word, detail, since when."""
    if state.running is not None:
        return "Running", "", _ms(state.running.started_at)
    if state.terminated is not None:
        word, detail = _end(state.terminated)
        return word, detail, _ms(state.terminated.finished_at)
    if state.waiting is not None:
        return cut(state.waiting.reason) or "Waiting", cut(state.waiting.message), 0
    return "Waiting", "", 0


def _end(ended: v1.ContainerStateTerminated) -> tuple[str, str]:
    word = cut(ended.reason) or ("Completed" if ended.exit_code == 0 else "Error")
    code = f"exit code {ended.exit_code}" if ended.exit_code else ""
    return word, ": ".join(filter(None, (code, cut(ended.message))))


def _probes(
    facts: PodFacts, container: v1.Container | v1.EphemeralContainer, status: v1.ContainerStatus | None
) -> tuple[tuple[str, str], ...]:
    number = status.container_id.rpartition("://")[2] if status is not None else ""
    running = status is not None and status.state.running is not None
    found = []
    for kind in _PROBES:
        if getattr(container, f"{kind}_probe") is not None:
            verdict = facts.verdicts.get(kind, {}).get(number, "") if running else ""
            found.append((kind, str(verdict)))
    return tuple(found)


def _waits(facts: PodFacts, containers: Sequence[ContainerRow]) -> Iterator[Wait]:
    work = facts.work
    if work.holder:
        yield Wait(what="name", text=f"another pod of this name to end ({cut(work.holder)})")
    if work.step in _STEPS:
        what = "volume" if work.step == "volumes" else "node"
        yield Wait(what=what, text=_STEPS[work.step], since=work.step_ns // _MS)
    elif work.error:
        what = "volume" if "volume" in work.error else "node"
        yield Wait(what=what, text=cut(work.error), until=work.next_ns // _MS)
    for row in containers:
        pull = facts.pulls.get(row.name)
        if pull is not None and not row.running:
            yield Wait(
                what="image",
                text=f"the image {cut(pull.image)}",
                container=row.name,
                since=pull.since_ns // _MS,
            )
        elif row.state in BACK_OFF:
            until = facts.held.get(row.name, 0) // _MS
            yield Wait(what="back-off", text=_back_off_text(row), container=row.name, until=until)
        elif row.kind in ("", "sidecar") and row.running:
            yield from _probe_wait(row)
    yield from _init_wait(containers)


def _back_off_text(row: ContainerRow) -> str:
    """Without the name of the pod, beside which it stands."""
    return row.detail.partition(" container=")[0] or row.state


def _probe_wait(row: ContainerRow) -> Iterator[Wait]:
    verdicts = dict(row.probes)
    for kind in ("startup", "readiness"):
        if kind in verdicts and verdicts[kind] != "success":
            if kind == "readiness" and row.ready:
                continue
            yield Wait(what="probe", text=f"its {kind} probe to succeed", container=row.name, since=row.since)
            return


def _init_wait(containers: Sequence[ContainerRow]) -> Iterator[Wait]:
    """Containers that cannot start before an init container has done its work."""
    runs = next((row for row in containers if row.kind == "init" and row.running), None)
    held = [row for row in containers if row.kind == "" and row.state == "PodInitializing"]
    if runs is not None and held:
        yield Wait(what="init", text=f"init container {runs.name} to end", since=runs.since)


def _ms(moment: str | None) -> int:
    if not moment:
        return 0
    try:
        return parse_rfc3339(moment) // _MS
    except ValueError:
        return 0


def _milli(quantity: str | None) -> int:
    return milli(_amount(quantity))


def _bytes(quantity: str | None) -> int:
    return whole(_amount(quantity))


def _amount(quantity: str | None) -> int:
    try:
        return amount(quantity) if quantity else 0
    except ValueError:
        return 0
