"""Writes a simulated container's output as a CRI log: `2024-05-01T10:00:00.000000000Z stdout F text`."""

from __future__ import annotations

import contextlib
import datetime
import pathlib
from typing import Final

from trio_kubelet.sim.records import Container

_NS: Final = 1_000_000_000


def log_time(at_ns: int) -> str:
    """RFC 3339 with nanoseconds, in UTC."""
    seconds, rest = divmod(at_ns, _NS)
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"


def write(container: Container, until_ns: int) -> None:
    """Appends what the container has written by `until_ns` and is not in the log yet.

    The file appears with the first call after the start, if its directory exists. A disk that does not take
    it changes nothing for the container, which is not real either.
    """
    path = pathlib.Path(container.log_path)
    if not container.log_path or not container.started_ns or not path.parent.is_dir():
        return
    lines = []
    for seconds, text in container.behaviour.output[container.written :]:
        at_ns = container.started_ns + round(seconds * _NS)
        if at_ns > until_ns:
            break
        lines.append(f"{log_time(at_ns)} stdout F {text}\n")
    with contextlib.suppress(OSError), path.open("a", encoding="utf-8") as file:
        file.writelines(lines)
        container.written += len(lines)
