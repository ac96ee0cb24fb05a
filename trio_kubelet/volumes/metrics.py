"""The metrics of volumes, by the kubelet's names; dashboards show them by plugin."""

from __future__ import annotations

from collections import Counter as Count
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from time import perf_counter

from prometheus_client import CollectorRegistry

from trio_kubelet.common.metrics import MetricMaker

MOUNT, UNMOUNT = "volume_mount", "volume_unmount"
_VERIFY = "verify_controller_attached_volume"
_GIVE = "volume_apply_access_control"
_ACTUAL, _DESIRED = "actual_state_of_world", "desired_state_of_world"
BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600)


class VolumeMetrics:
    """How many volumes there are, and how long work on them takes.

    The agent's own volumes are brought in line at once, so one counts as desired from the moment it is set
    up; one that cannot be set up shows in the durations, as `fail-unknown`. Those made of files are measured
    in each round of their pod, the others once.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._plugins: dict[str, list[Callable[[], Iterable[str]]]] = {_ACTUAL: [], _DESIRED: []}
        make = MetricMaker(registry)
        self._duration = make.histogram(
            "storage_operation_duration_seconds",
            "Time it took to make or remove a volume.",
            ["volume_plugin", "operation_name", "status", "migrated"],
            buckets=BUCKETS,
        )
        self._whole = make.histogram(
            "volume_operation_total_seconds",
            "Time from when a volume was wanted until it was there.",
            ["plugin_name", "operation_name"],
            buckets=BUCKETS,
        )
        make.counted(
            "volume_manager_total_volumes", "Volumes of pods.", ["plugin_name", "state"], self._volumes
        )

    def attached(self, plugin: str, migrated: bool = False) -> None:
        """A volume that no agent attaches may be set up. To a kubelet that is an operation, for volumes that
        need no attaching, too; here it is no work.
        """
        self._duration.labels(plugin, _VERIFY, "success", str(migrated).lower()).observe(0)

    def mounted(self, plugin: str, seconds: float) -> None:
        """A volume is there, so many seconds after it was wanted."""
        self._whole.labels(plugin, "overall_volume_mount").observe(seconds)

    def count(
        self, actual: Callable[[], Iterable[str]], desired: Callable[[], Iterable[str]] | None = None
    ) -> None:
        """One more who knows the plugins of volumes: of those there are, and of those wanted."""
        self._plugins[_ACTUAL].append(actual)
        self._plugins[_DESIRED].append(desired or actual)

    @contextmanager
    def timed(self, operation: str, plugin: str, migrated: bool = False) -> Iterator[None]:
        """Measures the block. For any thread."""
        outcome = "fail-unknown"
        began = perf_counter()
        try:
            yield
            outcome = "success"
        finally:
            self._duration.labels(plugin, operation, outcome, str(migrated).lower()).observe(
                perf_counter() - began
            )

    def giving(self, plugin: str) -> AbstractContextManager[None]:
        """Measures giving the files of a volume to a group. For any thread."""
        return self.timed(_GIVE, plugin)

    def _volumes(self) -> dict[tuple[str, ...], float]:
        found = Count(
            (plugin, state)
            for state, sources in self._plugins.items()
            for source in sources
            for plugin in source()
        )
        return dict(sorted(found.items()))
