"""What resources each pod was granted, kept in a file so that a restart judges pods by what they have.

The files are the kubelet's (`checkpoint.py`), so that either goes on with what the other has granted. The
second says what pods have of it: until a resize is made, what they had before. A kubelet that does not find
containers there takes them for others than wanted, and restarts those whose resize policy is
`RestartContainer`.

A pod's spec may ask for more than it was granted (KEP-1287, in-place resize); until that can be granted, it
counts, and runs, with what it has. The file is a hint like any checkpoint: without it, or with a damaged one,
pods are granted what their specs say.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence

import trio
from msgspec.structs import replace

from trio_kubelet.api.containers import regular_containers
from trio_kubelet.api.quantity import QuantityError, parse
from trio_kubelet.api.v1 import Container, Pod, ResourceRequirements
from trio_kubelet.common.go_words import error_words
from trio_kubelet.common.lanes import NODE_FILES
from trio_kubelet.common.log import get_logger
from trio_kubelet.common.state_file import read_state, replace_state
from trio_kubelet.common.trouble import Trouble
from trio_kubelet.podinfo.amounts import amount
from trio_kubelet.pods.resize.checkpoint import (
    ACTUATED,
    ALLOCATED,
    Allocation,
    AllocationFileError,
    decode,
    encode,
)

log = get_logger(__name__)


def allocation_of(pod: Pod) -> Allocation:
    """What the pod's spec asks for."""
    containers = regular_containers(pod.spec)
    return Allocation(containers={c.name: c.resources for c in containers}, pod_level=pod.spec.resources)


def with_allocation(pod: Pod, granted: Allocation | None) -> Pod:
    """The pod with the resources it was granted; the same object when they are those of its spec. Pure."""
    if (
        granted is None
        or granted == (asked := allocation_of(pod))
        or _canonical(granted) == _canonical(asked)
    ):
        return pod
    return _having(pod, granted)


def with_quantities(pod: Pod, before: Pod) -> Pod:
    """The pod; if it asks for what is no quantity, with the resources it asked for before. Pure."""
    asked, known = allocation_of(pod), allocation_of(before)
    if asked == known:
        return pod
    try:
        _canonical(asked)
    except QuantityError:
        return _having(pod, known)
    return pod


def _having(pod: Pod, granted: Allocation) -> Pod:
    """The pod with these resources; a container that is not among them keeps its own."""

    def each(containers: Sequence[Container] | None) -> list[Container] | None:
        if containers is None:
            return None
        return [replace(c, resources=granted.containers.get(c.name, c.resources)) for c in containers]

    spec = replace(
        pod.spec,
        containers=each(pod.spec.containers),
        init_containers=each(pod.spec.init_containers),
        resources=granted.pod_level,
    )
    return replace(pod, spec=spec)


def with_larger_requests(pod: Pod, other: Pod) -> Pod:
    """The pod with the larger requests of the two, which differ in nothing but resources: what it takes of
    the node until the one has become the other (KEP-1287). Pure.
    """

    def larger(one: ResourceRequirements, two: ResourceRequirements) -> ResourceRequirements:
        requests = dict(one.requests or {})
        for name, text in (two.requests or {}).items():
            if amount(text) > amount(requests.get(name, "")):
                requests[name] = text
        return replace(one, requests=requests)

    def each(ours: Sequence[Container] | None, its: Sequence[Container] | None) -> list[Container]:
        pairs = zip(ours or (), its or (), strict=True)
        return [replace(one, resources=larger(one.resources, two.resources)) for one, two in pairs]

    spec, its = pod.spec, other.spec
    whole = spec.resources
    changed = replace(
        spec,
        containers=each(spec.containers, its.containers),
        init_containers=each(spec.init_containers, its.init_containers),
        resources=whole if whole is None or its.resources is None else larger(whole, its.resources),
    )
    return replace(pod, spec=changed)


def with_limits_of_pod(allocation: Allocation) -> Allocation:
    """What is noted down as what the containers have: a limit that one lacks is its pod's (kubelet:
    `setActuatedContainerResources`). A kubelet that does not find it there takes the pod for one whose resize
    never ends. Pure.
    """
    limits = {} if allocation.pod_level is None else allocation.pod_level.limits or {}
    of_pod = {name: limits[name] for name in ("cpu", "memory") if amount(limits.get(name, ""))}
    if not of_pod:
        return allocation

    def effective(resources: ResourceRequirements) -> ResourceRequirements:
        own = resources.limits or {}
        lacking = {name: text for name, text in of_pod.items() if not amount(own.get(name, ""))}
        return replace(resources, limits={**own, **lacking})

    containers = {name: effective(resources) for name, resources in allocation.containers.items()}
    return replace(allocation, containers=containers)


