"""The parts of the CRI client that need no runtime: errors, endpoints, deadlines, the event queue, checks."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import pickle
from functools import partial
from types import ModuleType
from typing import Any, cast

import hypothesis.strategies as st
import pytest
import trio
import trio.testing
from hypothesis import given

from trio_kubelet.cri import deadlines
from trio_kubelet.cri.caller import KUBELET_OPERATIONS, PATHS
from trio_kubelet.cri.connect import socket_path
from trio_kubelet.cri.doors import EVERYTHING_DIRTY, Caller
from trio_kubelet.cri.errors import CRIError, NotFound, Unavailable, Unknown, cri_error
from trio_kubelet.cri.event_queue import EventQueue
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.cri.services import (
    ImageService,
    RuntimeService,
    container_status_problem,
    sandbox_status_problem,
)
from trio_kubelet.grpc.errors import Code

ROOT = pathlib.Path(__file__).parents[2]

NEVER_CALLED = {
    *("ListMetricDescriptors", "ListPodSandboxMetrics", "StreamPodSandboxMetrics"),
    *("PodSandboxStats", "ListPodSandboxStats", "StreamPodSandboxStats", "StreamContainerStats"),
    "StreamImages",
}
"""Methods of the CRI that the agent has no use for."""


def event(name: str) -> cri.ContainerEventResponse:
    return cri.ContainerEventResponse(container_id=name)


def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gen_cri_proto", ROOT / "tools" / "gen_cri_proto.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_committed_messages_are_those_of_the_table() -> None:
    table = json.loads((ROOT / "tools" / "cri-runtime-v1.json").read_text())
    assert (ROOT / "trio_kubelet/cri/proto/api.proto").read_text() == tool().proto_text(table)
    for name, fields in table["messages"].items():
        descriptor = cri.DESCRIPTOR.message_types_by_name[name]
        assert {f.number: f.name for f in descriptor.fields} == {
            number: field for number, field, *_ in fields
        }
    methods = {m[0] for service in table["services"].values() for m in service}
    assert set(PATHS) == methods
    assert PATHS["PullImage"] == "/runtime.v1.ImageService/PullImage"
    # Each call has the kubelet's name in its metrics, but for those that nobody here makes.
    assert methods - set(KUBELET_OPERATIONS) == NEVER_CALLED
    assert set(KUBELET_OPERATIONS) <= methods


def test_messages_can_be_used_with_another_protobuf_than_made_them() -> None:
    """protoc's own classes refuse an older one, and `pyproject.toml` has more than that of today."""
    made = list((ROOT / "trio_kubelet").rglob("*_pb2.py"))
    assert len(made) == len(tool().PROTOS)
    assert [path for path in made if "ValidateProtobuf" in path.read_text()] == []


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (5, "rpc error: code = NotFound desc = gone"),
        (1, "rpc error: code = Canceled desc = gone"),
        (4, "rpc error: code = DeadlineExceeded desc = gone"),
        (99, "rpc error: code = Unknown desc = gone"),
    ],
)
def test_errors_read_as_they_do_from_go(code: int, text: str) -> None:
    assert str(cri_error(code, "gone", "Version")) == text


def test_errors_have_classes_and_survive_pickling() -> None:
    error = cri_error(Code.NOT_FOUND, "gone", "Status")
    assert isinstance(error, NotFound)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.code, copy.message, copy.method) == (NotFound, Code.NOT_FOUND, "gone", "Status")
    assert type(cri_error(Code.ABORTED, "x")) is CRIError
    assert isinstance(cri_error(77, ""), Unknown)


def test_endpoints() -> None:
    assert socket_path("unix:///run/containerd/containerd.sock") == "/run/containerd/containerd.sock"
    assert socket_path("/run/x.sock") == "/run/x.sock"
    for bad in ("", "tcp://127.0.0.1:1", "run/x.sock", "unix://run/x.sock", "npipe:////./pipe/x"):
        with pytest.raises(ValueError, match="endpoint"):
            socket_path(bad)


def test_deadlines() -> None:
    assert deadlines.run_pod_sandbox(120) == 240
    assert deadlines.stop_container(120, 30) == 150
    assert deadlines.stop_container(120, -1) == 120
    assert deadlines.exec_sync(120, 5) == 125
    assert deadlines.exec_sync(120, 0) == deadlines.UNBOUNDED
    assert deadlines.checkpoint(120, 10) == 120


@given(st.lists(st.integers(0, 8), max_size=30), st.integers(1, 5))
def test_no_event_is_lost_without_a_mark(steps: list[int], capacity: int) -> None:
    """`n` puts n events; 0 reads one. What was put is read, in order, or a mark stands in its place."""

    async def run() -> None:
        queue, sent, read, marked = EventQueue(capacity), 0, list[int](), False
        for step in [*steps, *[0] * (capacity + 1)]:
            for _ in range(step):
                queue.put(event(str(sent)))
                sent += 1
            if step == 0:
                with trio.move_on_after(1):
                    found = await anext(queue)
                    if found is EVERYTHING_DIRTY:
                        marked = True
                    else:
                        read.append(int(found.container_id))
        assert read == sorted(set(read))
        assert marked or read == list(range(sent))
        if sent and not marked:
            assert read[-1] == sent - 1

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))


