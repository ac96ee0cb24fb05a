"""The commands' options, and which function runs which."""

from __future__ import annotations

import argparse
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from trio_kubelet.api.timestamps import parse_rfc3339
from trio_kubelet.commands.client import AgentUnreachable, add_where, find_socket
from trio_kubelet.commands.field_selector import field_selector, parse_field_selector
from trio_kubelet.commands.forms import TABLE, parse_form
from trio_kubelet.commands.get import get
from trio_kubelet.commands.jsonpath.parse import parse_relaxed
from trio_kubelet.commands.jsonpath.steps import JSONPathError
from trio_kubelet.commands.logs import TooManyLogs, logs, seconds
from trio_kubelet.commands.output import complain
from trio_kubelet.commands.queries import KINDS, NotThere
from trio_kubelet.commands.render import SeveralPods
from trio_kubelet.commands.selector import parse_selector
from trio_kubelet.commands.show import describe, top
from trio_kubelet.common.arguments import Parser, said
from trio_kubelet.common.go_words import parse_integer

_GET, _DESCRIBE, _TOP = ("pod", "node", "event", "top"), ("pod", "node", "event"), ("pod", "node")
_RUNS: Final[Mapping[str, Callable[[argparse.Namespace, str], None]]] = {
    "get": get,
    "events": get,
    "describe": describe,
    "top": top,
    "logs": logs,
}
_UNFIT: Final = (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RecursionError)
"""What comes of reading an answer in which something is missing, or of another type."""
_FORMS = "wide, json, yaml, name, jsonpath=TEMPLATE, jsonpath-as-json=, custom-columns=TITLE:PATH,…"


def main(argv: Sequence[str]) -> int:
    """Runs one of the commands; returns the exit code, that of the container's command after `exec`.

    Raises OSError when its output cannot be written, and KeyboardInterrupt.
    """
    options = _options(argv)
    try:
        return _run(options, find_socket(options.socket, options.root_dir))
    except (AgentUnreachable, SeveralPods, NotThere, JSONPathError, TooManyLogs) as exc:
        complain(f"trio-kubelet: {exc}")
        return 1


def _run(options: argparse.Namespace, socket_path: str) -> int:
    try:
        if options.command == "exec":
            from trio_kubelet.commands.exec import run_in_container

            return run_in_container(options, socket_path)
        _RUNS[options.command](options, socket_path)
    except JSONPathError:  # what is asked for and what is there are no match
        raise
    except _UNFIT as exc:
        raise AgentUnreachable(_unfit(exc, options.command, socket_path)) from exc
    return 0


def _unfit(error: Exception, command: str, socket_path: str) -> str:
    """Says of an answer that it is not what the command expects, and where that was noticed: answers are read
    where they are shown, and only an agent of another version has others.
    """
    why = f"there is no field {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
    *_, at = traceback.extract_tb(error.__traceback__)
    return (
        f"{socket_path}: the agent's answer is not what `{command}` of this version expects: {why} "
        f"({os.path.basename(at.filename)}:{at.lineno}); is the agent of another version?"
    )


def _options(argv: Sequence[str]) -> argparse.Namespace:
    """What the command line asks for; it begins with the command. Raises SystemExit when it is wrong."""
    command, *own = argv
    words: list[str] = []
    if "--" in own:
        at = own.index("--")
        own, words = own[:at], own[at + 1 :]
    parser = Parser(prog=f"trio-kubelet {command}", allow_abbrev=False)
    parser.set_defaults(names=(), selector=None, fields=None, types=[], sort_by="")
    parser.set_defaults(show_labels=False, label_columns=[], ignore_not_found=False)
    parser.set_defaults(watch=False, containers=False, sum=False, show_capacity=False, show_swap=False)
    _where(parser)
    _PARSERS[command](parser)
    options, beyond = parser.read(own)
    options.command = command
    if options.all_namespaces:
        options.namespace = ""
    try:
        _FINISHED[command](options, beyond, words)
    except ValueError as exc:
        parser.error(str(exc))
    return options


