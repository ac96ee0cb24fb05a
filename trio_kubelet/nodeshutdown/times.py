"""When the last shutdown of the node began and ended: a file of the kubelet's, and its metrics."""

from __future__ import annotations

import os
from typing import Final

import msgspec
from prometheus_client import CollectorRegistry

from trio_kubelet.api.timestamps import ZERO_TIME, parse_rfc3339, rfc3339_nano
from trio_kubelet.common.clock import NANOSECONDS, Clock
from trio_kubelet.common.deep_json import decode_flat
from trio_kubelet.common.lanes import NODE_FILES
from trio_kubelet.common.log import get_logger
from trio_kubelet.common.metrics import MetricMaker
from trio_kubelet.common.small_files import replace_small

log = get_logger(__name__)

STATE_FILE: Final = "graceful_node_shutdown_state"


class ShutdownState(msgspec.Struct, frozen=True, rename="camel"):
    """The file `graceful_node_shutdown_state`: when the last shutdown began and ended (RFC 3339)."""

    start_time: str = ZERO_TIME
    end_time: str = ZERO_TIME

    @property
    def has_begun(self) -> bool:
        """Whether there is a beginning."""
        return self.start_time != ZERO_TIME

    @property
    def has_ended(self) -> bool:
        """Whether it came to its end."""
        return self.end_time != ZERO_TIME


class ShutdownTimes:
    """When the last shutdown began and ended, in a file and in metrics. A file that cannot be written keeps
    no pod from its end.
    """

    def __init__(self, root_dir: str, clock: Clock, registry: CollectorRegistry) -> None:
        make = MetricMaker(registry)
        self._root_dir = root_dir
        self._clock = clock
        self._began = make.gauge(
            "kubelet_graceful_shutdown_start_time_seconds",
            "When the last graceful shutdown began, in seconds since the epoch.",
        )
        self._ended = make.gauge(
            "kubelet_graceful_shutdown_end_time_seconds",
            "When the last graceful shutdown ended, in seconds since the epoch.",
        )
        self._state = ShutdownState()

    async def load(self) -> None:
        """Takes up what the last shutdown left."""
        try:
            self._state = await NODE_FILES.run(load_state, self._root_dir)
            self._show()
        except (OSError, ValueError) as error:
            log.error("Failed to load graceful shutdown state", err=error)

    async def begin(self) -> None:
        """A shutdown begins."""
        await self._store(ShutdownState(rfc3339_nano(self._clock.now_ns())))

    async def end(self) -> None:
        """It came to its end."""
        await self._store(ShutdownState(self._state.start_time, rfc3339_nano(self._clock.now_ns())))

    async def _store(self, state: ShutdownState) -> None:
        self._state = state
        self._show()
        try:
            await NODE_FILES.run(store_state, self._root_dir, state)
        except OSError as error:
            log.error("Failed to store graceful shutdown state", err=error)

    def _show(self) -> None:
        state = self._state
        self._began.set(parse_rfc3339(state.start_time) // NANOSECONDS if state.has_begun else 0)
        self._ended.set(parse_rfc3339(state.end_time) // NANOSECONDS if state.has_ended else 0)


def load_state(root_dir: str) -> ShutdownState:
    """When the last shutdown began and ended, for the metrics after the boot; nothing if there was none.
    Blocking. Raises OSError and ValueError.
    """
    try:
        with open(os.path.join(root_dir, STATE_FILE), "rb") as file:
            return decode_flat(file.read(4096), ShutdownState)
    except FileNotFoundError:
        return ShutdownState()


def store_state(root_dir: str, state: ShutdownState) -> None:
    """Writes the file, whole or not at all. Blocking. Raises OSError."""
    replace_small(os.path.join(root_dir, STATE_FILE), msgspec.json.encode(state), mode=0o644)
