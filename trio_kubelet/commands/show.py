"""`get`, `describe` and `top`: what the agent knows, printed once or as it changes."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence

from trio_kubelet.commands.client import AgentRefused, ask
from trio_kubelet.commands.event_text import described_events, event_object, event_table, namespace_of
from trio_kubelet.commands.render import Json, describe_pod, find_pod, pod_table

WATCH_PERIOD = 1.0
DOCUMENTS = ("json", "yaml")


class NotThere(Exception):
    """What was asked for is not on this node."""


def get(options: argparse.Namespace, socket_path: str) -> None:
    """Lists pods, the node, its events or what is used. Raises NotThere."""
    if options.kind == "top":
        return top(options, socket_path)
    return {"pod": _get_pods, "node": _get_node, "event": _get_events}[options.kind](options, socket_path)


def describe(options: argparse.Namespace, socket_path: str) -> None:
    """Tells all about a pod or the node. Raises NotThere."""
    if options.kind == "node":
        from trio_kubelet.commands.node_text import describe_node

        node = _node(options, socket_path)
        about = [event for event in _events(socket_path) if event["kind"] == "Node"]
        say(describe_node(node, _pods(options, socket_path), about, time.time_ns()))
        return
    pod = the_pod(options, socket_path)
    uid = pod["metadata"]["uid"]
    about = [event for event in _events(socket_path) if event["uid"] == uid]
    story = json.loads(ask(socket_path, f"/debug/story/{uid}"))
    now_ns = time.time_ns()
    say(describe_pod(pod, described_events(about, now_ns), story, now_ns))


def top(options: argparse.Namespace, socket_path: str) -> None:
    """What pods or the node use now. Raises NotThere."""
    from trio_kubelet.commands.usage_text import node_usage, pod_usage

    if options.kind == "node":
        node = _node(options, socket_path)
        say(node_usage(json.loads(ask(socket_path, "/stats/summary")), node))
        return
    name = the_pod(options, socket_path)["metadata"]["name"] if options.name else ""
    summary = json.loads(ask(socket_path, "/stats/summary"))
    say(pod_usage(summary, namespace=options.namespace, name=name, containers=options.containers))


def the_pod(options: argparse.Namespace, socket_path: str) -> Json:
    """The pod that is meant. Raises NotThere, SeveralPods."""
    name = options.name.removeprefix("pod/")
    found = find_pod(_pods(options, socket_path), name)
    if found is None:
        raise NotThere(f"there is no pod {name!r} on this node")
    return found


def say(lines: Iterable[str]) -> None:
    """Prints lines; what a pod wrote into them must not reach the terminal as a command."""
    text = "\n".join(lines)
    if not text.isprintable():
        text = "".join(char if char.isprintable() or char == "\n" else _escaped(char) for char in text)
    print(text, flush=True)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def _pods(options: argparse.Namespace, socket_path: str) -> list[Json]:
    items = json.loads(ask(socket_path, "/pods"))["items"] or []
    if options.namespace:
        items = [pod for pod in items if pod["metadata"].get("namespace") == options.namespace]
    return sorted(items, key=lambda pod: (pod["metadata"].get("namespace", ""), pod["metadata"]["name"]))


def _node(options: argparse.Namespace, socket_path: str) -> Json:
    try:
        node: Json = json.loads(ask(socket_path, "/debug/node"))
    except AgentRefused as exc:
        raise NotThere(str(exc)) from exc
    if options.name not in ("", node["metadata"]["name"]):
        raise NotThere(f"this is node {node['metadata']['name']!r}, not {options.name!r}")
    return node


def _events(socket_path: str, after: int = 0) -> list[Json]:
    found: list[Json] = json.loads(ask(socket_path, f"/debug/events?after={after}"))
    return found


def _get_pods(options: argparse.Namespace, socket_path: str) -> None:
    shown: Sequence[Json | None] = []
    while True:
        pods = _pods(options, socket_path)
        if options.name:
            found = find_pod(pods, options.name)
            pods = [found] if found is not None else []
            if found is None and not options.watch:
                raise NotThere(f"there is no pod {options.name!r} on this node")
        if not pods and not options.watch and options.output not in DOCUMENTS:
            print("No pods on this node.", file=sys.stderr)
            return
        parts = _parts(options, pods)
        changed = [text for about, text in parts if about not in shown]
        if changed:
            say(changed)
        if not options.watch:
            return
        shown = [about for about, _ in parts]
        time.sleep(WATCH_PERIOD)


def _parts(options: argparse.Namespace, pods: Sequence[Json]) -> list[tuple[Json | None, str]]:
    """What is printed, in parts that are printed again when the pod they are about has changed."""
    form = options.output
    if form not in DOCUMENTS:
        lines = pod_table(pods, time.time_ns(), wide=form == "wide")
        return list(zip([None, *pods], lines, strict=True))
    if not options.watch:
        return [(None, _document({"apiVersion": "v1", "kind": "PodList", "items": list(pods)}, form))]
    separator = "---\n" if form == "yaml" else ""
    return [(pod, separator + _document({"apiVersion": "v1", "kind": "Pod", **pod}, form)) for pod in pods]


def _get_node(options: argparse.Namespace, socket_path: str) -> None:
    from trio_kubelet.commands.node_text import node_table

    node = _node(options, socket_path)
    if options.output in DOCUMENTS:
        say([_document(node, options.output)])
    else:
        say(node_table(node, time.time_ns(), wide=options.output == "wide"))


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
    header_shown = bool(wanted)
    while options.watch:
        time.sleep(WATCH_PERIOD)
        news = _events(socket_path, events[-1]["number"] if events else 0)
        events = news or events
        wanted = list(_wanted(options, news))
        if wanted:
            is_table = options.output not in DOCUMENTS
            say(_event_lines(options, wanted)[1 if header_shown and is_table else 0 :])
            header_shown = True


def _event_lines(options: argparse.Namespace, events: Sequence[Json]) -> list[str]:
    if options.output in DOCUMENTS:
        return [_document(event_object(event), options.output) for event in events]
    return event_table(events, time.time_ns(), wide=options.output == "wide")


def _wanted(options: argparse.Namespace, events: Iterable[Json]) -> Iterator[Json]:
    """The events of the namespace and the object that are asked for; an object is `name` or `kind/name`."""
    kind, _, name = options.name.rpartition("/")
    for event in events:
        in_namespace = options.namespace in ("", namespace_of(event))
        if in_namespace and name in ("", event["name"]) and kind.lower() in ("", event["kind"].lower()):
            yield event


def _document(content: Json, form: str) -> str:
    if form == "json":
        return json.dumps(content, indent=4)
    import yaml

    text: str = yaml.safe_dump(content, sort_keys=False)
    return text.rstrip()
