"""Events of the node as text, as kubectl prints them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trio_kubelet.api.timestamps import rfc3339
from trio_kubelet.commands.render import aligned, fields
from trio_kubelet.commands.table import human_duration

Json = Mapping[str, Any]

NODE_NAMESPACE = "default"
"""Where events about nodes are shown, as in the API."""
_SOURCE = "kubelet"
_SECOND = 1_000_000_000
_HEADER = ("NAMESPACE", "LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE")


def namespace_of(event: Json) -> str:
    """The namespace an event is shown in."""
    return str(event["namespace"] or NODE_NAMESPACE)


def event_rows(
    events: Sequence[Json], now_ns: int, *, wide: bool = False, counted: bool = False
) -> list[list[str]]:
    """The table of `kubectl get events`, header first; the namespace is always shown.

    `counted`: that of `kubectl events`, which says how often an event came, and its object's kind as it is.
    """
    header = list(_HEADER)
    if wide:
        header[5:5] = ["SUBOBJECT", "SOURCE"]
        header += ["FIRST SEEN", "COUNT", "NAME"]
    return [header, *(_row(event, now_ns, wide, counted) for event in events)]


def _row(event: Json, now_ns: int, wide: bool, counted: bool) -> list[str]:
    cells = [
        namespace_of(event),
        since(event, now_ns) if counted else _age(event["lastNs"], now_ns),
        event["type"],
        event["reason"],
        f"{event['kind'] if counted else event['kind'].lower()}/{event['name']}",
        one_line(event["message"]),
    ]
    if wide:
        cells[5:5] = [event["fieldPath"], _SOURCE]
        cells += [_age(event["firstNs"], now_ns), str(event["count"]), _name(event)]
    return cells


def described_events(events: Sequence[Json], now_ns: int) -> list[str]:
    """The end of `kubectl describe`: the events about one object."""
    if not events:
        return ["Events:  <none>"]
    rows = [["Type", "Reason", "Age", "From", "Message"], ["----", "------", "----", "----", "-------"]]
    for event in events:
        said = one_line(event["message"])
        if event["fieldPath"]:
            said = f"{event['fieldPath']}: {said}"
        rows.append([event["type"], event["reason"], since(event, now_ns), _SOURCE, said])
    return ["Events:", *(f"  {line}" for line in aligned(rows))]


def event_object(event: Json) -> Json:
    """The event as an object of the API."""
    about = {
        "kind": event["kind"],
        "namespace": event["namespace"],
        "name": event["name"],
        "uid": event["uid"],
        "fieldPath": event["fieldPath"],
    }
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": _name(event), "namespace": namespace_of(event)},
        "involvedObject": {key: value for key, value in about.items() if value},
        "type": event["type"],
        "reason": event["reason"],
        "message": event["message"],
        "count": event["count"],
        "firstTimestamp": rfc3339(event["firstNs"]),
        "lastTimestamp": rfc3339(event["lastNs"]),
        "source": {"component": _SOURCE},
        "reportingComponent": _SOURCE,
    }


def describe_event(event: Json) -> list[str]:
    """What `kubectl describe event` would say of it."""
    shown = event_object(event)
    about = [
        (title, shown["involvedObject"].get(key, ""))
        for title, key in (
            ("Field Path", "fieldPath"),
            ("Kind", "kind"),
            ("Name", "name"),
            ("Namespace", "namespace"),
            ("UID", "uid"),
        )
    ]
    return [
        *fields(
            [
                ("Name", shown["metadata"]["name"]),
                ("Namespace", shown["metadata"]["namespace"]),
                ("Count", str(shown["count"])),
                ("First Timestamp", shown["firstTimestamp"]),
                ("Last Timestamp", shown["lastTimestamp"]),
                ("Type", shown["type"]),
                ("Reason", shown["reason"]),
                ("Message", one_line(shown["message"])),
                ("Source", shown["source"]["component"]),
            ]
        ),
        "Involved Object:",
        *(f"  {line}" for line in fields(about)),
    ]


def since(event: Json, now_ns: int) -> str:
    """When it was last seen, and how often since when."""
    last = _age(event["lastNs"], now_ns)
    if event["count"] == 1:
        return last
    return f"{last} (x{event['count']} over {_age(event['firstNs'], now_ns)})"


def _name(event: Json) -> str:
    return f"{event['name']}.{event['number']}"


def one_line(text: str) -> str:
    """A message whose line breaks would break the table."""
    return " ".join(text.split())


def _age(moment_ns: int, now_ns: int) -> str:
    return human_duration((now_ns - moment_ns) / _SECOND)
