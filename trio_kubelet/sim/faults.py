"""Faults for the simulated runtime, by script or by seed.

A script is a list of `Fault` values (or the same as JSON objects with these field names): which calls, from
which one on and how many, with which probability, and what happens to them. A seed makes a script of its own.
The decisions come from a seeded generator, so the same calls meet the same faults.
"""

from __future__ import annotations

import enum
import fnmatch
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from trio_kubelet.grpc.errors import Code


class Kind(enum.Enum):
    """What a fault does."""

    SLOW = "slow"
    """The call takes `seconds` longer, half of them once it is executed: its answer is old."""
    HANG = "hang"
    """The call is not executed and never answered."""
    FAIL = "fail"
    """The call is not executed and answered with `code` and `message`."""
    AMBIGUOUS = "ambiguous"
    """The call is executed and then answered with `code` and `message`."""
    HUGE = "huge"
    """A list answer is padded by `size` bytes in a field that CRI does not define, which readers skip."""
    RESTART = "restart"
    """The runtime goes away at this call and is back after `seconds`, with its state or (`lose`) without."""
    DROP = "drop"
    """An event is lost. For this and the following kinds `method` is GetContainerEvents."""
    DOUBLE = "double"
    """An event comes twice."""
    REORDER = "reorder"
    """An event comes after the next one."""
    LATE = "late"
    """An event comes `seconds` later."""
    END = "end"
    """The event stream ends with `code` (OK: in order)."""


EVENT_KINDS: Final = frozenset({Kind.DROP, Kind.DOUBLE, Kind.REORDER, Kind.LATE, Kind.END})
EVENTS: Final = "GetContainerEvents"


@dataclass(frozen=True, slots=True)
class Fault:
    """One line of a script. `method` may hold wildcards; the first `skip` matching calls pass unharmed.

    A streaming list counts as a call of its unary twin.
    """

    kind: Kind
    method: str = "*"
    probability: float = 1.0
    skip: int = 0
    count: int | None = None
    seconds: float = 0.0
    code: str = "UNKNOWN"
    message: str = "injected fault"
    size: int = 0
    lose: bool = False

    @property
    def status(self) -> Code:
        """The status code that `code` names."""
        return Code[self.code]


@dataclass
class Faults:
    """Decides which fault a call or an event meets. A script may be changed while it runs, with `add`,
    `clear`.
    """

    script: list[Fault] = field(default_factory=list)
    seed: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._seen: dict[int, int] = {}
        self._done: dict[int, int] = {}

    def add(self, *faults: Fault) -> None:
        """More faults, with counts of their own."""
        self.script.extend(faults)

    def clear(self) -> None:
        """No more faults."""
        self.script.clear()
        self._seen.clear()
        self._done.clear()

    def for_call(self, method: str) -> Fault | None:
        """The fault that a call of this method meets, if any."""
        return self._next(method, lambda kind: kind not in EVENT_KINDS)

    def for_event(self) -> Fault | None:
        """The fault that an event meets, if any."""
        return self._next(EVENTS, lambda kind: kind in EVENT_KINDS)

    def _next(self, method: str, fits: Callable[[Kind], bool]) -> Fault | None:
        for index, fault in enumerate(self.script):
            if not (fits(fault.kind) and fnmatch.fnmatchcase(method, fault.method)):
                continue
            self._seen[index] = seen = self._seen.get(index, 0) + 1
            if seen <= fault.skip or (fault.count is not None and self._done.get(index, 0) >= fault.count):
                continue
            if fault.probability < 1.0 and self._random.random() >= fault.probability:
                continue
            self._done[index] = self._done.get(index, 0) + 1
            return fault
        return None


def parse_script(text: bytes | str) -> list[Fault]:
    """A script from JSON; raises ValueError that names the place and the reason."""
    try:
        script = msgspec.json.decode(text, type=list[Fault])
    except msgspec.DecodeError as exc:
        raise ValueError(f"fault script: {exc}") from exc
    for number, fault in enumerate(script):
        if fault.code not in Code.__members__:
            raise ValueError(f"fault script: fault {number}: no such code: {fault.code}")
    return script


_READS: Final = (
    "ListContainers",
    "ListPodSandbox",
    "ContainerStatus",
    "PodSandboxStatus",
    "Status",
    "ImageStatus",
)
_WRITES: Final = (
    "RunPodSandbox",
    "StopPodSandbox",
    "RemovePodSandbox",
    "CreateContainer",
    "StartContainer",
    "StopContainer",
    "RemoveContainer",
    "PullImage",
)


def random_script(seed: int, share: float = 0.03) -> list[Fault]:
    """A bad day: each kind of fault with a probability of about `share`, which kinds and where up to the
    seed.
    """
    rng = random.Random(seed)

    def some(methods: Sequence[str], kinds: Iterable[Kind], **extra: Any) -> list[Fault]:
        return [
            Fault(kind, method, rng.uniform(0, 2 * share), **extra)
            for method in methods
            for kind in kinds
            if rng.random() < 0.5
        ]

    script = some(_READS + _WRITES, (Kind.SLOW,), seconds=rng.uniform(0.1, 20.0))
    script += some(_READS + _WRITES, (Kind.FAIL,), code=rng.choice(("UNKNOWN", "UNAVAILABLE", "INTERNAL")))
    script += some(
        _WRITES, (Kind.AMBIGUOUS,), code=rng.choice(("UNKNOWN", "DEADLINE_EXCEEDED", "UNAVAILABLE"))
    )
    script += some(_READS + _WRITES, (Kind.HANG,), count=rng.randint(1, 3))
    script += some((EVENTS,), (Kind.DROP, Kind.DOUBLE, Kind.REORDER))
    script += some((EVENTS,), (Kind.LATE,), seconds=rng.uniform(1.0, 60.0))
    script += some((EVENTS,), (Kind.END,), code=rng.choice(("OK", "UNAVAILABLE")))
    script += some(
        ("ListContainers",), (Kind.RESTART,), seconds=rng.uniform(0.5, 30.0), count=rng.randint(1, 3)
    )
    rng.shuffle(script)
    return script