def _canonical(allocation: Allocation) -> object:
    """Amounts of a kubelet's file are spelled as the API does, those of a manifest as they please."""

    def amounts(named: Mapping[str, str] | None) -> dict[str, str]:
        return {name: str(parse(text)) for name, text in (named or {}).items()}

    def of(resources: ResourceRequirements) -> object:
        return amounts(resources.requests), amounts(resources.limits), resources.claims or None

    whole = None if allocation.pod_level is None else of(allocation.pod_level)
    return whole, {name: of(resources) for name, resources in allocation.containers.items()}


class AllocationStore:
    """Allocations by pod UID; `run` writes them down.

    `pod_level`: the gate `InPlacePodLevelResourcesVerticalScaling`.
    """

    def __init__(self, directory: str, *, pod_level: bool = True) -> None:
        self._directory = directory
        self._noted = with_limits_of_pod if pod_level else lambda allocation: allocation
        self._granted: dict[str, Allocation] = {}
        self._actuated: dict[str, Allocation] = {}
        self._written: dict[str, bytes] = {}
        self._changed = trio.Event()

    def load(self) -> None:
        """Reads what an earlier agent, or a kubelet, wrote. Blocking; never raises."""
        self._granted = self._read(ALLOCATED)
        self._actuated = self._read(ACTUATED)
        # What is the same is one object: of such a pod no resize is looked for.
        for uid, granted in self._granted.items():
            if self._actuated.get(uid) in (granted, self._noted(granted)):
                self._actuated[uid] = granted

    def _read(self, name: str) -> dict[str, Allocation]:
        path = os.path.join(self._directory, name)
        try:
            content = read_state(path)
            return {} if content is None else decode(content)
        except (OSError, AllocationFileError) as exc:
            log.error("Cannot read what pods were granted, going by their specs", path=path, err=exc)
            return {}

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Writes after each change until cancelled; changes made meanwhile are written together. After a
        failure, which is said once, it is tried again.
        """
        task_status.started()
        trouble = Trouble()
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            actuated = {uid: self._noted(each) for uid, each in self._actuated.items()}
            contents = {ALLOCATED: encode(self._granted), ACTUATED: encode(actuated)}
            try:
                for name, content in contents.items():
                    if self._written.get(name) != content:
                        await NODE_FILES.run(replace_state, os.path.join(self._directory, name), content)
                        self._written[name] = content
                trouble.over()
            except OSError as exc:
                if trouble.is_new(why := error_words(exc)):
                    log.error("Cannot write down what pods were granted", directory=self._directory, err=why)
                await trio.sleep(10)
                self._changed.set()

    def get(self, uid: str) -> Allocation | None:
        """What the pod was granted."""
        return self._granted.get(uid)

    def grant(self, pod: Pod) -> None:
        """The pod gets what its spec asks for."""
        uid, granted = pod.metadata.uid, allocation_of(pod)
        if self._granted.get(uid) != granted:
            self._granted[uid] = granted
            self._actuated.setdefault(uid, granted)  # its containers are made with it
            self._changed.set()

    def outstanding(self, uid: str) -> Allocation | None:
        """What the pod has as long as that is not what it was granted; None if it is."""
        granted, actuated = self._granted.get(uid), self._actuated.get(uid)
        return None if granted is None or actuated is granted else actuated

    def actuated(self, uid: str) -> None:
        """The pod and its containers have what it was granted."""
        granted = self._granted.get(uid)
        if granted is not None and self._actuated.get(uid) != granted:
            self._actuated[uid] = granted
            self._changed.set()

    def forget(self, uid: str) -> None:
        """The pod is gone."""
        self._actuated.pop(uid, None)
        if self._granted.pop(uid, None) is not None:
            self._changed.set()

    def keep_only(self, uids: Collection[str]) -> None:
        """Forgets every pod that is not among `uids`."""
        for uid in (self._granted.keys() | self._actuated.keys()) - set(uids):
            self.forget(uid)
