"""Queries of `/containerLogs` and the choice of a container, with the kubelet's words."""

from __future__ import annotations

import pytest

from trio_kubelet.api import v1
from trio_kubelet.server.http.messages import parse_target
from trio_kubelet.server.logs.container_logs import NoLog, choose_container
from trio_kubelet.server.logs.options import BadLogOptions, PodLogOptions, read_log_options

SECOND = 1_000_000_000
UNDECODABLE = (400, '{"message": "Unable to decode query."}')
SENSELESS = (422, '{"message": "Invalid request."}')


def read(query: str) -> PodLogOptions:
    return read_log_options(parse_target(f"/x?{query}")[1])


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("", PodLogOptions()),
        ("follow=true&previous=1&timestamps", PodLogOptions(follow=True, previous=True, timestamps=True)),
        ("follow=FALSE&previous=0&timestamps=", PodLogOptions(timestamps=True)),
        ("tailLines=%2B7&limitBytes=1", PodLogOptions(tail_lines=7, limit_bytes=1)),
        ("tail=5&tailLines=9", PodLogOptions(tail_lines=5)),
        ("tail=all&tailLines=9", PodLogOptions()),
        ("sinceSeconds=3&sinceSeconds=x", PodLogOptions(since_seconds=3)),
        ("sinceSeconds=1&tailLines=0", PodLogOptions(since_seconds=1, tail_lines=0)),
        ("sinceTime=1970-01-01T00:00:02.5Z", PodLogOptions(since_time_ns=5 * SECOND // 2)),
        ("stream=Stderr", PodLogOptions(stream="Stderr")),
    ],
)
def test_queries(query: str, wanted: PodLogOptions) -> None:
    assert read(query) == wanted


@pytest.mark.parametrize(
    ("query", "refusal"),
    [
        ("tailLines=many", UNDECODABLE),
        ("tailLines=", UNDECODABLE),
        ("tailLines=1_0", UNDECODABLE),
        ("limitBytes=9223372036854775808", UNDECODABLE),
        ("sinceTime=yesterday", UNDECODABLE),
        ("tailLines=-1", SENSELESS),
        ("limitBytes=0", SENSELESS),
        ("sinceSeconds=0", SENSELESS),
        ("sinceSeconds=1&sinceTime=1970-01-01T00:00:02Z", SENSELESS),
        ("stream=stdout", SENSELESS),
        ("stream=", SENSELESS),
        ("stream=Stdout&tailLines=1", SENSELESS),
    ],
)
def test_refused_queries(query: str, refusal: tuple[int, str]) -> None:
    with pytest.raises(BadLogOptions) as caught:
        read(query)
    assert (caught.value.status, str(caught.value)) == refusal


def test_what_options_mean_for_lines() -> None:
    now = 100 * SECOND
    assert read("sinceSeconds=10").line_options(now).since_ns == 90 * SECOND
    assert read("sinceTime=1970-01-01T00:01:00Z").line_options(now).since_ns == 60 * SECOND
    assert read("").line_options(now).since_ns is None
    assert read("tailLines=3").line_options(now).lines == 3
    assert read("tailLines=3&follow=1").line_options(now).lines == -1
    assert [read(query).line_options(now).limit_bytes for query in ("", "limitBytes=7")] == [-1, 7]
    only = read("stream=Stdout").line_options(now)
    assert (only.stdout, only.stderr) == (True, False)


def ended(container_id: str) -> v1.ContainerState:
    return v1.ContainerState(terminated=v1.ContainerStateTerminated(container_id=container_id))


RUNNING = v1.ContainerState(running=v1.ContainerStateRunning())
NOTHING = v1.ContainerState()


def waiting(reason: str) -> v1.ContainerState:
    return v1.ContainerState(waiting=v1.ContainerStateWaiting(reason=reason))


@pytest.mark.parametrize(
    ("state", "last", "previous", "found"),
    [
        (RUNNING, ended("c://old"), False, "c://now"),
        (RUNNING, ended("c://old"), True, "c://old"),
        (RUNNING, NOTHING, True, 'previous terminated container "a" in pod "p" not found'),
        (RUNNING, ended(""), True, 'previous terminated container "a" in pod "p" not found'),
        (ended("c://end"), ended("c://old"), False, "c://end"),
        (ended(""), ended("c://old"), False, "c://old"),
        (ended(""), NOTHING, False, 'container "a" in pod "p" is terminated'),
        (waiting("CrashLoopBackOff"), ended("c://old"), False, "c://old"),
        (waiting("CrashLoopBackOff"), ended(""), False, 'container "a" in pod "p" is terminated'),
        (
            waiting("ContainerCreating"),
            NOTHING,
            False,
            'container "a" in pod "p" is waiting to start: ContainerCreating',
        ),
        (
            waiting("ErrImagePull"),
            NOTHING,
            False,
            'container "a" in pod "p" is waiting to start: image can\'t be pulled',
        ),
        (
            waiting("ImagePullBackOff"),
            NOTHING,
            False,
            'container "a" in pod "p" is waiting to start: trying and failing to pull image',
        ),
        (NOTHING, NOTHING, False, 'container "a" in pod "p" is waiting to start - no logs yet'),
    ],
)
def test_which_container(
    state: v1.ContainerState, last: v1.ContainerState, previous: bool, found: str
) -> None:
    shown = v1.ContainerStatus(name="a", container_id="c://now", state=state, last_state=last)
    for status in (
        v1.PodStatus(container_statuses=[shown]),
        v1.PodStatus(init_container_statuses=[shown]),
        v1.PodStatus(ephemeral_container_statuses=[shown]),
    ):
        if found.startswith("c://"):
            assert choose_container("p", status, "a", previous) == found
            continue
        with pytest.raises(NoLog) as caught:
            choose_container("p", status, "a", previous)
        assert str(caught.value) == found


def test_no_status_of_the_container() -> None:
    with pytest.raises(NoLog, match='container "a" in pod "p" is not available'):
        choose_container("p", v1.PodStatus(), "a", False)
