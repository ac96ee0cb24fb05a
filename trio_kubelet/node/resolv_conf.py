"""Tells when the node's resolv.conf has more than pods can have (kubelet: `CheckLimitsForResolvConf`)."""

from __future__ import annotations

from typing import Final

import trio

from trio_kubelet.common.go_words import os_words
from trio_kubelet.common.lanes import NODE_FILES
from trio_kubelet.common.log import get_logger
from trio_kubelet.common.trouble import Trouble
from trio_kubelet.podinfo.doors import NodeRecorderDoor
from trio_kubelet.runtime.configs.dns import node_problem, parse_resolv_conf

log = get_logger(__name__)

PERIOD: Final = 30.0
_LARGEST: Final = 1 << 20


class ResolvConfCheck:
    """Looks at the start and every half minute; a problem is told when it is new."""

    def __init__(self, path: str, cluster_domain: str, events: NodeRecorderDoor) -> None:
        self._path = path
        self._domain = cluster_domain
        self._events = events

    async def run(self) -> None:
        """Looks until cancelled."""
        trouble = Trouble()
        while True:
            problem = await self.problem()
            if trouble.is_new(problem) and problem:
                self._events.record_node("Warning", "CheckLimitsForResolvConf", problem)
                log.v(4).info("Check limits for resolv.conf failed", eventlog=problem)
            await trio.sleep(PERIOD)

    async def problem(self) -> str:
        """What is wrong now, "" if nothing is."""
        try:
            text = await NODE_FILES.run(_read, self._path)
            return node_problem(self._path, parse_resolv_conf(text), self._domain)
        except OSError as error:
            return f"open {self._path}: {os_words(error)}"
        except ValueError as error:
            return str(error)


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read(_LARGEST)