def _where(parser: Parser) -> None:
    add_where(parser)
    parser.add_argument("-n", "--namespace", default="", help="only this namespace (default: all)")
    parser.add_argument(
        "-A", "--all-namespaces", action="store_true", help="of all namespaces, as without -n"
    )


def _selected(parser: Parser) -> None:
    text = "only what has such labels: app=web,tier!=db"
    parser.add_argument("-l", "--selector", type=said(parse_selector), help=text)


def _fields(parser: Parser) -> None:
    text = "only what has such fields: status.phase=Running,spec.nodeName!=a"
    parser.add_argument(
        "--field-selector", dest="fields", metavar="FIELDS", type=said(parse_field_selector), help=text
    )


def _printed(parser: Parser) -> None:
    parser.add_argument(
        *("-o", "--output"),
        metavar="FORM",
        type=said(parse_form),
        default=TABLE,
        help=f"another form than the table: {_FORMS}, or a template in a file: jsonpath-file=, "
        "custom-columns-file=",
    )
    parser.add_argument("--no-headers", action="store_true", help="the table without its first line")
    parser.add_argument("-w", "--watch", action="store_true", help="print rows again as they change")


def _add_get(parser: Parser) -> None:
    parser.description = "Lists pods, the node, its events, or what pods use."
    parser.add_argument(
        "kind", metavar="KIND", help="pods, node, events or top, or several: pods,node; KIND/NAME names one"
    )
    names_help = "only these; of events, those about POD or KIND/NAME"
    parser.add_argument("names", nargs="*", metavar="NAME", default=(), help=names_help)
    _selected(parser)
    _fields(parser)
    _printed(parser)
    parser.add_argument("--show-labels", action="store_true", help="all labels as the table's last column")
    parser.add_argument(
        *("-L", "--label-columns"),
        metavar="LABELS",
        type=_words,
        action="extend",
        help="these labels as columns of the table: app,tier",
    )
    missing_help = "what is not there is no error, and nothing is said of it"
    parser.add_argument("--ignore-not-found", action="store_true", help=missing_help)
    path_help = "in the order of what is there, as .status.startTime; of top: cpu or memory"
    parser.add_argument("--sort-by", metavar="PATH", help=path_help)


def _add_events(parser: Parser) -> None:
    parser.description = "Lists the node's events, the oldest first."
    parser.add_argument("--for", dest="about", metavar="KIND/NAME", help="only those about this")
    types_help = "only these types: Normal, Warning"
    parser.add_argument("--types", type=said(_types), action="extend", help=types_help)
    _printed(parser)
    parser.set_defaults(kind="event")


def _types(text: str) -> Sequence[str]:
    types = [each.strip().lower() for each in text.split(",")]
    if not {"normal", "warning"}.issuperset(types):
        raise ValueError("valid --types are Normal or Warning")
    return types


def _words(text: str) -> Sequence[str]:
    return text.split(",")


def _add_describe(parser: Parser) -> None:
    parser.description = "Tells all about pods, the node or its events."
    parser.add_argument(
        "kind", metavar="KIND", help="pods, node or events, or several: pods,node; KIND/NAME names one"
    )
    names_help = "only these; of pods one may be what names begin with"
    parser.add_argument("names", nargs="*", metavar="NAME", default=(), help=names_help)
    _selected(parser)
    events_help = "with the events about each (default: true)"
    parser.add_argument(
        "--show-events", action=argparse.BooleanOptionalAction, default=True, help=events_help
    )


