"""What the agent is asked for: its pods, its node, its events, and which of them are meant."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from trio_kubelet.commands.client import AgentRefused, ask_json
from trio_kubelet.commands.event_text import event_object, namespace_of
from trio_kubelet.commands.render import Json, find_pod, pods_named

KINDS: Final = {
    **dict.fromkeys(("pods", "pod", "po"), "pod"),
    **dict.fromkeys(("nodes", "node", "no"), "node"),
    **dict.fromkeys(("events", "event", "ev"), "event"),
}
"""The words for a kind, and the one of them that names an object of it."""


class NotThere(Exception):
    """What was asked for is not on this node."""


def pods(namespace: str, socket_path: str) -> list[Json]:
    """The pods of a namespace, or of all, by namespace and name."""
    items = ask_json(socket_path, "/pods", dict).get("items") or []
    if namespace:
        items = [pod for pod in items if pod["metadata"].get("namespace") == namespace]
    return sorted(items, key=lambda pod: (pod["metadata"].get("namespace", ""), pod["metadata"]["name"]))


def chosen_pods(options: argparse.Namespace, socket_path: str) -> tuple[list[Json], list[str]]:
    """The pods that are asked for, and the names that no pod has. Raises SeveralPods."""
    found = pods(options.namespace, socket_path)
    if options.selector:
        found = [pod for pod in found if options.selector(pod["metadata"].get("labels") or {})]
    if options.fields:
        found = [pod for pod in found if options.fields(pod)]
    if not options.names:
        return found, []
    named = {name: find_pod(found, name) for name in options.names}
    there = [pod for pod in named.values() if pod is not None]
    return there, [name for name, pod in named.items() if pod is None]


def the_pod(name: str, namespace: str, socket_path: str) -> Json:
    """The one pod that is meant by `NAME` or `pod/NAME`. Raises NotThere, SeveralPods."""
    kind, _, own_name = name.rpartition("/")
    is_pod = KINDS.get(kind.lower(), kind) in ("", "pod")
    found = find_pod(pods(namespace, socket_path), own_name) if is_pod else None
    if found is None:
        raise missing([name], namespace)
    return found


def nothing(options: argparse.Namespace, what: str) -> str:
    """What is said when there is nothing to show."""
    which = "such " if options.selector or options.fields or options.names or options.types else ""
    where = f" in namespace {options.namespace!r}" if options.namespace else ""
    return f"No {which}{what} on this node{where}."


def missing(names: Sequence[str], namespace: str) -> NotThere:
    """The error for pods that are not there."""
    where = f" in namespace {namespace!r}" if namespace else ""
    return NotThere(f"there is no pod {', '.join(map(repr, names))} on this node{where}")


def chosen_nodes(options: argparse.Namespace, socket_path: str) -> list[Json]:
    """The node, if its labels and fields are those asked for. Raises NotThere where another one is named."""
    try:
        found: Json = ask_json(socket_path, "/debug/node", dict)
    except AgentRefused as exc:
        raise NotThere(str(exc)) from exc
    name = found["metadata"]["name"]
    for other in options.names:
        if other != name:
            raise NotThere(f"this is node {name!r}, not {other!r}")
    if options.selector and not options.selector(found["metadata"].get("labels") or {}):
        return []
    return [] if options.fields and not options.fields(found) else [found]


def events(socket_path: str, after: int = 0) -> list[Json]:
    """The last events, oldest first; those since the one of the number `after`."""
    found: list[Json] = ask_json(socket_path, f"/debug/events?after={after}", list)
    return found


def whole_names(options: argparse.Namespace, socket_path: str) -> list[str]:
    """What `NAME` or `KIND/NAME` are in full: pods may be named without the node's name at the end."""
    if not options.names:
        return []
    there = pods(options.namespace, socket_path)
    whole = []
    for asked in options.names:
        word, slash, name = asked.rpartition("/")
        kind = KINDS.get(word.lower(), word)
        named = pods_named(there, name) if kind in ("", "pod") else []
        whole.append(f"{kind}{slash}{named[0]['metadata']['name'] if named else name}")
    return whole


def wanted_events(options: argparse.Namespace, found: Iterable[Json]) -> Iterator[Json]:
    """Those that are asked for: of the types, in the namespace, with such fields, about an object (`name` or
    `kind/name`).
    """
    asked = [name.lower().rpartition("/")[::2] for name in options.names] or [("", "")]
    for event in found:
        kind, name = event["kind"].lower(), event["name"].lower()
        is_about = any(each[0] in ("", kind) and each[1] in ("", name) for each in asked)
        is_of_type = not options.types or event["type"].lower() in options.types
        is_so = not options.fields or options.fields(event_object(event))
        if is_about and is_of_type and is_so and options.namespace in ("", namespace_of(event)):
            yield event
