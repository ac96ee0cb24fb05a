"""The simulated node in a cluster: an API server in memory, with pods, mirrors and bad days of its own."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import trio

from tests.kube.apiserver import APIServer
from tests.kube.door import SimulatedDoor
from tests.kube.store import Change, Refused, Selector, Store, copied
from tests.simulation.life import Life
from tests.simulation.world import IMAGE, NODE, PROBES, Node, Task
from trio_kubelet.api import v1
from trio_kubelet.api.containers import regular_containers
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.kube.client import KubeClient
from trio_kubelet.kube.errors import APIError, APIUnavailable
from trio_kubelet.kube.recovery import Recovery
from trio_kubelet.node_agent import NodeAgent
from trio_kubelet.podinfo.amounts import amounts, whole
from trio_kubelet.podinfo.restarts import ALWAYS, should_restart_after
from trio_kubelet.podinfo.updates import API_SOURCE, is_mirror
from trio_kubelet.pods.doors import NoCluster
from trio_kubelet.pods.manager import PodManager
from trio_kubelet.pods.mirrors import MirrorPods
from trio_kubelet.pods.refs import is_terminal_phase
from trio_kubelet.pods.status.conditions import DISRUPTION_TARGET
from trio_kubelet.pods.status.writer import StatusWriter
from trio_kubelet.sim.records import Container
from trio_kubelet.sources.apiserver import APISource
from trio_kubelet.sources.podconfig import PodConfig

HOST_IP = "192.0.2.2"
EPHEMERAL = "debugger"
OTHER_IMAGE = "localhost/busybox:2"


class Joined(NoCluster):
    """What its pods have of the cluster."""

    def __init__(self, mirrors: MirrorPods) -> None:
        self.mirrors = mirrors

    def host_ips(self) -> tuple[str, ...]:
        return (HOST_IP,)


class ClusterNode(Node):
    """A node whose agent also follows an API server. Pods of the API have names that begin with `api`."""

    def __init__(self, seed: int, base: Path) -> None:
        super().__init__(seed, base)
        self.server = APIServer(Store(self.clock, random.Random(f"{seed} of the store")), self.clock)
        self.store = self.server.store
        self.store.create("nodes", "", {"metadata": {"name": NODE}})
        self.store.on_change = self._watch_phases
        self.revived: list[str] = []

    def join(self, compose: Callable[..., NodeAgent], sources: PodConfig) -> tuple[NodeAgent, Sequence[Task]]:
        door = SimulatedDoor(self.server)
        client = KubeClient(door, 10.0)
        pods = PodManager()
        mirrors = MirrorPods(client, NODE, pods)
        agent = compose(pods=pods, cluster=Joined(mirrors))
        room, registry = agent.room, agent.registry
        may_run = room.workers.could_have_running_containers
        writer = StatusWriter(
            client=client,
            statuses=room.statuses,
            pods=room.pods,
            may_run=may_run,
            clock=self.clock,
            registry=registry,
        )
        source = APISource(door, NODE, sources.channel(API_SOURCE), rng=self.random)
        recovery = Recovery()
        for listener in (source.hurry, writer.hurry, mirrors.node_changed):
            recovery.back.listen(listener)
        known = trio.Event()
        known.set()
        heartbeats = partial(_heartbeats, KubeClient(recovery.through(door), 10.0))
        return agent, (writer.run, mirrors.run, heartbeats, partial(source.run, known))

    def exclusive(self, name: str) -> bool:
        return not name.startswith("api")

    # What is desired

    def create(
        self,
        name: str,
        containers: int,
        grace: int,
        restart: str,
        *,
        readiness: bool = False,
        before: Sequence[str] = (),
        script: str = "serve",
        deadline: int | None = None,
    ) -> None:
        """A pod of the API server; `readiness`: its containers have such a probe; `before`: what runs before
        them, "init" or "sidecar"; `script`: what they do; `deadline`: its active deadline, in seconds.
        """
        each: dict[str, Any] = {"image": IMAGE, "imagePullPolicy": "IfNotPresent"}
        kinds = {
            "init": {**each, "command": ["sleep", "2"]},
            "sidecar": {**each, "command": ["serve"], "restartPolicy": "Always"},
        }
        each["command"] = ["sh", "-c", script]
        if readiness:
            each["readinessProbe"] = msgspec.to_builtins(PROBES["readiness"])
        pod = {
            "metadata": {"name": name, "generation": 1},
            "spec": {
                "nodeName": NODE,
                "restartPolicy": restart,
                "terminationGracePeriodSeconds": grace,
                "enableServiceLinks": True,
                "securityContext": {},
                "activeDeadlineSeconds": deadline,
                "initContainers": [
                    {"name": f"{kind}{number}", **kinds[kind]} for number, kind in enumerate(before)
                ],
                "containers": [{"name": f"c{number}", **each} for number in range(containers)],
            },
        }
        self.store.create("pods", "default", pod)

    def on_server(self) -> list[v1.Pod]:
        """All pods the API server has, mirrors included."""
        return [msgspec.convert(tree, v1.Pod) for tree in self.store.list(Selector("pods"))]

    def api_pods(self) -> list[v1.Pod]:
        """Those that are no mirrors."""
        return [pod for pod in self.on_server() if not is_mirror(pod)]

    def change(self, name: str, change: Callable[[dict[str, Any]], None]) -> None:
        """Somebody edits the spec of a pod of the API server."""
        pod = copied(self.store.get("pods", "default", name))
        pod["metadata"]["generation"] += 1
        change(pod["spec"])
        patch = {"metadata": {"generation": pod["metadata"]["generation"]}, "spec": pod["spec"]}
        self.store.patch("pods", "default", name, patch, strategic=False)

    def desired_by_uid(self) -> dict[str, v1.Pod]:
        wanted = super().desired_by_uid()
        for pod in self.api_pods():
            if pod.metadata.deletion_timestamp is None and not is_terminal_phase(pod.status.phase):
                wanted[pod.metadata.uid] = pod
        return wanted

    # What is observed

    def _watch_phases(self, change: Change) -> None:
        if change.resource == "pods" and change.old is not None and change.new is not None:
            before, after = (tree["status"].get("phase", "") for tree in (change.old, change.new))
            if is_terminal_phase(before) and after != before:
                self.revived.append(f"{change.new['metadata']['name']}: {before}, then {after}")

    def may_end(self, container: Container) -> bool:
        """Of a pod that is not to run for ever, or a container that has another image by now."""
        pod = self.desired_by_uid()[self.uid_of(container)]
        images = {c.name: c.image for c in regular_containers(pod.spec)}
        name = container.config.metadata.name
        has_changed = images.get(name) not in (None, container.config.image.user_specified_image)
        return has_changed or pod.spec.restart_policy != ALWAYS

    def unmet(self) -> list[str]:
        """The directory of a pod that is over stays for as long as the API server has the pod; what ended for
        good does not run, and ephemeral containers may.
        """
        fine = {f"left of {uid}: dirs" for uid in self._over()}
        pods = self.desired_by_uid()
        for container in self.runtime.containers.values():
            uid, name = self.uid_of(container), container.config.metadata.name
            if (pod := pods.get(uid)) is None:
                continue
            if name.startswith(EPHEMERAL):
                fine.add(f"should not run: {(uid, name)}")
            for each in pod.spec.containers or ():
                ended = each.name == name and container.state == cri.CONTAINER_EXITED
                if ended and not should_restart_after(pod, each, container.exit_code):
                    fine.add(f"not running: {(uid, name)}")
        problems = [problem for problem in super().unmet() if problem not in fine]
        return problems + self._wrongly_limited(pods)

    def _wrongly_limited(self, pods: Mapping[str, v1.Pod]) -> list[str]:
        """Containers that have not what they ask for."""
        problems = []
        for container in self.running_containers():
            uid, name = self.uid_of(container), container.config.metadata.name
            for each in pods[uid].spec.containers or () if uid in pods else ():
                memory = whole(amounts(each.resources.limits).get("memory", 0))
                if each.name == name and container.config.linux.resources.memory_limit_in_bytes != memory:
                    problems.append(f"has not what it asks for: {(uid, name)}")
        return problems

    def told(self) -> list[str]:
        """Statuses of pods that are over, or may have containers that are, are looked at in `misreported`
        alone.
        """
        pods = self.api_pods()
        others = self._over() | {pod.metadata.uid for pod in pods if pod.spec.restart_policy != ALWAYS}
        return [problem for problem in super().told() if problem.partition(":")[0] not in others]

    def _over(self) -> set[str]:
        return {pod.metadata.uid for pod in self.api_pods() if is_terminal_phase(pod.status.phase)}

    def misreported(self) -> list[str]:
        """How the API server's picture differs from what the agent knows."""
        if self.agent is None:
            return ["no agent"]
        room, problems = self.agent.room, list(self.revived)
        static = {pod.metadata.name: pod for pod in self.desired.values()}
        mirrors = {pod.metadata.name: pod for pod in self.on_server() if is_mirror(pod)}
        problems += [f"mirror missing or too many: {name}" for name in static.keys() ^ mirrors.keys()]
        shown = [(pod.metadata.uid, pod) for pod in self.api_pods()]
        shown += [(static[name].metadata.uid, mirror) for name, mirror in mirrors.items() if name in static]
        for uid, pod in shown:
            name = pod.metadata.name
            if pod.metadata.deletion_timestamp is not None:
                problems.append(f"deleted and still there: {name}")
            said = room.statuses.get(uid)
            if said is None or _own(said) != _own(pod.status):
                problems.append(f"status of {name}: {pod.status}, but was said: {said}")
        for request in self.server.requests:
            if request.method == "DELETE" and b'"uid"' not in request.body:
                problems.append(f"deletion without a UID: {request.path}")
        return problems


