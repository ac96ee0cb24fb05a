"""The commands' options, and which function runs which."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from trio_kubelet.commands.client import AgentUnreachable, add_where, find_socket
from trio_kubelet.commands.logs import logs, seconds
from trio_kubelet.commands.render import SeveralPods
from trio_kubelet.commands.selector import Selector, parse_selector
from trio_kubelet.commands.show import POD_WORDS, NotThere, describe, get, top

_NODES = ("nodes", "node", "no")
_EVENTS = ("events", "event", "ev")
_KINDS = {
    **dict.fromkeys(POD_WORDS, "pod"),
    **dict.fromkeys(_NODES, "node"),
    **dict.fromkeys(_EVENTS, "event"),
}
_GET, _DESCRIBE, _TOP = ("pod", "node", "event", "top"), ("pod", "node", "event"), ("pod", "node")


def main(argv: Sequence[str]) -> int:
    """Runs one of the commands; returns the exit code, that of the container's command after `exec`."""
    options = _options(argv)
    try:
        socket_path = find_socket(options.socket, options.root_dir)
        if options.command == "exec":
            from trio_kubelet.commands.exec import run_in_container

            return run_in_container(options, socket_path)
        {"get": get, "describe": describe, "top": top, "logs": logs}[options.command](options, socket_path)
    except (AgentUnreachable, SeveralPods, NotThere) as exc:
        print(f"trio-kubelet: {exc}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0
    return 0


def _options(argv: Sequence[str]) -> argparse.Namespace:
    own = list(argv)
    words: list[str] = []
    if "--" in own:
        at = own.index("--")
        own, words = own[:at], own[at + 1 :]
    parser = _parser()
    options, beyond = parser.parse_known_args(own)
    if options.command in ("get", "describe", "top"):  # argparse takes no more names behind an option
        options.names += [word for word in beyond if not word.startswith("-")]
        beyond = [word for word in beyond if word.startswith("-")]
    if beyond:
        parser.error(f"{options.command}: unrecognized arguments: {' '.join(beyond)}")
    if options.command == "exec":
        options.words = words
        if not words:
            parser.error("exec: the command stands behind --, as in: exec web -- date")
    elif words:
        parser.error(f"{options.command}: nothing may stand behind --")
    if options.command in ("get", "describe", "top"):
        try:
            options.kind, options.names = _what(options.kind, options.names)
            _check(options)
        except ValueError as exc:
            parser.error(f"{options.command}: {exc}")
    return options


def _what(word: str, names: list[str]) -> tuple[str, list[str]]:
    """The kind and the names meant by `KIND NAME…` or `KIND/NAME…`. Raises ValueError."""
    first, slash, _ = word.partition("/")
    kind = _KINDS.get(first, first)
    if slash:
        parts = [each.partition("/") for each in (word, *names)]
        if any(_KINDS.get(each, each) != kind or not name for each, _, name in parts):
            raise ValueError("of KIND/NAME all have to be of one kind, and named")
        names = [name for _, _, name in parts]
    return kind, names


def _check(options: argparse.Namespace) -> None:
    """Raises ValueError for what this command does not know or do."""
    known = {"get": _GET, "describe": _DESCRIBE, "top": _TOP}[options.command]
    if options.kind not in known:
        raise ValueError(f"there is no kind {options.kind!r}, but {', '.join(known)}")
    if options.names and options.selector:
        raise ValueError("names and a selector exclude each other")
    if options.kind == "event" and options.selector:
        raise ValueError("events have no labels")
    if "top" in (options.command, options.kind):
        if len(options.names) > 1:
            raise ValueError("of one pod or of all")
        if options.command == "get" and (options.output or options.watch):
            raise ValueError("what is used comes as a table, once")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="trio-kubelet", description="Ask the agent of this node.", allow_abbrev=False
    )
    where = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_where(where)
    where.add_argument("-n", "--namespace", default="", help="only this namespace (default: all)")
    where.add_argument(
        *("-A", "--all-namespaces"),
        action="store_const",
        const="",
        dest="namespace",
        default=argparse.SUPPRESS,
        help="of all namespaces, as without -n",
    )
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, text: str, *more: argparse.ArgumentParser) -> argparse.ArgumentParser:
        parents = [where, *more]
        return commands.add_parser(name, parents=parents, help=text, description=text, allow_abbrev=False)

    chosen = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    chosen.add_argument(
        "-l", "--selector", type=_selector, help="only what has such labels: app=web,tier!=db"
    )
    bare = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    bare.add_argument("--no-headers", action="store_true", help="the table without its first line")

    listed = command("get", "List pods, the node, its events, or what pods use.", chosen, bare)
    kind_help = "pods, node, events or top; KIND/NAME names one"
    listed.add_argument("kind", metavar="KIND", help=kind_help)
    names_help = "only these; of events, those about POD or KIND/NAME"
    listed.add_argument("names", nargs="*", metavar="NAME", help=names_help)
    listed.add_argument(
        "-o", "--output", choices=["wide", "json", "yaml", "name"], help="another form than the table"
    )
    listed.add_argument("-w", "--watch", action="store_true", help="print rows again as they change")
    listed.set_defaults(containers=False)
    described = command("describe", "Tell all about pods, the node or its events.", chosen)
    described.add_argument("kind", metavar="KIND", help="pods, node or events; KIND/NAME names one")
    pods_help = "only these; a pod's name may lack the node's name at its end"
    described.add_argument("names", nargs="*", metavar="NAME", help=pods_help)
    used = command("top", "Show what pods or the node use.", chosen, bare)
    used.add_argument("kind", metavar="KIND", help="pods or node")
    used.add_argument("names", nargs="*", metavar="NAME", help="only this one")
    used.add_argument("--containers", action="store_true", help="each container of a pod by itself")
    _add_logs(command("logs", "Print what a container of a pod wrote."))
    executed = command("exec", "Run a command in a container: exec POD -- COMMAND")
    executed.add_argument("name", metavar="POD", help="the pod's name")
    executed.add_argument("-c", "--container", default="", help="which container (default: the first)")
    executed.add_argument("-i", "--stdin", action="store_true", help="pass standard input on")
    executed.add_argument("-t", "--tty", action="store_true", help="the command gets a terminal")
    return parser


def _add_logs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="POD", help="the pod's name")
    parser.add_argument("-c", "--container", default="", help="which container (default: the first)")
    parser.add_argument("-f", "--follow", action="store_true", help="go on with what is written from now on")
    parser.add_argument(
        "-p", "--previous", action="store_true", help="of the container before the last restart"
    )
    parser.add_argument("--tail", type=int, default=-1, help="so many last lines (default: all)")
    parser.add_argument("--limit-bytes", type=int, default=0, help="at most so many bytes")
    parser.add_argument("--since", type=_seconds, default=0, help="not older than this: 5s, 2m, 3h")
    parser.add_argument("--since-time", default="", help="not older than this moment (RFC 3339)")
    parser.add_argument("--timestamps", action="store_true", help="each line with its time")


def _selector(text: str) -> Selector:
    try:
        return parse_selector(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from exc


def _seconds(text: str) -> int:
    try:
        return seconds(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from exc
