"""The live table of a standalone node: pods and their containers, out of the answer of /pods.

Pure text making. Input is JSON as decoded, read defensively: a table must never be the thing that fails.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Json = Mapping[str, Any]

_HEADER = ("POD / CONTAINER", "STATE", "RESTARTS", "IP", "AGE", "DETAIL")
_GAP = "  "
_SECOND = 1_000_000_000
_GREEN, _YELLOW, _RED, _DIM, _PLAIN = "\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[2m", "\x1b[0m"
_BAD = (
    "CrashLoopBackOff",
    "Error",
    "Failed",
    "ErrImage",
    "ImagePullBackOff",
    "Invalid",
    "OOMKilled",
    "CreateC",
)


@dataclass(frozen=True)
class Row:
    """One line: a pod, or with `indent` one of its containers."""

    name: str
    state: str
    restarts: str
    ip: str
    age: str
    detail: str
    indent: bool

    @property
    def cells(self) -> tuple[str, ...]:
        name = f"  {self.name}" if self.indent else self.name
        return (name, self.state, self.restarts, self.ip, self.age, self.detail)


def human_duration(seconds: float) -> str:
    """A duration the way kubectl prints ages: two units while that says something, else one.

    Less than two seconds in the future is now, for clocks differ (`HumanDuration` of apimachinery).
    """
    total = int(seconds)
    if total < -1:
        return "<invalid>"
    total = max(0, total)
    if total < 120:
        return f"{total}s"
    minutes = total // 60
    if minutes < 10:
        return f"{minutes}m{total % 60}s" if total % 60 else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    hours = minutes // 60
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    days = hours // 24
    if days < 8 and hours % 24:
        return f"{days}d{hours % 24}h"
    years, days_beyond = divmod(days, 365)
    if years < 2:
        return f"{days}d"
    return f"{years}y{days_beyond}d" if years < 8 and days_beyond else f"{years}y"


def parse_time_ns(text: object) -> int | None:
    """Nanoseconds since the epoch of an RFC 3339 time, or None when it is none."""
    if not isinstance(text, str):
        return None
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        return None
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return (moment - epoch) // datetime.timedelta(microseconds=1) * 1000


def container_state(status: Json) -> tuple[str, str, str]:
    """State, detail and the time it began, of one container status."""
    state = _map(status.get("state"))
    running, waiting, terminated = (_map(state.get(k)) for k in ("running", "waiting", "terminated"))
    if "running" in state:
        ready = "" if status.get("ready") else "not ready"
        return "Running", ready, str(running.get("startedAt", ""))
    if "terminated" in state:
        code = terminated.get("exitCode", 0)
        reason = str(terminated.get("reason") or ("Completed" if code == 0 else "Error"))
        detail = f"exit code {code}" if code else ""
        message = str(terminated.get("message") or "")
        return reason, ": ".join(filter(None, (detail, message))), str(terminated.get("finishedAt", ""))
    return str(waiting.get("reason") or "Waiting"), str(waiting.get("message") or ""), ""


@dataclass(frozen=True)
class Summary:
    """A pod in a line of `kubectl get pods`; `last_restart_ns`: the last end that led to a restart."""

    state: str
    ready: int
    total: int
    restarts: int
    last_restart_ns: int | None


def summary(pod: Json) -> Summary:
    """A pod by the rules of `kubectl get pods`.

    Sidecars count among the containers. While the pod initialises, restarts are those of its init containers.
    Of those behind the one that holds it up, neither counts (`printPod` of the API server).
    """
    metadata, spec, status = (_map(pod.get(key)) for key in ("metadata", "spec", "status"))
    inits, main = _maps(spec.get("initContainers")), _maps(status.get("containerStatuses"))
    sidecars = {each.get("name") for each in inits if each.get("restartPolicy") == "Always"}
    state = str(status.get("reason") or status.get("phase") or "Pending")
    held, init = _initialising(_maps(status.get("initContainerStatuses")), sidecars, len(inits))
    conditions = {each.get("type"): each.get("status") for each in _maps(status.get("conditions"))}
    passed = [each for each in init if each.get("name") in sidecars and each.get("started")]
    counted, ready = init, sum(bool(each.get("ready")) for each in passed)
    if held:
        state = held
    if not held or conditions.get("Initialized") == "True":
        counted = [*(each for each in init if each.get("name") in sidecars), *main]
        state = _of_containers(main, state, ready=conditions.get("Ready") == "True")
        ready += sum(_serves(each) for each in main)
    if metadata.get("deletionTimestamp") and status.get("phase") not in ("Succeeded", "Failed"):
        state = "Terminating"
    ends = [
        parse_time_ns(_map(_map(each.get("lastState")).get("terminated")).get("finishedAt"))
        for each in counted
    ]
    return Summary(
        state=state,
        ready=ready,
        total=len(_maps(spec.get("containers"))) + len(sidecars),
        restarts=sum(_count(each.get("restartCount")) for each in counted),
        last_restart_ns=max((end for end in ends if end is not None), default=None),
    )


def pod_state(pod: Json) -> str:
    """One word for a pod: the most telling reason wins over the phase."""
    return summary(pod).state


def _initialising(init: list[Json], sidecars: Collection[object], total: int) -> tuple[str, list[Json]]:
    """What holds up the start of a pod, "" if nothing does, and its init containers as far as that one."""
    for done, each in enumerate(init):
        state = _map(each.get("state"))
        ended = _map(state.get("terminated"))
        if "terminated" in state and not ended.get("exitCode"):
            continue
        if each.get("name") in sidecars and each.get("started"):
            continue
        held = str(_map(state.get("waiting")).get("reason") or "PodInitializing")
        if "terminated" in state:
            held = str(ended.get("reason") or _exit(ended))
        elif held == "PodInitializing":
            held = f"{done}/{total}"
        return f"Init:{held}", init[: done + 1]
    return "", init


def _of_containers(main: Sequence[Json], state: str, *, ready: bool) -> str:
    """The word of the first container that has one; "Completed" is none while others run or have failed."""
    failure = ""
    for each in reversed(main):
        its = _map(each.get("state"))
        waiting, ended = _map(its.get("waiting")), _map(its.get("terminated"))
        if waiting.get("reason"):
            state = str(waiting["reason"])
        elif "terminated" in its:
            state = str(ended.get("reason") or _exit(ended))
            failure = state if ended.get("exitCode") else failure
    if state != "Completed":
        return state
    serves = any(map(_serves, main))
    if serves and ready:
        return "Running"
    return failure or ("NotReady" if serves else state)


def _serves(status: Json) -> bool:
    return bool(status.get("ready")) and "running" in _map(status.get("state"))


def _exit(ended: Json) -> str:
    return f"Signal:{ended['signal']}" if ended.get("signal") else f"ExitCode:{ended.get('exitCode', 0)}"


def rows(pods: Iterable[Json], now_ns: int) -> list[Row]:
    """All lines, pods by name, each followed by its containers in the order they start."""
    found = []
    for pod in sorted(pods, key=_pod_key):
        status = _map(pod.get("status"))
        statuses = _maps(status.get("initContainerStatuses")) + _maps(status.get("containerStatuses"))
        began = status.get("startTime") or _map(pod.get("metadata")).get("creationTimestamp")
        restarts = sum(_count(each.get("restartCount")) for each in statuses)
        namespace, name = _pod_key(pod)
        found.append(
            Row(
                name=_plain(name if namespace in ("", "default") else f"{namespace}/{name}"),
                state=_plain(pod_state(pod)),
                restarts=str(restarts),
                ip=_plain(str(status.get("podIP") or "")),
                age=_age(began, now_ns),
                detail=_plain(str(status.get("message") or "")),
                indent=False,
            )
        )
        for each in statuses:
            state, detail, since = container_state(each)
            found.append(
                Row(
                    name=_plain(str(each.get("name", "?"))),
                    state=_plain(state),
                    restarts=str(_count(each.get("restartCount"))),
                    ip="",
                    age=_age(since, now_ns),
                    detail=_plain(detail),
                    indent=True,
                )
            )
    return found


def render(pods: Iterable[Json], now_ns: int, width: int, colour: bool = False) -> str:
    """The table in at most `width` columns; lines are cut, never wrapped. Ages are as of `now_ns`."""
    lines = rows(pods, now_ns)
    cells = [_HEADER, *(row.cells for row in lines)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_HEADER))]
    out = []
    for index, line in enumerate(cells):
        text = _GAP.join(cell.ljust(size) for cell, size in zip(line, widths, strict=True)).rstrip()
        text = _cut(text, width)
        if colour and index:
            start = widths[0] + len(_GAP)
            text = _paint(text, start, len(line[1]), lines[index - 1])
        elif colour:
            text = f"{_DIM}{text}{_PLAIN}"
        out.append(text)
    if not lines:
        out.append(_cut("(no pods: put a manifest into the directory)", width))
    return "\n".join(out)


def changes(before: Sequence[Row], after: Sequence[Row]) -> list[str]:
    """What became different between two tables, ages aside, one line each: for output that is no terminal."""
    old, new = _by_path(before), _by_path(after)
    lines = [f"{path}: gone" for path in old if path not in new]
    for path, row in new.items():
        previous = old.get(path)
        if previous is None or _lasting(previous) != _lasting(row):
            parts = [row.state, f"restarts {row.restarts}" if row.restarts != "0" else "", row.ip, row.detail]
            lines.append(f"{path}: {', '.join(filter(None, parts))}")
    return lines


def fit(text: str, height: int) -> str:
    """At most `height` lines; the last one then tells how many are missing."""
    lines = text.split("\n")
    if len(lines) <= height:
        return text
    kept = max(0, height - 1)
    return "\n".join([*lines[:kept], f"… {len(lines) - kept} more lines"])


def _lasting(row: Row) -> tuple[str, ...]:
    return (row.state, row.restarts, row.ip, row.detail)


def _by_path(lines: Iterable[Row]) -> dict[str, Row]:
    found, pod = {}, ""
    for row in lines:
        pod = pod if row.indent else row.name
        found[f"{pod}/{row.name}" if row.indent else pod] = row
    return found


def _paint(text: str, start: int, length: int, row: Row) -> str:
    state = text[start : start + length]
    if any(word in row.state for word in _BAD):
        code = _RED
    elif row.state in ("Running", "Completed"):
        code = _GREEN
    else:
        code = _YELLOW
    return f"{text[:start]}{code}{state}{_PLAIN}{text[start + length :]}" if state else text


def _cut(text: str, width: int) -> str:
    if len(text) <= width:
        return text
    return text[: max(0, width - 1)] + "…" if width > 0 else ""


def _plain(text: str) -> str:
    """Without control characters and line breaks, which a message may carry and a terminal would obey."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def _age(began: object, now_ns: int) -> str:
    moment = parse_time_ns(began)
    return "" if moment is None else human_duration((now_ns - moment) / _SECOND)


def _pod_key(pod: Json) -> tuple[str, str]:
    metadata = _map(pod.get("metadata"))
    return (str(metadata.get("namespace", "")), str(metadata.get("name", "?")))


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0


def _map(value: object) -> Json:
    return value if isinstance(value, Mapping) else {}


def _maps(value: object) -> list[Json]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []
