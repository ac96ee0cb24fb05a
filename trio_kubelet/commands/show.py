"""`get`, `describe` and `top`: what the agent knows, printed once or as it changes."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence

from trio_kubelet.commands.client import AgentRefused, ask
from trio_kubelet.commands.event_text import (
    describe_event,
    described_events,
    event_object,
    event_table,
    namespace_of,
)
from trio_kubelet.commands.render import Json, describe_pod, find_pod, pod_table

WATCH_PERIOD = 1.0
DOCUMENTS = ("json", "yaml")
POD_WORDS = ("pods", "pod", "po")


class NotThere(Exception):
    """What was asked for is not on this node."""


def get(options: argparse.Namespace, socket_path: str) -> None:
    """Lists pods, the node, its events or what is used. Raises NotThere."""
    if options.kind == "top":
        return top(options, socket_path)
    return {"pod": _get_pods, "node": _get_node, "event": _get_events}[options.kind](options, socket_path)


def describe(options: argparse.Namespace, socket_path: str) -> None:
    """Tells all about pods, the node or its events. Raises NotThere."""
    found = {"pod": _described_pods, "node": _described_node, "event": _described_events}
    apart = False
    for lines in found[options.kind](options, socket_path):
        say(["", "", *lines] if apart else lines)
        apart = True


def _described_node(options: argparse.Namespace, socket_path: str) -> Iterator[Sequence[str]]:
    from trio_kubelet.commands.node_text import describe_node

    node = _node(options, socket_path)
    about = [event for event in _events(socket_path) if event["kind"] == "Node"]
    pods = json.loads(ask(socket_path, "/pods"))["items"] or []
    yield describe_node(node, pods, about, time.time_ns())


def _described_pods(options: argparse.Namespace, socket_path: str) -> Iterator[Sequence[str]]:
    pods, missing = _chosen(options, socket_path)
    events = _events(socket_path)
    for pod in pods:
        uid = pod["metadata"]["uid"]
        about = [event for event in events if event["uid"] == uid]
        story = json.loads(ask(socket_path, f"/debug/story/{uid}"))
        now_ns = time.time_ns()
        yield describe_pod(pod, described_events(about, now_ns), story, now_ns)
    if missing:
        raise _missing(missing)
    if not pods:
        print("No pods on this node.", file=sys.stderr)


def _described_events(options: argparse.Namespace, socket_path: str) -> Iterator[Sequence[str]]:
    events = list(_wanted(options, _events(socket_path)))
    yield from map(describe_event, events)
    if not events:
        print("No events on this node.", file=sys.stderr)


def top(options: argparse.Namespace, socket_path: str) -> None:
    """What pods or the node use now. Raises NotThere."""
    from trio_kubelet.commands.usage_text import node_usage, pod_usage

    if options.kind == "node":
        node = _node(options, socket_path)
        table = node_usage(json.loads(ask(socket_path, "/stats/summary")), node)
    else:
        pods, missing = _chosen(options, socket_path)
        if missing:
            raise _missing(missing)
        keys = {(pod["metadata"].get("namespace", ""), pod["metadata"]["name"]) for pod in pods}
        summary = json.loads(ask(socket_path, "/stats/summary"))
        table = pod_usage(summary, keys, containers=options.containers)
    say(table[1:] if options.no_headers else table)


def the_pod(options: argparse.Namespace, socket_path: str) -> Json:
    """The one pod that is meant by `NAME` or `pod/NAME`. Raises NotThere, SeveralPods."""
    kind, _, name = options.name.rpartition("/")
    found = find_pod(_pods(options.namespace, socket_path), name) if kind in ("", *POD_WORDS) else None
    if found is None:
        raise _missing([options.name])
    return found


def say(lines: Iterable[str]) -> None:
    """Prints lines; what a pod wrote into them must not reach the terminal as a command."""
    text = "\n".join(lines)
    if not text.isprintable():
        text = "".join(char if char.isprintable() or char == "\n" else _escaped(char) for char in text)
    print(text, flush=True)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def _pods(namespace: str, socket_path: str) -> list[Json]:
    items = json.loads(ask(socket_path, "/pods"))["items"] or []
    if namespace:
        items = [pod for pod in items if pod["metadata"].get("namespace") == namespace]
    return sorted(items, key=lambda pod: (pod["metadata"].get("namespace", ""), pod["metadata"]["name"]))


def _chosen(options: argparse.Namespace, socket_path: str) -> tuple[list[Json], list[str]]:
    """The pods that are asked for, and the names that no pod has. Raises SeveralPods."""
    pods = _pods(options.namespace, socket_path)
    if options.selector:
        pods = [pod for pod in pods if options.selector(pod["metadata"].get("labels") or {})]
    if not options.names:
        return pods, []
    named = {name: find_pod(pods, name) for name in options.names}
    found = [pod for pod in named.values() if pod is not None]
    return found, [name for name, pod in named.items() if pod is None]


def _missing(names: Sequence[str]) -> NotThere:
    return NotThere(f"there is no pod {', '.join(map(repr, names))} on this node")


def _node(options: argparse.Namespace, socket_path: str) -> Json:
    try:
        node: Json = json.loads(ask(socket_path, "/debug/node"))
    except AgentRefused as exc:
        raise NotThere(str(exc)) from exc
    name = node["metadata"]["name"]
    for other in options.names:
        if other != name:
            raise NotThere(f"this is node {name!r}, not {other!r}")
    if options.selector and not options.selector(node["metadata"].get("labels") or {}):
        raise NotThere(f"node {name!r} has no such labels")
    return node


def _events(socket_path: str, after: int = 0) -> list[Json]:
    found: list[Json] = json.loads(ask(socket_path, f"/debug/events?after={after}"))
    return found


def _get_pods(options: argparse.Namespace, socket_path: str) -> None:
    shown: Sequence[object] = []
    while True:
        pods, missing = _chosen(options, socket_path)
        if not (pods or missing or options.watch or options.output in DOCUMENTS):
            print("No pods on this node.", file=sys.stderr)
            return
        if pods or not missing:
            shown = _say_changed(_pod_parts(options, pods), shown)
        if not options.watch:
            if missing:
                raise _missing(missing)
            return
        time.sleep(WATCH_PERIOD)


def _get_node(options: argparse.Namespace, socket_path: str) -> None:
    shown: Sequence[object] = []
    while True:
        shown = _say_changed(_node_parts(options, _node(options, socket_path)), shown)
        if not options.watch:
            return
        time.sleep(WATCH_PERIOD)


Parts = Sequence[tuple[object, str]]
"""What is printed, in parts that are printed again when what they are about has changed."""


def _say_changed(parts: Parts, shown: Sequence[object]) -> Sequence[object]:
    changed = [text for about, text in parts if about not in shown]
    if changed:
        say(changed)
    return [about for about, _ in parts]


def _pod_parts(options: argparse.Namespace, pods: Sequence[Json]) -> Parts:
    form = options.output
    if form == "name":
        return [(name, name) for name in (f"pod/{pod['metadata']['name']}" for pod in pods)]
    if form not in DOCUMENTS:
        return _table(options, pods, pod_table(pods, time.time_ns(), wide=form == "wide"))
    objects = [{"apiVersion": "v1", "kind": "Pod", **pod} for pod in pods]
    if options.watch:
        separator = "---\n" if form == "yaml" else ""
        return [(each, separator + _document(each, form)) for each in objects]
    if len(options.names) == 1:
        return [(None, _document(objects[0], form))]
    return [(None, _document({"apiVersion": "v1", "kind": "PodList", "items": list(pods)}, form))]


def _node_parts(options: argparse.Namespace, node: Json) -> Parts:
    from trio_kubelet.commands.node_text import lasting, node_table

    if options.output == "name":
        return [(None, f"node/{node['metadata']['name']}")]
    if options.output in DOCUMENTS:
        return [(lasting(node), _document(node, options.output))]
    lines = node_table(node, time.time_ns(), wide=options.output == "wide")
    return _table(options, [lasting(node)], lines)


def _table(options: argparse.Namespace, about: Sequence[Json], lines: Sequence[str]) -> Parts:
    parts = list(zip([None, *about], lines, strict=True))
    return parts[1:] if options.no_headers else parts


def _get_events(options: argparse.Namespace, socket_path: str) -> None:
    events = _events(socket_path)
    wanted = list(_wanted(options, events))
    if options.output in DOCUMENTS and not options.watch:
        items = [event_object(event) for event in wanted]
        say([_document({"apiVersion": "v1", "kind": "EventList", "items": items}, options.output)])
        return
    if wanted:
        say(_event_lines(options, wanted))
    elif not options.watch:
        print("No events on this node.", file=sys.stderr)
    header_shown = bool(wanted) or options.no_headers
    while options.watch:
        time.sleep(WATCH_PERIOD)
        news = _events(socket_path, events[-1]["number"] if events else 0)
        events = news or events
        wanted = list(_wanted(options, news))
        if wanted:
            is_table = options.output in (None, "wide") and not options.no_headers
            say(_event_lines(options, wanted)[1 if header_shown and is_table else 0 :])
            header_shown = True


def _event_lines(options: argparse.Namespace, events: Sequence[Json]) -> list[str]:
    if options.output in DOCUMENTS:
        return [_document(event_object(event), options.output) for event in events]
    if options.output == "name":
        return [f"event/{event_object(event)['metadata']['name']}" for event in events]
    lines = event_table(events, time.time_ns(), wide=options.output == "wide")
    return lines[1:] if options.no_headers else lines


def _wanted(options: argparse.Namespace, events: Iterable[Json]) -> Iterator[Json]:
    """The events of the namespace and the object that are asked for; an object is `name` or `kind/name`."""
    asked = [name.lower().rpartition("/")[::2] for name in options.names] or [("", "")]
    for event in events:
        kind, name = event["kind"].lower(), event["name"].lower()
        is_about = any(each[0] in ("", kind) and each[1] in ("", name) for each in asked)
        if is_about and options.namespace in ("", namespace_of(event)):
            yield event


def _document(content: Json, form: str) -> str:
    if form == "json":
        return json.dumps(content, indent=4)
    import yaml

    text: str = yaml.safe_dump(content, sort_keys=False)
    return text.rstrip()
