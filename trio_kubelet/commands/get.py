"""`get`: pods, the node or its events as tables or as documents, once or as they change."""

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
    """How things of a kind are found, and become objects of the API and rows of a table, the header first."""

    word: str
    find: Callable[[argparse.Namespace, str], tuple[Sequence[Json], queries.NotThere | None]]
    """The things that are asked for, and what is said of those that are not there. May raise that, too."""
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


def _find_pods(
    options: argparse.Namespace, socket_path: str
) -> tuple[Sequence[Json], queries.NotThere | None]:
    pods, missing = queries.chosen_pods(options, socket_path)
    return pods, queries.missing(missing, options.namespace) if missing else None


def _find_events(options: argparse.Namespace, socket_path: str) -> tuple[Sequence[Json], None]:
    options.names = queries.whole_names(options, socket_path)
    return list(queries.wanted_events(options, queries.events(socket_path))), None


_POD: Final = _Kind(
    "pod",
    _find_pods,
    lambda pod: {"apiVersion": "v1", "kind": "Pod", **pod},
    lambda pods, form: pod_rows(pods, time.time_ns(), wide=form.wide),
    _same,
)
_NODE: Final = _Kind(
    "node",
    lambda options, socket_path: (queries.chosen_nodes(options, socket_path), None),
    _same,
    _node_rows,
    _without_heartbeats,
)
_EVENT: Final = _Kind(
    "event",
    _find_events,
    event_object,
    lambda events, form: event_rows(events, time.time_ns(), wide=form.wide),
    _same,
)
_COUNTED_EVENT: Final = replace(
    _EVENT, rows=lambda events, form: event_rows(events, time.time_ns(), wide=form.wide, counted=True)
)
_KINDS: Final[Mapping[str, _Kind]] = {"pod": _POD, "node": _NODE, "event": _EVENT}


def _kind(options: argparse.Namespace) -> _Kind:
    return _COUNTED_EVENT if options.command == "events" else _KINDS[options.kind]


def get(options: argparse.Namespace, socket_path: str) -> None:
    """Lists pods, the node, its events, or several of these (`options.each`). Raises NotThere, SeveralPods,
    JSONPathError, AgentUnreachable.
    """
    if options.watch:
        (own,) = options.each
        watch = _watch_events if own.kind == "event" else _watch
        watch(own, socket_path)
        return
    found: list[tuple[argparse.Namespace, Sequence[Json]]] = []
    absent: list[str] = []
    for own in options.each:
        try:
            things, missing = _kind(own).find(own, socket_path)
        except queries.NotThere as exc:
            things, missing = (), exc
        found.append((own, things))
        absent += [str(missing)] if missing else []
    if options.output.document is not None:
        _print_document(options.output, found, wanted=not absent)
    else:
        _print_tables(found)
        if not (absent or options.ignore_not_found or any(things for _, things in found)):
            what = ", ".join(f"{_kind(own).word}s" for own, _ in found)
            complain(queries.nothing(options.each[0], what))
    if absent and not options.ignore_not_found:
        raise queries.NotThere("; ".join(absent))


def _print_document(
    form: OutputForm, found: Sequence[tuple[argparse.Namespace, Sequence[Json]]], *, wanted: bool
) -> None:
    """Prints the one thing that is named, else a list of all; an empty one only where it is `wanted`."""
    objects = [each for own, things in found for each in _ordered(own, things)[1]]
    own, *others = (own for own, _ in found)
    one = len(own.names) == 1 and own.kind != "event" and not others
    if form.document is not None and (objects or wanted):
        write(form.document(objects[0] if one else _list_of(objects)), verbatim=form.verbatim)


def _print_tables(found: Sequence[tuple[argparse.Namespace, Sequence[Json]]]) -> None:
    """Prints a table for each kind; of several, names say which they are."""
    there = [(own, things) for own, things in found if things]
    for number, (own, things) in enumerate(there):
        titles, lines = _lines(own, *_ordered(own, things), with_kind=len(found) > 1)
        header = [] if own.no_headers else titles
        say([*([""] if header and number else ()), *header, *lines])


def _watch(options: argparse.Namespace, socket_path: str) -> None:
    """From what is there now; what goes may come again, but what never was is not waited for."""
    shown: Sequence[object] = []
    things, missing = _kind(options).find(options, socket_path)
    if missing and not options.ignore_not_found:
        raise missing
    while True:
        if things:
            shown = _print_news(options, things, shown)
        time.sleep(WATCH_PERIOD)
        things, _ = _kind(options).find(options, socket_path)


def _watch_events(options: argparse.Namespace, socket_path: str) -> None:
    options.names = queries.whole_names(options, socket_path)
    shown: Sequence[object] = []
    last = 0
    while True:
        news = queries.events(socket_path, last)
        last = news[-1]["number"] if news else last
        if wanted := list(queries.wanted_events(options, news)):
            shown = _print_news(options, wanted, shown)
        time.sleep(WATCH_PERIOD)


def _ordered(options: argparse.Namespace, things: Sequence[Json]) -> tuple[Sequence[Json], Sequence[Json]]:
    """The things in the order that is asked for, and the objects they are."""
    objects = [_kind(options).as_object(thing) for thing in things]
    if options.sort_by:
        places = order_by(options.sort_by, objects)
        return [things[place] for place in places], [objects[place] for place in places]
    return things, objects


def _print_news(
    options: argparse.Namespace, things: Sequence[Json], shown: Sequence[object]
) -> Sequence[object]:
    """Prints what is not `shown` yet; returns what is shown now, the header of a table being None."""
    form: OutputForm = options.output
    things, objects = _ordered(options, things)
    about = [_kind(options).lasting(thing) for thing in things]
    if form.document is None:
        titles, lines = _lines(options, things, objects)
        header = [] if options.no_headers or None in shown else titles
        say([*header, *(line for each, line in zip(about, lines, strict=True) if each not in shown)])
        return [None, *about]
    for each, content in zip(about, objects, strict=True):
        if each not in shown:
            write(form.separator + form.document(content), verbatim=form.verbatim)
    return about


def _lines(
    options: argparse.Namespace,
    things: Sequence[Json],
    objects: Sequence[Json],
    *,
    with_kind: bool = False,
) -> tuple[Sequence[str], Sequence[str]]:
    """The header of a table, and a line for each object."""
    form: OutputForm = options.output
    kind = _kind(options)
    if form.names:
        return [], [f"{kind.word}/{each['metadata']['name']}" for each in objects]
    if form.columns is not None:
        table = aligned([form.columns.titles, *map(form.columns.row, objects)])
    else:
        own = kind.rows(things, form)
        rows = _with_kind(own, kind.word) if with_kind else own
        more = _label_cells(objects, options.label_columns, all_labels=options.show_labels)
        table = aligned([[*row, *cells] for row, cells in zip(rows, more, strict=True)])
    return table[:1], table[1:]


def _with_kind(rows: Sequence[Sequence[str]], word: str) -> Sequence[Sequence[str]]:
    """The rows with their kind before the names."""
    header, *others = rows
    return [
        header,
        *(
            [f"{word}/{cell}" if title == "NAME" else cell for title, cell in zip(header, row, strict=True)]
            for row in others
        ),
    ]


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
