"""The CPU manager: containers of Guaranteed pods that ask for whole CPUs have them to themselves.

A container is created with its CPUs; what the others share changes with each assignment, and they are told at
once, each `cpuManagerReconcilePeriod` at the latest. What of the configuration concerns it is `cpu_policy`.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec
import trio

from trio_kubelet.api import v1
from trio_kubelet.api.containers import regular_containers
from trio_kubelet.common.cpusets import NONE, CPUSet, cpus_text, parse_cpus
from trio_kubelet.common.each import ASIDE, LENT
from trio_kubelet.common.log import get_logger
from trio_kubelet.common.places import Places
from trio_kubelet.config.gates import FeatureGates
from trio_kubelet.config.load import ConfigurationError
from trio_kubelet.config.types import KubeletConfiguration
from trio_kubelet.cri.errors import CRIError
from trio_kubelet.placement.allocator import NO_POLICY
from trio_kubelet.placement.checkpoint import decode, encode
from trio_kubelet.placement.cpu_policy import CPUPolicy, reserved_cpus
from trio_kubelet.placement.cpu_state import CPUState
from trio_kubelet.placement.doors import CPUSetter, PlacementPods, Running
from trio_kubelet.placement.manager import PlacementManager
from trio_kubelet.placement.manager_file import cpu_state_file
from trio_kubelet.placement.merging import SINGLE_NUMA_NODE
from trio_kubelet.placement.metrics import AlignmentMetrics, CPUMetrics
from trio_kubelet.placement.settings import parse_bool, pod_level
from trio_kubelet.placement.taking import CPUPolicyOptions, NotEnoughCPUs
from trio_kubelet.placement.topology import Topology, cache_of, socket_of
from trio_kubelet.podinfo.amounts import UNIT, amount
from trio_kubelet.podinfo.pinned import PinnedCPUs

log = get_logger(__name__)

POLICY: Final = "static"
_AT_ONCE: Final = 16  # containers whose CPUs are set


class CPUManager(PlacementManager[CPUState, CPUSet]):
    """The policy `static` at work."""

    def __init__(
        self,
        *,
        policy: CPUPolicy,
        root_dir: str,
        period: float,
        pods: PlacementPods,
        setter: CPUSetter,
        metrics: CPUMetrics,
        alignment: AlignmentMetrics,
        pinned: PinnedCPUs,
    ) -> None:
        super().__init__(
            policy=policy,
            file=cpu_state_file(root_dir),
            pods=pods,
            metrics=metrics,
            nothing=CPUState(),
            none_left=NONE,
        )
        self._policy = policy
        self._period = period
        self._setter = setter
        self._metrics = metrics
        self._alignment = alignment
        self._pinned = pinned
        alignment.show_cpus()
        self._told: dict[str, str] = {}  # the CPUs of each running container, by id
        self._telling: set[str] = set()  # IDs of containers whose CPUs are being set
        self._places = Places(_AT_ONCE, lent=LENT, aside=ASIDE)
        self._changed = trio.Event()

    # Admission

    def _decode(self, content: bytes) -> CPUState:
        return decode(content, POLICY, self._policy.pod_level)

    def _encode(self) -> bytes:
        return encode(POLICY, self._state, self._policy.pod_level)

    def _gives(self, pod: v1.Pod, container: v1.Container) -> bool:
        rules = self._policy
        return bool(rules.exclusive_of_pod(pod) if rules.as_one(pod) else rules.exclusive(pod, container))

    def _alone(self, pod: v1.Pod, container: v1.Container) -> int:
        return 1 if self._policy.exclusive(pod, container) else 0

    def _tell(self) -> None:
        self._pinned.containers = self._state.assigned
        self._changed.set()
        self._metrics.show(self._policy, self._state)

    def _done(self, before: CPUState, pod: v1.Pod, container: v1.Container) -> None:
        uid = pod.metadata.uid
        whole = self._state.pods.get(uid)
        if whole is None and self._policy.options.full_pcpus_only:
            self._alignment.cores(whole=True)
        cpus = self._state.of(uid, container.name) or NONE if whole is None else whole
        if self._state != before and len(self._policy.topology.groups(cpus, cache_of)) == 1:
            self._alignment.cache()

    def _failed(self) -> None:
        if self._policy.options.full_pcpus_only:
            self._alignment.cores(whole=False)

    # What containers have

    def concerns(self, pod: v1.Pod) -> bool:
        """Whether a container of the pod is to have CPUs to itself."""
        return any(self._gives(pod, container) for container in regular_containers(pod.spec))

    def cpus_of(self, uid: str, container: str) -> str:
        """The CPUs a container is to run on: its own, or those that are shared."""
        own = self._state.of(uid, container)
        return cpus_text(self._state.shared if own is None else own)

    def exclusive(self, uid: str, container: str) -> CPUSet:
        """The CPUs a container has to itself."""
        return self._state.of(uid, container) or NONE

    def allocatable(self) -> CPUSet:
        """All CPUs that containers may have to themselves."""
        return self._policy.allocatable()

    async def run(self) -> None:
        """Keeps running containers on their CPUs: after each assignment, and each period."""
        async with trio.open_nursery() as nursery:
            while True:
                with trio.move_on_after(self._period):
                    await self._changed.wait()
                self._changed = trio.Event()
                await self.take_back()
                self._reconcile(nursery)

    def _reconcile(self, nursery: trio.Nursery) -> None:
        """Has every container told that runs on other CPUs, and waits for none."""
        running = list(self._pods.running())
        self._told = {each.id: self._told[each.id] for each in running if each.id in self._told}
        for each in running:
            wanted = self.cpus_of(each.uid, each.name)
            if wanted and self._told.get(each.id) != wanted and each.id not in self._telling:
                self._telling.add(each.id)
                nursery.start_soon(self._set, each, wanted)

    async def _set(self, running: Running, wanted: str) -> None:
        try:
            async with self._places:
                await self._setter.set_cpus(running.id, wanted)
        except CRIError as exc:
            log.error("Failed to update container", containerID=running.id, cpuSet=wanted, err=exc)
        else:
            self._told[running.id] = wanted
            if self.cpus_of(running.uid, running.name) != wanted:
                self._changed.set()
        finally:
            self._telling.discard(running.id)


STATIC: Final = "static"

_CPU_OPTIONS: Final = {
    "full-pcpus-only": "",
    "strict-cpu-reservation": "",
    "prefer-align-cpus-by-uncorecache": "",
    "distribute-cpus-across-numa": "Beta",
    "align-by-socket": "Alpha",
    "distribute-cpus-across-cores": "Alpha",
}
"""The options of the policy `static`, and the level whose gate they need."""
_EXCLUSIVE: Final = (
    ("full-pcpus-only", "distribute-cpus-across-cores"),
    ("distribute-cpus-across-numa", "distribute-cpus-across-cores"),
    ("prefer-align-cpus-by-uncorecache", "distribute-cpus-across-cores"),
    ("prefer-align-cpus-by-uncorecache", "distribute-cpus-across-numa"),
)


def cpu_policy(
    config: KubeletConfiguration, gates: FeatureGates, topology: Topology | None
) -> CPUPolicy | None:
    """The CPU manager's policy; None for `none`, which needs no `topology`. Raises ConfigurationError."""
    chosen = config.cpu_manager_policy or NO_POLICY
    if chosen == NO_POLICY:
        if config.cpu_manager_policy_options:
            given = sorted(config.cpu_manager_policy_options.items())
            shown = " ".join(f"{name}:{text}" for name, text in given)
            raise ConfigurationError(
                f"new none policy error: None policy: received unsupported options=map[{shown}]"
            )
        return None
    if chosen != STATIC:
        raise ConfigurationError(f'unknown policy: "{chosen}"')
    assert topology is not None
    options = _cpu_options(config, gates, topology)
    kept = sum(amount(each.get("cpu", "")) for each in (config.kube_reserved, config.system_reserved))
    named = parse_cpus(config.reserved_system_cpus)
    count = len(named) if named else math.ceil(kept / UNIT)
    if count == 0:  # a reservation of nothing is none
        raise ConfigurationError("[cpumanager] unable to determine reserved CPU resources for static policy")
    try:
        reserved = reserved_cpus(topology, count, named, options)
    except NotEnoughCPUs as exc:
        raise ConfigurationError(f"new static policy error: {exc}") from exc
    return CPUPolicy(topology, reserved, options, pod_level(config, gates))


