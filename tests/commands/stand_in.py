"""What the commands are tested against: a socket that answers as the agent does."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from tests.commands.test_render import NOW, POD, SECOND, STORY
from trio_kubelet.commands.main import main

PODS = [POD]
"""What it knows."""
OTHER = {**POD, "metadata": {"name": "db", "namespace": "other", "uid": "u2", "labels": {"app": "db"}}}
REFUSED = ""
"""What it answers with an error."""
ASKED: list[str] = []
"""What the agent was asked for."""
EVENTS: list[dict[str, Any]] = []


def an_event(number: int, **fields: object) -> dict[str, object]:
    event = {"type": "Normal", "reason": "Pulled", "message": "here"}
    about = {"kind": "Pod", "name": "web-node1", "namespace": "default", "uid": "u1"}
    times = {"firstNs": NOW - 600 * SECOND, "lastNs": NOW - 5 * SECOND, "count": 1, "number": number}
    return {**event, **about, "fieldPath": "spec.containers{c}", **times, **fields}


NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "node1", "labels": {"node-role.kubernetes.io/worker": "", "a": "b"}},
    "spec": {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]},
    "status": {
        "capacity": {"cpu": "4", "memory": "8Gi"},
        "allocatable": {"cpu": "2", "memory": "4Gi"},
        "conditions": [
            {"type": "MemoryPressure", "status": "False", "reason": "KubeletHasSufficientMemory"},
            {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "posting ready"},
        ],
        "addresses": [
            {"type": "InternalIP", "address": "10.0.0.1"},
            {"type": "Hostname", "address": "node1"},
        ],
        "nodeInfo": {
            "kubeletVersion": "v1.36.2",
            "osImage": "Debian",
            "kernelVersion": "6.1",
            "architecture": "amd64",
            "containerRuntimeVersion": "containerd://1.7",
        },
    },
}
SUMMARY = {
    "node": {"cpu": {"usageNanoCores": 500_000_001}, "memory": {"workingSetBytes": 1 << 30}},
    "pods": [
        {
            "podRef": {"name": "web-node1", "namespace": "default"},
            "cpu": {"usageNanoCores": 12_000_000},
            "memory": {"workingSetBytes": 34 << 20},
            "containers": [{"name": "c", "cpu": {"usageNanoCores": 0}, "memory": {}}],
        }
    ],
}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        after = int(query.removeprefix("after=")) if path == "/debug/events" else 0
        answers = {
            "/pods": {"kind": "PodList", "items": PODS},
            "/debug/story/u1": STORY,
            "/debug/story/u2": [],
            "/debug/events": [event for event in EVENTS if event["number"] > after],
            "/debug/node": NODE,
            "/stats/summary": SUMMARY,
            "/page/": "",
        }
        ASKED.append(self.path)
        if path == REFUSED:
            self.send_response(400)
            self.send_header("Content-Length", "16")
            self.end_headers()
            self.wfile.write(b"waiting to start")
            return
        if path.startswith("/containerLogs/"):
            body = b"a line\n\xff\x1b[31m"
        else:
            body = json.dumps(answers[path]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "local"

    def log_message(self, format: str, *args: object) -> None: ...


def run(agent: Path, *argv: str) -> int:
    return main([*argv, "--root-dir", str(agent)])