async def test_a_closed_queue_gives_what_it_has_and_ends() -> None:
    queue = EventQueue(5)
    queue.put(event("a"))
    queue.close()
    queue.put(event("b"))
    queue.close(Unavailable("too late"))
    assert [e.container_id async for e in queue if e is not EVERYTHING_DIRTY] == ["a"]
    failed = EventQueue(5)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.testing.wait_all_tasks_blocked)
        failed.close(Unavailable("gone"))
        for _ in range(2):
            with pytest.raises(Unavailable, match="gone"):
                await anext(failed)


async def test_a_waiting_reader_is_woken(autojump_clock: object) -> None:
    queue = EventQueue(5)

    async def later() -> None:
        await trio.sleep(3)
        queue.put(event("a"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(later)
        found = await anext(queue)
        assert found is not EVERYTHING_DIRTY
        assert trio.current_time() == 3


def test_unusable_statuses() -> None:
    metadata = cri.PodSandboxMetadata(name="n", namespace="d", uid="u")
    sandbox = cri.PodSandboxStatus(id="s", metadata=metadata, created_at=1)
    assert sandbox_status_problem(sandbox, "s") == ""
    sandbox.metadata.uid = ""
    assert "Uid is not set" in sandbox_status_problem(sandbox, "s")
    assert sandbox_status_problem(cri.PodSandboxStatus(), "s") == "status.Id is not set"
    status = cri.ContainerStatus(id="c", created_at=1, image_ref="r")
    assert container_status_problem(status, "c") == "status.Metadata is not set"
    status.metadata.name = "n"
    assert container_status_problem(status, "c") == "status.Image is not set"
    status.image.image = "i"
    assert container_status_problem(status, "c") == ""
    status.image_ref = ""
    assert container_status_problem(status, "c") == "status.ImageRef is not set"
    status.created_at = 0
    assert container_status_problem(status, "c") == "status.CreatedAt is not set"


@pytest.mark.parametrize("id", ["", "other"])
async def test_a_status_of_something_else_or_of_nothing_is_an_error(id: str) -> None:
    """Taken for what was asked for, it would have others' containers killed, or one's own started twice."""
    metadata = cri.PodSandboxMetadata(name="n", namespace="d", uid="u")
    answers = {
        "PodSandboxStatus": cri.PodSandboxStatusResponse(
            status=cri.PodSandboxStatus(id=id, metadata=metadata, created_at=1) if id else None
        ),
        "ContainerStatus": cri.ContainerStatusResponse(
            status=cri.ContainerStatus(
                id=id,
                created_at=1,
                image_ref="r",
                image=cri.ImageSpec(image="i"),
                metadata=cri.ContainerMetadata(name="n"),
            )
            if id
            else None
        ),
    }

    class Answering:
        async def unary(self, method: str, *_: object, **__: object) -> Any:
            return answers[method]

    service = RuntimeService(cast(Caller, Answering()))
    for ask in (service.pod_sandbox_status, service.container_status):
        with pytest.raises(Unknown, match=r"status\.Id is"):
            await ask("c")


async def test_an_answer_without_what_it_is_for_is_told_without_a_grpc_status() -> None:
    answers = {
        "ImageStatus": cri.ImageStatusResponse(image=cri.Image(id="sha256:1")),  # and no size
        "PullImage": cri.PullImageResponse(),
        "RunPodSandbox": cri.RunPodSandboxResponse(),
        "CreateContainer": cri.CreateContainerResponse(),
        "Exec": cri.ExecResponse(),
    }

    class Answering:
        async def unary(self, method: str, *_: object, **__: object) -> Any:
            return answers[method]

    runtime = RuntimeService(cast(Caller, Answering()))
    images = ImageService(cast(Caller, Answering()))
    image = cri.ImageSpec(image='od"d:1')
    sandbox = cri.PodSandboxConfig(metadata=cri.PodSandboxMetadata(name="web"))
    container = cri.ContainerConfig(metadata=cri.ContainerMetadata(name="main"))
    for ask, text in (
        (partial(images.image_status, image), r'Id or size of image "od\"d:1" is not set'),
        (partial(images.pull_image, image), r'imageRef of image "od\"d:1" is not set'),
        (partial(runtime.run_pod_sandbox, sandbox), 'PodSandboxId is not set for sandbox "web"'),
        (
            partial(runtime.create_container, "s", container, sandbox),
            'ContainerId is not set for container "main"',
        ),
        (partial(runtime.exec, cri.ExecRequest()), "URL is not set"),
    ):
        with pytest.raises(CRIError) as caught:
            await ask()
        assert str(caught.value) == text
        assert caught.value.code is Code.UNKNOWN