def _add_top(parser: Parser) -> None:
    parser.description = "Shows what pods or the node use."
    parser.add_argument("kind", metavar="KIND", help="pods or node")
    parser.add_argument("names", nargs="*", metavar="NAME", default=(), help="only this one")
    _selected(parser)
    _fields(parser)
    parser.add_argument("--containers", action="store_true", help="each container of a pod by itself")
    parser.add_argument("--sum", action="store_true", help="what all pods use together in a last line")
    capacity_help = "shares of all that the node has, not of what pods may have"
    parser.add_argument("--show-capacity", action="store_true", help=capacity_help)
    parser.add_argument("--show-swap", action="store_true", help="what is swapped out, too")
    parser.add_argument("--sort-by", metavar="WHAT", help="the largest first: cpu or memory")
    parser.add_argument("--no-headers", action="store_true", help="the table without its first line")


def _add_logs(parser: Parser) -> None:
    parser.description = "Prints what containers of a pod, or of the pods with such labels, wrote."
    parser.add_argument("pod", nargs="?", metavar="POD", help="the pod's name")
    parser.add_argument("inline", nargs="?", metavar="CONTAINER", help="as -c")
    parser.add_argument("-c", "--container", default="", help="which container (default: the first)")
    parser.add_argument("--all-containers", action="store_true", help="all containers of the pod")
    _selected(parser)
    parser.add_argument("--prefix", action="store_true", help="each line with its pod and container")
    parser.add_argument("-f", "--follow", action="store_true", help="go on with what is written from now on")
    parser.add_argument(
        "-p", "--previous", action="store_true", help="of the container before the last restart"
    )
    tail_help = "so many last lines (default: all, with a selector 10 of each)"
    parser.add_argument("--tail", type=said(parse_integer), metavar="LINES", help=tail_help)
    bytes_help = "at most so many bytes"
    parser.add_argument(
        "--limit-bytes", type=said(parse_integer), metavar="BYTES", default=0, help=bytes_help
    )
    parser.add_argument(
        "--since", type=said(seconds), metavar="DURATION", default=0, help="not older than this: 5s, 2m, 3h"
    )
    moment_help = "not older than this moment (RFC 3339)"
    parser.add_argument("--since-time", type=said(_moment), metavar="TIME", help=moment_help)
    parser.add_argument("--timestamps", action="store_true", help="each line with its time")
    requests_help = "how many logs may be followed at once (default: 5)"
    parser.add_argument(
        "--max-log-requests", type=said(parse_integer), metavar="LOGS", default=5, help=requests_help
    )
    parser.add_argument("--ignore-errors", action="store_true", help="go on with the other logs")


def _moment(text: str) -> str:
    parse_rfc3339(text)
    return text


def _add_exec(parser: Parser) -> None:
    parser.usage = "%(prog)s [OPTIONS] POD -- COMMAND [ARGUMENT ...]"
    parser.description = "Runs a command in a container."
    parser.add_argument("pod", metavar="POD", help="the pod's name")
    parser.add_argument("-c", "--container", default="", help="which container (default: the first)")
    parser.add_argument("-i", "--stdin", action="store_true", help="pass standard input on")
    parser.add_argument("-t", "--tty", action="store_true", help="the command gets a terminal")
    parser.add_argument("-q", "--quiet", action="store_true", help="print only what the command prints")


_PARSERS: Final[Mapping[str, Callable[[Parser], None]]] = {
    "get": _add_get,
    "events": _add_events,
    "describe": _add_describe,
    "top": _add_top,
    "logs": _add_logs,
    "exec": _add_exec,
}


def _finish_exec(options: argparse.Namespace, beyond: list[str], words: list[str]) -> None:
    if not words or beyond:
        raise ValueError("the command stands behind --, as in: exec web -- date")
    try:
        options.words = [os.fsencode(word).decode() for word in words]
    except UnicodeDecodeError:
        raise ValueError("the command has to be in UTF-8") from None