async def _heartbeats(client: KubeClient) -> None:
    """Asks as often as a lease is renewed, but writes nothing."""
    while True:
        with contextlib.suppress(APIUnavailable, APIError):
            await client.get(f"/api/v1/nodes/{NODE}", v1.Node)
        await trio.sleep(7)


def _own(status: v1.PodStatus) -> v1.PodStatus:
    """What the node answers for; the store leaves an emptied list where a server has none. Of a disruption
    the moment counts at which it was written.
    """
    kept = [
        msgspec.structs.replace(c, last_transition_time="") if c.type == DISRUPTION_TARGET else c
        for c in status.conditions or ()
        if not c.type.startswith("example.com/")
    ]
    ips = (status.pod_ips or None, status.host_ips or None)
    conditions = sorted(kept, key=lambda c: c.type)
    return msgspec.structs.replace(status, conditions=conditions, pod_ips=ips[0], host_ips=ips[1])


class ClusterLife(Life):
    """A random life with pods of the API server and bad days of that server, too."""

    node: ClusterNode

    def __init__(self, seed: int, base: Path, *, seconds: float, faults: bool) -> None:
        super().__init__(seed, base, seconds=seconds, faults=faults, node=ClusterNode(seed, base))
        self.happenings += [
            (6, self._create),
            (4, self._delete_with_grace),
            (1, self._delete_by_force),
            (1, self._replace_by_force),
            (1, self._delete_mirror),
            (1, self._meddle),
            (1, self._server_goes),
            (1, self._watches_break),
            (2, self._resize),
            (1, self._debug),
            (1, self._change_image),
            (0.3, self._history_is_lost),
            (0.3, self._server_goes_back),
        ]

    @property
    def _names(self) -> list[str]:
        return sorted(pod.metadata.name for pod in self.node.api_pods())

    async def _create(self) -> None:
        await trio.lowlevel.checkpoint()
        name = f"api{self.random.randrange(12)}"
        if name not in self._names:
            restart = self.random.choice(("Always", "Always", "OnFailure", "Never"))
            ends = restart != "Always" and self.random.random() < 0.5
            code = self.random.choice((0, 3)) if restart == "Never" else 0
            self.node.create(
                name,
                self.random.randint(1, 3),
                self.random.choice((1, 2, 30)),
                restart,
                readiness=self.random.random() < 0.3,
                before=[kind for kind in ("sidecar", "init") if self.random.random() < 0.2],
                script=f"sleep {self.random.choice((0, 5, 20))}; exit {code}" if ends else "serve",
                deadline=self.random.choice((None, None, 30)) if restart != "Always" else None,
            )

    async def _delete(self, **options: Any) -> str:
        await trio.lowlevel.checkpoint()
        if not self._names:
            return ""
        name = self.random.choice(self._names)
        self.node.store.delete("pods", "default", name, options)
        return name

    async def _delete_with_grace(self) -> None:
        """With that of the pod, or less; one that is being deleted has less of it then."""
        await self._delete(**self.random.choice(({}, {"gracePeriodSeconds": 1})))

    async def _delete_by_force(self) -> None:
        await self._delete(gracePeriodSeconds=0)

    async def _replace_by_force(self) -> None:
        if name := await self._delete(gracePeriodSeconds=0):
            self.node.create(name, 1, 2, "Always")

    async def _change(self, change: Callable[[dict[str, Any]], None]) -> None:
        await trio.lowlevel.checkpoint()
        pods = [pod for pod in self.node.api_pods() if pod.metadata.deletion_timestamp is None]
        if names := sorted(pod.metadata.name for pod in pods):
            self.node.change(self.random.choice(names), change)

    async def _resize(self) -> None:
        amounts = {
            "cpu": self.random.choice(("100m", "200m")),
            "memory": self.random.choice(("64Mi", "65Mi")),
        }

        def resize(spec: dict[str, Any]) -> None:
            for container in spec["containers"]:
                container["resources"] = {"requests": amounts, "limits": amounts}

        await self._change(resize)

    async def _debug(self) -> None:
        def debug(spec: dict[str, Any]) -> None:
            there = spec.setdefault("ephemeralContainers", [])
            what = {"image": IMAGE, "imagePullPolicy": "IfNotPresent", "command": ["serve"]}
            there.append({"name": f"{EPHEMERAL}{len(there)}", **what})

        await self._change(debug)

    async def _change_image(self) -> None:
        def change(spec: dict[str, Any]) -> None:
            self.random.choice(spec["containers"])["image"] = self.random.choice((IMAGE, OTHER_IMAGE))

        await self._change(change)

    async def _delete_mirror(self) -> None:
        await trio.lowlevel.checkpoint()
        mirrors = sorted(pod.metadata.name for pod in self.node.on_server() if is_mirror(pod))
        if mirrors:
            options = self.random.choice(({}, {"gracePeriodSeconds": 0}))
            self.node.store.delete("pods", "default", self.random.choice(mirrors), options)

    async def _meddle(self) -> None:
        """Somebody else writes into a status; what is theirs has to stay, the rest is put right."""
        await trio.lowlevel.checkpoint()
        if self._names:
            kind = self.random.choice(("Ready", "example.com/x"))
            theirs = [{"type": kind, "status": "False", "reason": "Meddled"}]
            name = self.random.choice(self._names)
            self.node.store.set_status("pods", "default", name, conditions=theirs)

    async def _server_goes(self) -> None:
        """For a while it is away, silent, slow, loses its answers, or refuses half of what is asked."""
        await trio.lowlevel.checkpoint()
        self.calm_server()
        server = self.node.server
        match self.random.choice(("down", "silent", "slow", "lose", "refuse")):
            case "down":
                server.down = True
                server.break_watches()
            case "silent":
                server.silent = True
            case "slow":
                server.latency = 12.0
            case "lose":
                server.lose_answers = True
            case "refuse":
                codes = (403, 404, 409, 429, 500, 503)

                def refuse(request: object) -> Refused | None:
                    code = self.random.choice(codes)
                    return Refused(code, "Fault", "a bad day") if self.random.random() < 0.5 else None

                server.refuse = refuse
        assert self.nursery is not None
        self.nursery.start_soon(self._server_comes_back, self.random.uniform(1, 120))

    async def _server_comes_back(self, seconds: float) -> None:
        await trio.sleep(seconds)
        self.calm_server()

    async def _watches_break(self) -> None:
        await trio.lowlevel.checkpoint()
        self.random.choice((self.node.server.break_watches, self.node.server.end_watches))()

    async def _history_is_lost(self) -> None:
        """Watches cannot go on where they were."""
        await trio.lowlevel.checkpoint()
        self.node.store.compact()
        self.node.server.break_watches()

    async def _server_goes_back(self) -> None:
        """To a backup from before what happens now. Pods that were deleted since then are there again."""
        backup = self.node.store.backup()
        self.node.store.advance(1000)  # others write, too
        for _ in range(self.random.randint(1, 4)):
            await trio.sleep(self.random.expovariate(1 / 5))
            await self.random.choice((self._create, self._delete_with_grace, self._replace_by_force))()
        self.watcher.excused.update(self.node.runtime.containers)
        self.node.store.restore(backup)
        self.node.server.break_watches()

    def calm_server(self) -> None:
        server = self.node.server
        server.down = server.silent = server.lose_answers = False
        server.latency = 0.0
        server.refuse = lambda request: None

    def calm(self) -> None:
        super().calm()
        self.calm_server()

    def problems(self) -> list[str]:
        return super().problems() + self.node.misreported()
