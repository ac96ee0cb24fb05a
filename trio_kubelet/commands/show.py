"""`describe` and `top`: all that the agent knows of a thing, and what it uses."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence

from trio_kubelet.commands import queries
from trio_kubelet.commands.client import ask_json
from trio_kubelet.commands.event_text import describe_event, described_events
from trio_kubelet.commands.output import complain, say
from trio_kubelet.commands.pod_text import describe_pod
from trio_kubelet.commands.queries import NotThere


def describe(options: argparse.Namespace, socket_path: str) -> None:
    """Tells all about pods, the node, its events, or several of these (`options.each`). Raises NotThere,
    SeveralPods, AgentUnreachable.
    """
    found = {"pod": _described_pods, "node": _described_node, "event": _described_events}
    apart = False
    for own in options.each:
        for lines in found[own.kind](own, socket_path):
            say(["", "", *lines] if apart else lines)
            apart = True


def _described_node(options: argparse.Namespace, socket_path: str) -> Iterator[Sequence[str]]:
    from trio_kubelet.commands.node_text import describe_node

    nodes = queries.chosen_nodes(options, socket_path)
    about = [event for event in queries.events(socket_path) if event["kind"] == "Node"]
    for node in nodes:
        now_ns = time.time_ns()
        told = described_events(about, now_ns) if options.show_events else []
        yield describe_node(node, queries.pods("", socket_path), told, now_ns)
    if not nodes:
        complain(queries.nothing(options, "nodes"))


def _described_pods(options: argparse.Namespace, socket_path: str) -> Iterator[Sequence[str]]:
    pods, missing = queries.chosen_pods(options, socket_path)
    if missing and len(options.names) == 1:  # as with kubectl, it may be the beginning of names
        there = queries.pods(options.namespace, socket_path)
        pods = [pod for pod in there if pod["metadata"]["name"].startswith(missing[0])]
        missing = [] if pods else missing
    events = queries.events(socket_path)
    for pod in pods:
        uid = pod["metadata"]["uid"]
        about = [event for event in events if event["uid"] == uid]
        story = ask_json(socket_path, f"/debug/story/{uid}", list)
        now_ns = time.time_ns()
        told = described_events(about, now_ns) if options.show_events else []
        yield describe_pod(pod, told, story, now_ns)
    if missing:
        raise queries.missing(missing, options.namespace)
    if not pods:
        complain(queries.nothing(options, "pods"))


def _described_events(options: argparse.Namespace, socket_path: str) -> Iterator[Sequence[str]]:
    options.names = queries.whole_names(options, socket_path)
    events = list(queries.wanted_events(options, queries.events(socket_path)))
    yield from map(describe_event, events)
    if not events:
        complain(queries.nothing(options, "events"))


def top(options: argparse.Namespace, socket_path: str) -> None:
    """What pods or the node use now. Raises NotThere, SeveralPods, AgentUnreachable."""
    from trio_kubelet.commands.usage_text import node_usage, pod_usage

    (options,) = options.each
    if options.kind == "node":
        nodes = queries.chosen_nodes(options, socket_path)
        if not nodes:
            raise NotThere(queries.nothing(options, "nodes"))
        table = node_usage(
            ask_json(socket_path, "/stats/summary", dict),
            nodes[0],
            of_capacity=options.show_capacity,
            swap=options.show_swap,
        )
    else:
        pods, missing = queries.chosen_pods(options, socket_path)
        if missing:
            raise queries.missing(missing, options.namespace)
        keys = {(pod["metadata"].get("namespace", ""), pod["metadata"]["name"]) for pod in pods}
        summary = ask_json(socket_path, "/stats/summary", dict)
        table = pod_usage(
            summary,
            keys,
            containers=options.containers,
            swap=options.show_swap,
            sort_by=options.sort_by,
            total=options.sum,
        )
        if not keys:
            complain(queries.nothing(options, "pods"))
            return
        if len(table) == 1:
            raise NotThere(
                "what they use is not known: none of their containers runs, or not for long enough"
            )
    say(table[1:] if options.no_headers else table)