def _finish_logs(options: argparse.Namespace, beyond: list[str], words: list[str]) -> None:
    names = [*filter(None, (options.pod, options.inline)), *beyond, *words]  # also those behind an option
    if len(names) > 2 or not (names or options.selector):
        raise ValueError("logs POD [CONTAINER], or with -l those of the pods that have such labels")
    if names and options.selector:
        raise ValueError("a pod's name and a selector exclude each other")
    if names[1:] and options.container:
        raise ValueError("the container is named twice")
    options.pod = names[0] if names else ""
    options.container = names[1] if names[1:] else options.container
    if options.all_containers and options.container:
        raise ValueError("--all-containers and a container's name exclude each other")
    if options.since and options.since_time:
        raise ValueError("--since and --since-time exclude each other")
    if options.limit_bytes < 0:
        raise ValueError("--limit-bytes must be greater than 0")
    if options.tail is not None and options.tail < -1:
        raise ValueError("--tail must be greater than or equal to -1")


def _finish_events(options: argparse.Namespace, beyond: list[str], words: list[str]) -> None:
    if beyond or words:
        raise ValueError(f"unknown: {' '.join([*beyond, *words])}; what they are about is said with --for")
    options.names = [options.about] if options.about else []
    options.each = [options]


def _finish_kind(options: argparse.Namespace, beyond: list[str], words: list[str]) -> None:
    """`options.each` are those of each kind that is asked for. Raises ValueError for what this command does
    not know or do.
    """
    names = [*options.names, *beyond, *words]  # argparse takes no more names behind an option
    asked = _what(options.kind, names)
    if len(asked) > 1 and ("top" in (options.command, *asked) or options.watch):
        raise ValueError("what is used, and what is watched, is of one kind")
    options.each = [argparse.Namespace(**vars(options) | {"kind": kind}) for kind in asked]
    for own in options.each:
        own.names = asked[own.kind]
        _finish_one_kind(own)
    options.command = options.each[0].command


def _finish_one_kind(options: argparse.Namespace) -> None:
    known = {"get": _GET, "describe": _DESCRIBE, "top": _TOP}[options.command]
    if options.kind not in known:
        raise ValueError(f"there is no kind {options.kind!r}, but {', '.join(known)}")
    if options.names and (options.selector or options.fields):
        raise ValueError("names and a selector exclude each other")
    if options.fields is not None:
        options.fields = field_selector("pod" if options.kind == "top" else options.kind, options.fields)
    if options.kind == "event" and options.selector:
        raise ValueError("events have no labels")
    if "top" in (options.command, options.kind):
        if len(options.names) > 1:
            raise ValueError("of one pod or of all")
        if options.sort_by not in ("", "cpu", "memory"):
            raise ValueError("--sort-by accepts only cpu or memory")
        if options.command == "get" and (options.output is not TABLE or options.watch):
            raise ValueError("what is used comes as a table, once")
        if options.kind == "node" and options.sum:
            raise ValueError("--sum is of pods")
        if options.kind != "node" and options.show_capacity:
            raise ValueError("--show-capacity is of the node")
        options.command = "top"
    elif options.command == "get":
        if options.show_labels and not options.output.is_table:
            raise ValueError("--show-labels is of the table, plain or wide")
        if options.sort_by:
            options.sort_by = parse_relaxed(options.sort_by)


def _what(word: str, names: list[str]) -> Mapping[str, list[str]]:
    """The kinds meant by `KIND,KIND NAME…` or `KIND/NAME…`, and the names of each. Raises ValueError."""
    if "/" not in word:
        return {KINDS.get(kind.lower(), kind): names for kind in word.split(",")}
    found: dict[str, list[str]] = {}
    for each in (word, *names):
        kind, _, name = each.partition("/")
        if not name:
            raise ValueError("of KIND/NAME all have to be named so")
        found.setdefault(KINDS.get(kind.lower(), kind), []).append(name)
    return found


_FINISHED: Final[Mapping[str, Callable[[argparse.Namespace, list[str], list[str]], None]]] = {
    "get": _finish_kind,
    "events": _finish_events,
    "describe": _finish_kind,
    "top": _finish_kind,
    "logs": _finish_logs,
    "exec": _finish_exec,
}
