"""Pod lists, configz, health metrics and checkpoints: shapes and words of a kubelet."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from trio_kubelet.api import v1
from trio_kubelet.common.clock import TrioClock
from trio_kubelet.config.types import KubeletConfiguration
from trio_kubelet.cri.errors import CRIError, Unimplemented
from trio_kubelet.observed.types import ContainerState, ContainerStatus, PodStatus, SandboxStatus
from trio_kubelet.server.http.messages import Handler, Request, Response
from trio_kubelet.server.http.metrics import HealthCounts
from trio_kubelet.server.pages.checkpoint import Checkpoints
from trio_kubelet.server.pages.health import Check, answer_health
from trio_kubelet.server.pages.small import HealthMetrics, configz, pod_list, running_pods
from trio_kubelet.sources.apiserver import WatchedPod

REQUEST = Request(method="GET", path="/", target="/", query={}, headers=())
WHEN = 1_767_323_045 * 10**9


async def body_of(handler: Handler, request: Request = REQUEST) -> tuple[Response, bytes]:
    answer = await handler(request)
    assert isinstance(answer, Response)
    if isinstance(answer.body, bytes):
        return answer, answer.body
    assert isinstance(answer.body, AsyncIterator)
    return answer, b"".join([piece async for piece in answer.body])


def container(name: str, state: ContainerState, created: int = 1) -> ContainerStatus:
    return ContainerStatus(
        id=f"id-{name}-{created}",
        name=name,
        state=state,
        created_at_ns=created,
        image="i:1",
        image_id="sha256:1",
    )


def observed(uid: str, *containers: ContainerStatus, ready: bool = False) -> PodStatus:
    sandbox = SandboxStatus(
        id="s", name=uid, namespace="ns", uid=uid, attempt=0, ready=ready, created_at_ns=1
    )
    return PodStatus(uid=uid, name=f"pod-{uid}", namespace="ns", containers=containers, sandboxes=(sandbox,))


async def test_no_pods() -> None:
    _, body = await body_of(pod_list(list))
    assert body == b'{"kind":"PodList","apiVersion":"v1","metadata":{},"items":null}\n'


async def test_items_have_neither_kind_nor_version_but_their_managed_fields() -> None:
    """As of a Go client, which takes kind and version off what it reads."""
    data = (
        b'{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","namespace":"d","uid":"u",'
        b'"managedFields":[{"manager":"m","time":1}]},"spec":{"containers":[]}}'
    )
    pod = msgspec.json.decode(data, type=WatchedPod)
    annotated = replace(pod, metadata=replace(pod.metadata, annotations={"a": "b"}))
    static = v1.Pod(api_version="v1", kind="Pod", metadata=v1.ObjectMeta(name="s"))
    _, body = await body_of(pod_list(lambda: [annotated, static]))
    one, other = json.loads(body)["items"]
    assert one["metadata"]["managedFields"] == [{"manager": "m", "time": 1}]
    assert not {"kind", "apiVersion"} & (set(one) | set(other))
    assert "managedFields" not in other["metadata"]


@pytest.mark.parametrize("count", [1, 15, 16, 17, 100])
async def test_every_pod_is_listed_once_and_in_order(count: int) -> None:
    names = [f"pod-{number}" for number in range(count)]
    pods = [v1.Pod(metadata=v1.ObjectMeta(name=name)) for name in names]
    answer, body = await body_of(pod_list(lambda: pods))
    assert ("Content-Type", "application/json") in answer.headers
    assert [pod["metadata"]["name"] for pod in json.loads(body)["items"]] == names


def test_running_pods_are_those_of_which_something_runs() -> None:
    running, exited = ContainerState.RUNNING, ContainerState.EXITED
    statuses = [
        observed("a", container("x", running), container("y", exited)),
        observed("b", container("x", exited)),
        observed("c", ready=True),
    ]
    pods = running_pods(lambda: statuses)()
    assert [pod.metadata.uid for pod in pods] == ["a", "c"]
    assert pods[1].spec.containers is None  # of a sandbox only
    assert [(c.name, c.image) for c in pods[0].spec.containers or ()] == [("x", "sha256:1")]


async def test_configz_has_the_recorded_shape() -> None:
    recorded = json.loads((Path(__file__).parents[1] / "golden" / "configz-sample.json").read_text())
    _, body = await body_of(configz(KubeletConfiguration(), "/var/lib/kubelet/pki", "systemd"))
    shown = json.loads(body)
    assert list(shown) == ["kubeletconfig"]
    config, sample = shown["kubeletconfig"], recorded.get("kubeletconfig", recorded)
    for name in ("tlsCertFile", "tlsPrivateKeyFile", "volumePluginDir"):
        assert config[name] == sample[name]
    assert config["cgroupDriver"] == "systemd"  # the runtime's, whatever is configured
    common = [name for name in sample if name in config]
    assert common == [name for name in config if name in sample]  # Go's order of fields
    assert {name: type(config[name]) for name in common} == {name: type(sample[name]) for name in common}


async def test_health_metrics_count_what_was_asked() -> None:
    counts, broken = HealthCounts(), [False]
    health = HealthMetrics(CollectorRegistry(), counts)
    checks: dict[str, Check] = {"ping": lambda: None, "x": lambda: "down" if broken[0] else None}

    def ask(path: str, **query: list[str]) -> int:
        request = Request(method="GET", path=path, target=path, query=query, headers=())
        return answer_health(request, checks, counts).status

    assert (await body_of(health.page))[1] == b""
    assert ask("/healthz") == 200
    broken[0] = True
    assert ask("/healthz/x") == 500  # neither this one nor what is left out counts
    assert ask("/healthz/ping") == 200
    assert ask("/healthz", exclude=["ping"]) == 500
    lines = (await body_of(health.page))[1].decode().splitlines()
    assert [line for line in lines if not line.startswith("#")] == [
        'kubernetes_healthcheck{name="ping",type="healthz"} 1',
        'kubernetes_healthcheck{name="x",type="healthz"} 0',
        'kubernetes_healthchecks_total{name="ping",status="success",type="healthz"} 1',
        'kubernetes_healthchecks_total{name="x",status="error",type="healthz"} 1',
        'kubernetes_healthchecks_total{name="x",status="success",type="healthz"} 1',
    ]


class Surroundings:
    """A pod with a running container `c` and an init container that is over."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, int]] = []
        self.error: CRIError | None = None

    def get_by_name(self, namespace: str, name: str) -> v1.Pod | None:
        if (namespace, name) != ("ns", "pod"):
            return None
        spec = v1.PodSpec(containers=[v1.Container(name="c")], init_containers=[v1.Container(name="init")])
        return v1.Pod(metadata=v1.ObjectMeta(name="pod", namespace="ns", uid="u"), spec=spec)

    def get(self, uid: str) -> PodStatus | None:
        running, exited = ContainerState.RUNNING, ContainerState.EXITED
        return observed(uid, container("c", running, 2), container("c", exited, 1), container("init", exited))

    async def checkpoint_container(self, container_id: str, location: str, timeout_s: int = 0) -> None:
        self.calls.append((container_id, location, timeout_s))
        if self.error is not None:
            raise self.error


