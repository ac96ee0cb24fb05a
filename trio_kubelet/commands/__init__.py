"""`trio-kubelet get pods` and `trio-kubelet describe pod NAME`: what this node's agent knows, and why.

Both ask the running agent over its local socket, which only its user may open. They read like kubectl's; what
kubectl cannot show is the end of `describe`: each decision of the agent about the pod with time and cause.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence

from trio_kubelet.commands.client import SOCKET_NAME, AgentUnreachable, ask
from trio_kubelet.commands.render import Json, SeveralPods, describe_pod, find_pod, pod_table

WATCH_PERIOD = 1.0


def main(argv: Sequence[str]) -> int:
    """Runs `get …` or `describe …`; returns the exit code."""
    options = _parser().parse_args(argv)
    socket_path = options.socket or os.path.join(options.root_dir, SOCKET_NAME)
    try:
        if options.command == "get":
            return _get(options, socket_path)
        return _describe(options, socket_path)
    except (AgentUnreachable, SeveralPods) as exc:
        print(f"trio-kubelet: {exc}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="trio-kubelet", description="Ask the agent of this node.", allow_abbrev=False
    )
    where = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    where.add_argument(
        "--root-dir", default="/var/lib/kubelet", help="the agent's --root-dir (default %(default)s)"
    )
    where.add_argument("--socket", help=f"the agent's socket (default {SOCKET_NAME} in the root directory)")
    where.add_argument("-n", "--namespace", default="", help="only this namespace (default: all)")
    commands = parser.add_subparsers(dest="command", required=True)
    get = commands.add_parser("get", parents=[where], help="list pods", allow_abbrev=False)
    get.add_argument("kind", choices=["pods", "pod", "po"], help="what to list")
    get.add_argument("name", nargs="?", default="", help="only this pod")
    get.add_argument("-o", "--output", choices=["wide", "json", "yaml"], help="another form than the table")
    get.add_argument("-w", "--watch", action="store_true", help="print rows again as they change")
    describe = commands.add_parser(
        "describe", parents=[where], help="tell all about a pod", allow_abbrev=False
    )
    describe.add_argument("kind", choices=["pod", "pods", "po"], help="what to describe")
    describe.add_argument("name", help="the pod's name, with or without the node's name at its end")
    return parser


def _pods(options: argparse.Namespace, socket_path: str) -> list[Json]:
    items = json.loads(ask(socket_path, "/pods"))["items"] or []
    if options.namespace:
        items = [pod for pod in items if pod["metadata"].get("namespace") == options.namespace]
    return sorted(items, key=lambda pod: (pod["metadata"].get("namespace", ""), pod["metadata"]["name"]))


def _get(options: argparse.Namespace, socket_path: str) -> int:
    shown: Sequence[Json | None] = []
    while True:
        pods = _pods(options, socket_path)
        if options.name:
            found = find_pod(pods, options.name)
            pods = [found] if found is not None else []
            if found is None and not options.watch:
                print(f"trio-kubelet: there is no pod {options.name!r} on this node", file=sys.stderr)
                return 1
        if not pods and not options.watch and options.output not in ("json", "yaml"):
            print("No pods on this node.", file=sys.stderr)
            return 0
        parts = _parts(options, pods)
        changed = [text for about, text in parts if about not in shown]
        if changed:
            print("\n".join(changed), flush=True)
        if not options.watch:
            return 0
        shown = [about for about, _ in parts]
        time.sleep(WATCH_PERIOD)


def _parts(options: argparse.Namespace, pods: Sequence[Json]) -> list[tuple[Json | None, str]]:
    """What is printed, in parts that are printed again when the pod they are about has changed."""
    form = options.output
    if form not in ("json", "yaml"):
        lines = pod_table(pods, time.time_ns(), wide=form == "wide")
        return list(zip([None, *pods], lines, strict=True))
    if not options.watch:
        return [(None, _document({"apiVersion": "v1", "kind": "PodList", "items": list(pods)}, form))]
    separator = "---\n" if form == "yaml" else ""
    return [(pod, separator + _document({"apiVersion": "v1", "kind": "Pod", **pod}, form)) for pod in pods]


def _document(content: Json, form: str) -> str:
    if form == "json":
        return json.dumps(content, indent=4)
    import yaml

    text: str = yaml.safe_dump(content, sort_keys=False)
    return text.rstrip()


def _describe(options: argparse.Namespace, socket_path: str) -> int:
    found = find_pod(_pods(options, socket_path), options.name)
    if found is None:
        print(f"trio-kubelet: there is no pod {options.name!r} on this node", file=sys.stderr)
        return 1
    story = json.loads(ask(socket_path, f"/debug/story/{found['metadata']['uid']}"))
    print("\n".join(describe_pod(found, story, time.time_ns())))
    return 0
