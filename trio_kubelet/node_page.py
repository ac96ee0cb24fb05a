"""The page of the node over a real agent: what it shows of each pod, where that comes from, and the task
behind it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import trio

from trio_kubelet.api import v1
from trio_kubelet.api.containers import all_containers, regular_containers
from trio_kubelet.common.clock import NANOSECONDS, Clock
from trio_kubelet.common.lanes import CONTAINER_FILES, WorkHangs
from trio_kubelet.common.listeners import Listeners
from trio_kubelet.config.version import KUBELET_VERSION
from trio_kubelet.node_agent import NodeAgent
from trio_kubelet.nodepage.charts import Charts
from trio_kubelet.nodepage.doors import Detail, LogTail, Use
from trio_kubelet.nodepage.feed import Feed
from trio_kubelet.nodepage.rows import BACK_OFF, NAME, PodFacts, Pulling, Work, cut
from trio_kubelet.nodepage.shown import ShownPods
from trio_kubelet.observed.types import ContainerState
from trio_kubelet.podinfo.context import NodeContext
from trio_kubelet.podinfo.event_log import EventLog, LoggedEvent
from trio_kubelet.pods.worker_state import Stage
from trio_kubelet.server.logs.file import log_tail
from trio_kubelet.stats.pods import ContainerUse

_CONTAINER: Final = re.compile(r"spec\.\w+\{(.*)\}")
_PULLED: Final = ("Pulled", "Failed", "BackOff", "ErrImageNeverPull", "InspectFailed")
_MANIFEST_BYTES: Final = 512 * 1024
_MOMENT_NS: Final = NANOSECONDS // 2
_GONE: Final = (Stage.TERMINATED, Stage.FINISHED)


class AgentView:
    """Implements `NodeDoor` over an agent."""

    def __init__(
        self, agent: NodeAgent, *, context: Callable[[], NodeContext], use: ContainerUse, clock: Clock
    ) -> None:
        self._agent = agent
        self._room = agent.room
        self._context = context
        self._use = use
        self._clock = clock
        self._pulls: dict[str, dict[str, Pulling]] = {}
        self.pulling: Listeners[[str]] = Listeners()  # UIDs of pods of which a pull has begun or ended
        self._alive: dict[str, tuple[str, ...]] = {}  # by UID, ids of containers with a liveness probe
        # Moments of Trio's clock as wall time: always by the same difference, or they would seem to move.
        self._wall_ns = clock.now_ns() - round(trio.current_time() * NANOSECONDS)

    def uids(self) -> Sequence[str]:
        """The pods that are wanted, and those that still end."""
        wanted = {pod.metadata.uid for pod in self._room.pods.pods()}
        for uid, worker in self._room.workers.known().items():
            if worker.pod is not None and worker.stage not in _GONE:
                wanted.add(uid)
        for gone in (self._pulls.keys() | self._alive.keys()) - wanted:
            self._pulls.pop(gone, None)
            self._alive.pop(gone, None)
        return list(wanted)

    def stamp(self, uid: str) -> object:
        """What a row is made of, cheaply."""
        versioned = self._room.statuses.versioned(uid)
        outlook = self._room.workers.outlook(uid)
        version = versioned.version if versioned is not None else 0
        liveness = self._agent.probes.readings().liveness
        # Of the other probes a status tells.
        verdicts = tuple(liveness.get(number) for number in self._alive.get(uid, ()))
        round_at = outlook and (outlook.stage, outlook.last_error, outlook.holder)
        return version, self._pod(uid), round_at, self._pulls.get(uid), verdicts

    def rounds(self) -> Mapping[str, object]:
        """Steps of rounds that take longer than a moment."""
        return self._room.steps.lasting(_MOMENT_NS)

    def facts(self, uid: str) -> PodFacts | None:
        """What is known of the pod."""
        pod = self._pod(uid)
        if pod is None:
            return None
        status = self._room.statuses.get(uid) or pod.status
        self._alive[uid] = tuple(_with_liveness(pod, status))
        return PodFacts(
            pod=pod,
            status=status,
            work=self._work(uid),
            pulls=self._pulls.get(uid, {}),
            held=self._held(pod, status),
            verdicts=self._probes(),
        )

    def on_change(self, listener: Callable[[str], None]) -> None:
        """Statuses tell of most changes; of those that no status tells of, workers, probes and pulls."""
        room, probes = self._room, self._agent.probes
        for news in (room.statuses, room.workers, room.pods, probes):
            news.changed.listen(listener)
        self.pulling.listen(listener)

    def story(self, uid: str) -> object:
        """The decisions about a pod."""
        return [
            {
                "at": entry.at_ns // 1_000_000,
                "cause": entry.cause,
                "text": cut(entry.text),
                "count": entry.count,
            }
            for entry in self._room.story.entries(uid)
        ]

    def pod(self, uid: str) -> v1.Pod | None:
        """The pod as its source wants it."""
        return self._pod(uid)

    def detail(self, pod: v1.Pod) -> Detail:
        """The manifest, and the configs as `inspect` makes them: without values of secrets and config
        maps.
        """
        from trio_kubelet.inspect import inspect_pod  # heavy, and for readers of the page alone

        uid = pod.metadata.uid
        if len(msgspec.json.encode(pod)) > _MANIFEST_BYTES:
            return Detail(
                uid=uid, manifest=None, configs=None, notes=["the manifest is too long to be shown"]
            )
        made, notes = inspect_pod(pod, self._context(), self._clock.now_ns())
        manifest = {"apiVersion": "v1", "kind": "Pod", **made.pop("pod")}
        return Detail(uid=uid, manifest=manifest, configs=made, notes=notes)

    async def use(self, uids: Sequence[str]) -> dict[str, dict[str, Use]]:
        """What running containers of these pods use."""
        ids: dict[str, list[str]] = {}
        names: dict[str, tuple[str, str]] = {}
        for uid in uids:
            observed = self._agent.cache.get(uid)
            for container in observed.containers if observed is not None else ():
                if container.state is ContainerState.RUNNING:
                    ids.setdefault(uid, []).append(container.id)
                    names[container.id] = uid, container.name
        answer: dict[str, dict[str, Use]] = {}
        try:
            measured = await self._use.of(ids)
        except WorkHangs:
            return answer
        for number, (nanos, memory) in measured.items():
            if number in names:
                uid, name = names[number]
                cpu = None if nanos is None else nanos // 1_000_000
                answer.setdefault(uid, {})[name] = Use(cpu, memory)
        return answer

    async def log_tail(self, uid: str, container: str, previous: bool, before: LogTail | None) -> LogTail:
        """The end of a log. What is to be shown, of whichever run, is what was observed last."""
        observed = self._agent.cache.get(uid)
        seen = observed.containers_named(container) if observed is not None else ()
        runs = sorted(seen, key=lambda run: -run.created_at_ns)
        if previous:
            del runs[:1]
        if not runs or not runs[0].log_path:
            return LogTail("")
        try:
            return await CONTAINER_FILES.run(_log_tail, runs[0].log_path, before, owner=uid)
        except WorkHangs as exc:
            return LogTail(str(exc))

    def heard(self, event: LoggedEvent) -> None:
        """An event tells when a pull begins and ends."""
        found = _CONTAINER.match(event.field_path)
        if found is None:
            return
        uid, container = event.uid, found[1]
        if event.reason == "Pulling":
            pull = Pulling(event.message.partition('"')[2].rpartition('"')[0], event.last_ns)
            self._pulls[uid] = {**self._pulls.get(uid, {}), container: pull}
            self.pulling.tell(uid)
        elif event.reason in _PULLED and container in self._pulls.get(uid, {}):
            self._pulls[uid] = {k: v for k, v in self._pulls[uid].items() if k != container}
            self.pulling.tell(uid)

    def _pod(self, uid: str) -> v1.Pod | None:
        pod = self._room.pods.get(uid)
        if pod is None:
            worker = self._room.workers.get(uid)
            pod = worker.pod if worker is not None and worker.stage not in _GONE else None
        return pod

    def _held(self, pod: v1.Pod, status: v1.PodStatus) -> dict[str, int]:
        """When the back-offs of containers end."""
        held = {}
        containers = {container.name: container for container in regular_containers(pod.spec)}
        for one in (*(status.init_container_statuses or ()), *(status.container_statuses or ())):
            waiting = one.state.waiting
            if waiting is None or waiting.reason not in BACK_OFF or one.name not in containers:
                continue
            observed = self._agent.cache.get(pod.metadata.uid)
            dead = observed.container_status(one.name) if observed is not None else None
            died_ns = dead.finished_at_ns if dead is not None and waiting.reason == BACK_OFF[0] else 0
            held[one.name] = self._agent.runtime.held_until_ns(pod, containers[one.name], died_ns)
        return held

    def _probes(self) -> Mapping[str, Mapping[str, str]]:
        view, readings = self._agent.probes.view(), self._agent.probes.readings()
        return {"startup": view.startup, "readiness": view.readiness, "liveness": readings.liveness}

    def _work(self, uid: str) -> Work:
        outlook, step = self._room.workers.outlook(uid), self._room.steps.of(uid)
        if outlook is None:
            return Work()
        holder = self._pod(outlook.holder) if outlook.holder else None
        return Work(
            stage=outlook.stage.value,
            step=step.name if step is not None else "",
            step_ns=step.since_ns if step is not None else 0,
            next_ns=0 if outlook.due is None else self._wall_ns + round(outlook.due * NANOSECONDS),
            error=outlook.last_error,
            holder=f"{holder.metadata.namespace}/{holder.metadata.name}"
            if holder is not None
            else outlook.holder,
        )


def _log_tail(path: str, before: LogTail | None) -> LogTail:
    """A log that nothing was written to is not read again: many may look at it, more than once a second."""
    try:
        found = os.stat(path)
    except OSError:
        return LogTail(log_tail(path))
    stamp = path, found.st_ino, found.st_size, found.st_mtime_ns
    return before if before is not None and before.stamp == stamp else LogTail(log_tail(path), stamp)


def _with_liveness(pod: v1.Pod, status: v1.PodStatus) -> Iterator[str]:
    """Ids of the containers that have a liveness probe."""
    probed = {
        container.name for container in all_containers(pod.spec) if container.liveness_probe is not None
    }
    for one in (*(status.init_container_statuses or ()), *(status.container_statuses or ())):
        if one.name in probed:
            yield one.container_id.rpartition("://")[2]


def shown_event(event: LoggedEvent) -> dict[str, Any]:
    """An event as the page's list shows it."""
    found = _CONTAINER.match(event.field_path)
    return {
        "at": event.last_ns // 1_000_000,
        "count": event.count,
        "type": event.type,
        "reason": cut(event.reason),
        "message": cut(event.message),
        "uid": event.uid,
        "pod": f"{event.namespace}/{event.name}"[: 2 * NAME] if event.uid else "",
        "container": found[1] if found is not None else "",
    }


def page_feed(
    agent: NodeAgent,
    events: EventLog,
    *,
    context: Callable[[], NodeContext],
    use: ContainerUse,
    clock: Clock,
) -> Feed:
    """The feed of the page over an agent; `run` has to be started."""
    view = AgentView(agent, context=context, use=use, clock=clock)
    node = {"name": context().node_name, "version": KUBELET_VERSION, "runtime": agent.health.name}
    feed = Feed(node=view, shown=ShownPods(node), charts=Charts(agent.registry), clock=clock)

    def heard(event: LoggedEvent) -> None:
        view.heard(event)
        feed.event(shown_event(event))

    for event in events.entries():
        heard(event)
    events.changed.listen(heard)
    return feed
