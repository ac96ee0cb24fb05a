"""The commands' options, and which function runs which."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from trio_kubelet.commands.client import AgentUnreachable, add_where, find_socket
from trio_kubelet.commands.logs import logs, seconds
from trio_kubelet.commands.render import SeveralPods
from trio_kubelet.commands.show import NotThere, describe, get, top

_PODS = ("pods", "pod", "po")
_NODES = ("nodes", "node", "no")
_EVENTS = ("events", "event", "ev")
_KINDS = {**dict.fromkeys(_PODS, "pod"), **dict.fromkeys(_NODES, "node"), **dict.fromkeys(_EVENTS, "event")}


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
    options = parser.parse_args(own)
    if options.command == "exec":
        options.words = words
        if not words:
            parser.error("exec: the command stands behind --, as in: exec web -- date")
    elif words:
        parser.error(f"{options.command}: nothing may stand behind --")
    if options.command in ("get", "describe", "top"):
        options.kind = _KINDS.get(options.kind, options.kind)
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="trio-kubelet", description="Ask the agent of this node.", allow_abbrev=False
    )
    where = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_where(where)
    where.add_argument("-n", "--namespace", default="", help="only this namespace (default: all)")
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, text: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, parents=[where], help=text, description=text, allow_abbrev=False)

    listed = command("get", "List pods, the node, its events, or what pods use.")
    listed.add_argument("kind", choices=[*_KINDS, "top"], metavar="KIND", help="pods, node, events or top")
    listed.add_argument(
        "name", nargs="?", default="", help="only this one; of events, those about POD or KIND/NAME"
    )
    listed.add_argument(
        "-o", "--output", choices=["wide", "json", "yaml"], help="another form than the table"
    )
    listed.add_argument("-w", "--watch", action="store_true", help="print rows again as they change")
    listed.set_defaults(containers=False)
    described = command("describe", "Tell all about a pod or the node.")
    described.add_argument("kind", choices=[*_PODS, *_NODES], metavar="KIND", help="pod or node")
    described.add_argument(
        "name", nargs="?", default="", help="the pod's name, with or without the node's name at its end"
    )
    used = command("top", "Show what pods or the node use.")
    used.add_argument("kind", choices=[*_PODS, *_NODES], metavar="KIND", help="pods or node")
    used.add_argument("name", nargs="?", default="", help="only this one")
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


def _seconds(text: str) -> int:
    try:
        return seconds(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from exc
