"""`get`: pods, the node or its events as a table or as documents, once or as they change."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from trio_kubelet.commands import queries
from trio_kubelet.commands.event_text import event_object, event_rows
from trio_kubelet.commands.forms import OutputForm
from trio_kubelet.commands.output import complain, say, write
from trio_kubelet.commands.render import Json, aligned, pairs, pod_rows
from trio_kubelet.commands.sorting import order_by

WATCH_PERIOD = 1.0


@dataclass(frozen=True)
class _Kind:
    """How things of a kind become objects of the API and rows of a table, the header first."""

    word: str
    as_object: Callable[[Json], Json]
    rows: Callable[[Sequence[Json], OutputForm], Sequence[Sequence[str]]]
    lasting: Callable[[Json], Json]
    """A thing without what changes all the time."""


def _same(thing: Json) -> Json:
    return thing


def _without_heartbeats(node: Json) -> Json:
    conditions = [
        {key: value for key, value in condition.items() if key != "lastHeartbeatTime"}
        for condition in node["status"].get("conditions") or ()
    ]
    return {**node, "status": {**node["status"], "conditions": conditions}}


def _node_rows(nodes: Sequence[Json], form: OutputForm) -> Sequence[Sequence[str]]:
    from trio_kubelet.commands.node_text import node_rows  # knows quantities, which costs time

    return node_rows(nodes[0], time.time_ns(), wide=form.wide)


_POD: Final = _Kind(
    "pod",
    lambda pod: {"apiVersion": "v1", "kind": "Pod", **pod},
    lambda pods, form: pod_rows(pods, time.time_ns(), wide=form.wide),
    _same,
)
_NODE: Final = _Kind("node", _same, _node_rows, _without_heartbeats)
_EVENT: Final = _Kind(
    "event", event_object, lambda events, form: event_rows(events, time.time_ns(), wide=form.wide), _same
)
_COUNTED_EVENT: Final = replace(
    _EVENT, rows=lambda events, form: event_rows(events, time.time_ns(), wide=form.wide, counted=True)
)


def get(options: argparse.Namespace, socket_path: str) -> None:
    """Lists pods, the node or its events. Raises NotThere, SeveralPods, JSONPathError, AgentUnreachable."""
    try:
        _LISTED[options.kind](options, socket_path)
    except queries.NotThere:
        if not options.ignore_not_found:
            raise


def _say_nothing(options: argparse.Namespace, what: str) -> None:
    if not options.ignore_not_found:
        complain(queries.nothing(options, what))


def _get_pods(options: argparse.Namespace, socket_path: str) -> None:
    shown: Sequence[object] = []
    while True:
        pods, missing = queries.chosen_pods(options, socket_path)
        if not (pods or missing or options.watch or options.output.document):
            _say_nothing(options, "pods")
            return
        if pods or not missing:
            shown = _print(options, _POD, pods, shown)
        if not options.watch:
            if missing:
                raise queries.missing(missing, options.namespace)
            return
        time.sleep(WATCH_PERIOD)


def _get_node(options: argparse.Namespace, socket_path: str) -> None:
    shown: Sequence[object] = []
    while True:
        nodes = queries.chosen_nodes(options, socket_path)
        if not (nodes or options.watch or options.output.document):
            _say_nothing(options, "nodes")
            return
        if nodes or not options.watch:
            shown = _print(options, _NODE, nodes, shown)
        if not options.watch:
            return
        time.sleep(WATCH_PERIOD)


def _get_events(options: argparse.Namespace, socket_path: str) -> None:
    kind = _COUNTED_EVENT if options.command == "events" else _EVENT
    options.names = queries.whole_names(options, socket_path)
    events = queries.events(socket_path)
    wanted = list(queries.wanted_events(options, events))
    shown: Sequence[object] = []
    if wanted or (options.output.document and not options.watch):
        shown = _print(options, kind, wanted, shown)
    elif not options.watch:
        _say_nothing(options, "events")
    while options.watch:
        time.sleep(WATCH_PERIOD)
        news = queries.events(socket_path, events[-1]["number"] if events else 0)
        events = news or events
        if wanted := list(queries.wanted_events(options, news)):
            shown = _print(options, kind, wanted, shown)


_LISTED: Final[Mapping[str, Callable[[argparse.Namespace, str], None]]] = {
    "pod": _get_pods,
    "node": _get_node,
    "event": _get_events,
}


def _print(
    options: argparse.Namespace, kind: _Kind, things: Sequence[Json], shown: Sequence[object]
) -> Sequence[object]:
    """Prints what is not `shown` yet; returns what is shown now, the header of a table being None."""
    form: OutputForm = options.output
    objects = [kind.as_object(thing) for thing in things]
    if options.sort_by:
        places = order_by(options.sort_by, objects)
        things, objects = [things[place] for place in places], [objects[place] for place in places]
    about = [kind.lasting(thing) for thing in things]
    if form.document is None:
        titles, lines = _lines(options, kind, things, objects)
        header = [] if options.no_headers or None in shown else titles
        say([*header, *(line for each, line in zip(about, lines, strict=True) if each not in shown)])
        return [None, *about]
    if options.watch:
        for each, content in zip(about, objects, strict=True):
            if each not in shown:
                write(form.separator + form.document(content), verbatim=form.verbatim)
    else:
        one = len(options.names) == 1 and kind.word != "event"
        write(form.document(objects[0] if one else _list_of(objects)), verbatim=form.verbatim)
    return about


def _lines(
    options: argparse.Namespace, kind: _Kind, things: Sequence[Json], objects: Sequence[Json]
) -> tuple[Sequence[str], Sequence[str]]:
    """The header of a table, and a line for each object."""
    form: OutputForm = options.output
    if form.names:
        return [], [f"{kind.word}/{each['metadata']['name']}" for each in objects]
    if form.columns is not None:
        table = aligned([form.columns.titles, *map(form.columns.row, objects)])
    else:
        more = _label_cells(objects, options.label_columns, all_labels=options.show_labels)
        table = aligned([[*row, *cells] for row, cells in zip(kind.rows(things, form), more, strict=True)])
    return table[:1], table[1:]


def _label_cells(objects: Sequence[Json], keys: Sequence[str], *, all_labels: bool) -> Iterator[list[str]]:
    """What labels add to the header and to each row; all of them are in the order of their texts."""
    yield [*(key.rpartition("/")[2].upper() for key in keys), *(["LABELS"] if all_labels else ())]
    for each in objects:
        labels = each["metadata"].get("labels") or {}
        yield [
            *(labels.get(key, "") for key in keys),
            *([",".join(sorted(pairs(labels)))] if all_labels else ()),
        ]


def _list_of(objects: Sequence[Json]) -> Json:
    return {"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": list(objects)}