def checkpoint_request(name: str, query: dict[str, list[str]] | None = None, pod: str = "pod") -> Request:
    params = {"podNamespace": "ns", "podID": pod, "containerName": name}
    return Request(method="POST", path="/", target="/", query=query or {}, headers=(), params=params)


def checkpoints(world: Surroundings, root: Path) -> Checkpoints:
    return Checkpoints(
        pods=world,
        observed=world,
        checkpoint=world.checkpoint_container,
        clock=TrioClock(WHEN),
        root_dir=str(root),
        request_timeout=120,
    )


async def test_a_checkpoint_is_written_below_the_root_directory(tmp_path: Path) -> None:
    world = Surroundings()
    handler = checkpoints(world, tmp_path).post
    answer, body = await body_of(handler, checkpoint_request("c", {"timeout": ["7", "200"]}))
    [(container_id, location, timeout)] = world.calls
    assert (answer.status, container_id, timeout) == (200, "id-c-2", 200)
    assert json.loads(body) == {"items": [location]}
    assert Path(location).parent == tmp_path / "checkpoints"
    assert Path(location).name.startswith("checkpoint-pod_ns-c-2026-01-0")
    assert (tmp_path / "checkpoints").stat().st_mode & 0o777 == 0o700
    await body_of(handler, checkpoint_request("c", {"timeout": ["7"]}))
    assert world.calls[-1][2] == 120  # the usual deadline is the least


@pytest.mark.parametrize(
    ("request_", "status", "said"),
    [
        (checkpoint_request("c", pod="other"), 404, "pod does not exist"),
        (checkpoint_request("x"), 404, "container x does not exist"),
        (checkpoint_request("c", {"timeout": ["x"]}), 404, "cannot parse value of timeout parameter"),
        (checkpoint_request("c", {"timeout": ["1_0"]}), 404, "cannot parse value of timeout parameter"),
        (checkpoint_request("c", {"timeout": [str(2**63)]}), 404, "cannot parse value of timeout parameter"),
        (
            checkpoint_request("c", {"timeout": ["-1"]}),
            500,
            "checkpointing of ns/pod/c failed (CheckpointContainer requires the timeout value to be > 0)",
        ),
        (checkpoint_request("init"), 500, "checkpointing of ns/pod/init failed (container init not found)"),
    ],
)
async def test_what_cannot_be_checkpointed(tmp_path: Path, request_: Request, status: int, said: str) -> None:
    world = Surroundings()
    answer, body = await body_of(checkpoints(world, tmp_path).post, request_)
    assert (answer.status, body.decode(), world.calls) == (status, said, [])


async def test_a_runtime_that_cannot_checkpoint(tmp_path: Path) -> None:
    world = Surroundings()
    world.error = Unimplemented("not supported", "CheckpointContainer")
    answer, body = await body_of(checkpoints(world, tmp_path).post, checkpoint_request("c"))
    assert answer.status == 500
    assert body.startswith(b"checkpointing of ns/pod/c failed (")
    assert b"not supported" in body
