"""`trio-kubelet page`: shows the page of this node's agent in a browser, through its local socket."""

from __future__ import annotations

import signal
from collections.abc import Sequence

import trio

from trio_kubelet.commands.client import AgentRefused, AgentUnreachable, add_where, ask, find_socket
from trio_kubelet.commands.output import complain
from trio_kubelet.common.arguments import Parser, said
from trio_kubelet.common.error_groups import leaves
from trio_kubelet.common.go_words import error_words
from trio_kubelet.server.pages.forward import page_port
from trio_kubelet.server.pages.node_page import ROOT


def main(argv: Sequence[str]) -> int:
    """Serves until SIGINT or SIGTERM; returns the exit code.

    Raises OSError when the address cannot be printed.
    """
    parser = Parser(
        prog="trio-kubelet page",
        description="Serves the page of this node's agent on a loopback port, for a browser on this machine.",
        allow_abbrev=False,
    )
    add_where(parser)
    port_help = "the loopback port (default: any that is free)"
    parser.add_argument("--port", type=said(_port), default=0, help=port_help)
    options = parser.parse_args(argv)
    try:
        path = find_socket(options.socket, options.root_dir)
        _find_page(path)
        trio.run(_serve, path, options.port)
    except (AgentUnreachable, OSError) as exc:
        complain(f"trio-kubelet: {error_words(exc)}")
        return 1
    except ExceptionGroup as group:
        raise next(iter(leaves(group))) from None
    return 0


def _find_page(socket_path: str) -> None:
    try:
        ask(socket_path, ROOT)
    except AgentRefused as exc:
        if exc.status != 404:
            raise
        raise AgentUnreachable("this agent has no page: it runs with --node-page=false") from exc


def _port(text: str) -> int:
    # Of a larger one the system takes the lower bits.
    if not (text.isascii() and text.isdecimal() and len(text) < 6 and int(text) < 1 << 16):
        raise ValueError(f"{text!r} is no port such as 8080")
    return int(text)


async def _serve(socket_path: str, port: int) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with page_port(socket_path, port) as address:
            print(address, flush=True)
            await anext(aiter(signals))