def _cpu_options(config: KubeletConfiguration, gates: FeatureGates, topology: Topology) -> CPUPolicyOptions:
    values: dict[str, bool] = {}
    for name, text in config.cpu_manager_policy_options.items():
        level = _CPU_OPTIONS.get(name)
        if level is None:
            raise ConfigurationError(f'new static policy error: unknown CPU Manager Policy option: "{name}"')
        if level and not gates.enabled(f"CPUManagerPolicy{level}Options"):
            raise ConfigurationError(
                f"new static policy error: CPU Manager Policy {level}-level Options not enabled, "
                f'but option "{name}" provided'
            )
        try:
            values[name] = parse_bool(name, text)
        except ConfigurationError as exc:
            raise ConfigurationError(f"new static policy error: {exc}") from exc
    for one, other in _EXCLUSIVE:
        if values.get(one) and values.get(other):
            raise ConfigurationError(
                f"new static policy error: static policy options {one} and {other} "
                "can not be used at the same time"
            )
    if values.get("align-by-socket"):
        if config.topology_manager_policy == SINGLE_NUMA_NODE:
            raise ConfigurationError(
                f"new static policy error: Topolgy manager {SINGLE_NUMA_NODE} policy is incompatible with "
                "CPUManager align-by-socket policy option"
            )
        if len(topology.groups(topology.all(), socket_of)) > len(topology.numa_nodes()):
            raise ConfigurationError(
                "new static policy error: Align by socket is not compatible with hardware where number of "
                "sockets are more than number of NUMA"
            )
    return msgspec.convert({name.replace("-", "_"): on for name, on in values.items()}, CPUPolicyOptions)
