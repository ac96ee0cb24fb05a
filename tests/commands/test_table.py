"""The live table: what it shows for the states pods go through, and that no input breaks it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.commands.table import (
    Summary,
    changes,
    fit,
    human_duration,
    parse_time_ns,
    pod_state,
    render,
    rows,
    summary,
)

NOW_NS = 1_000_000_100 * 1_000_000_000


def at(seconds_ago: int) -> str:
    import datetime

    moment = datetime.datetime.fromtimestamp(1_000_000_100 - seconds_ago, datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def running(name: str, restarts: int = 0, **fields: Any) -> dict[str, Any]:
    state = {"running": {"startedAt": at(30)}}
    return {"name": name, "ready": True, "started": True, "restartCount": restarts, "state": state, **fields}


def waiting(name: str, reason: str, message: str = "", restarts: int = 0) -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": message}}
    return {"name": name, "ready": False, "restartCount": restarts, "state": state}


def ended(name: str, code: int, reason: str | None = None) -> dict[str, Any]:
    reason = reason if reason is not None else "Error" if code else "Completed"
    state = {"terminated": {"exitCode": code, "reason": reason, "finishedAt": at(5)}}
    return {"name": name, "ready": False, "restartCount": 0, "state": state}


def pod(
    name: str, *containers: dict[str, Any], init: list[dict[str, Any]] | None = None, **status: Any
) -> Any:
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"initContainers": [{"name": each["name"]} for each in init or []]},
        "status": {
            "phase": "Running",
            "podIP": "198.18.0.2",
            "startTime": at(60),
            "initContainerStatuses": init or [],
            "containerStatuses": list(containers),
            **status,
        },
    }


READY = [{"type": "Ready", "status": "True"}]
INITIALISED = [{"type": "Initialized", "status": "True"}]


def test_a_table() -> None:
    crash = pod("crash-node", waiting("main", "CrashLoopBackOff", "back-off 40s", restarts=3))
    assert render([pod("web-node", running("web")), crash], NOW_NS, 100).splitlines() == [
        "POD / CONTAINER  STATE             RESTARTS  IP          AGE  DETAIL",
        "crash-node       CrashLoopBackOff  3         198.18.0.2  60s",
        "  main           CrashLoopBackOff  3                          back-off 40s",
        "web-node         Running           0         198.18.0.2  60s",
        "  web            Running           0                     30s",
    ]


@pytest.mark.parametrize(
    ("given_pod", "state"),
    [
        (pod("a", running("c")), "Running"),
        (pod("a", running("c"), phase="Pending", reason="Evicted"), "Evicted"),
        (pod("a", ended("c", 0), phase="Succeeded"), "Completed"),
        (pod("a", ended("c", 3), phase="Failed"), "Error"),
        (pod("a", ended("c", 137, "OOMKilled")), "OOMKilled"),
        (pod("a", running("c"), ended("d", 0), conditions=READY), "Running"),
        (pod("a", running("c"), ended("d", 0)), "NotReady"),
        (pod("a", running("c"), ended("d", 0), ended("e", 2)), "Error"),
        (pod("a", waiting("c", "ErrImagePull"), waiting("d", "CrashLoopBackOff")), "ErrImagePull"),
        (pod("a", ended("c", 3, reason="")), "ExitCode:3"),
        (pod("a", ended("c", 0), init=[waiting("i", "CrashLoopBackOff")]), "Init:CrashLoopBackOff"),
        (pod("a", running("c"), init=[waiting("i", "Error")], conditions=INITIALISED), "Init:Error"),
        (pod("a", waiting("c", "ContainerCreating"), phase="Pending"), "ContainerCreating"),
        (pod("a", waiting("c", "ErrImageNeverPull"), phase="Pending"), "ErrImageNeverPull"),
        (
            pod("a", waiting("c", "PodInitializing"), init=[running("i"), waiting("j", "PodInitializing")]),
            "Init:0/2",
        ),
        (pod("a", waiting("c", "PodInitializing"), init=[ended("i", 0), running("j")]), "Init:1/2"),
        (pod("a", waiting("c", "PodInitializing"), init=[ended("i", 1)]), "Init:Error"),
        (pod("a", phase="Pending"), "Pending"),
        ({**pod("a", running("c")), "metadata": {"name": "a", "deletionTimestamp": at(1)}}, "Terminating"),
        ({}, "Pending"),
    ],
)
def test_state_of_a_pod(given_pod: Any, state: str) -> None:
    assert pod_state(given_pod) == state


def test_a_started_sidecar_does_not_hold_the_pod_in_init() -> None:
    sidecar = pod("a", running("c"), init=[running("side")])
    sidecar["spec"]["initContainers"] = [{"name": "side", "restartPolicy": "Always"}]
    assert pod_state(sidecar) == "Running"


def test_sidecars_are_counted_and_init_containers_only_while_the_pod_initialises() -> None:
    init = [{**ended("i", 0), "restartCount": 5}, running("side", restarts=2)]
    begun = pod("a", running("c", restarts=1), running("d", ready=False), init=init)
    begun["spec"] = {
        "containers": [{"name": "c"}, {"name": "d"}],
        "initContainers": [{"name": "i"}, {"name": "side", "restartPolicy": "Always"}],
    }
    assert summary(begun) == Summary("Running", ready=2, total=3, restarts=3, last_restart_ns=None)
    last = {"terminated": {"exitCode": 1, "finishedAt": "2001-09-09T01:46:40Z"}}
    begun["status"]["initContainerStatuses"] = [{**running("i", restarts=4), "lastState": last}]
    assert summary(begun) == Summary("Init:0/2", ready=0, total=3, restarts=4, last_restart_ns=10**18)


def test_init_containers_behind_the_one_that_holds_the_pod_up_do_not_count() -> None:
    init = [waiting("i", "CrashLoopBackOff", restarts=1), running("side", restarts=2)]
    again = pod("a", waiting("c", "PodInitializing", restarts=3), init=init)
    again["spec"] = {
        "containers": [{"name": "c"}],
        "initContainers": [{"name": "i"}, {"name": "side", "restartPolicy": "Always"}],
    }
    shown = Summary("Init:CrashLoopBackOff", ready=0, total=2, restarts=1, last_restart_ns=None)
    assert summary(again) == shown
    again["status"]["conditions"] = INITIALISED
    assert summary(again) == replace(shown, state="PodInitializing", restarts=3)


def test_a_pod_that_is_over_is_not_terminating() -> None:
    over = pod("a", ended("c", 0), phase="Succeeded")
    over["metadata"]["deletionTimestamp"] = at(1)
    assert pod_state(over) == "Completed"


def test_a_container_that_runs_unready_says_so() -> None:
    assert "not ready" in render([pod("a", running("c", ready=False))], NOW_NS, 100)


def test_messages_cannot_move_the_cursor() -> None:
    text = render([pod("a", waiting("c", "Error", "one\ntwo\x1b[2Jthree\rfour"))], NOW_NS, 200)
    assert text.splitlines()[-1].endswith("one two [2Jthree four")
    assert len(text.splitlines()) == 3


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-2, "<invalid>"),
        (-1.9, "0s"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (301, "5m1s"),
        (601, "10m"),
        (3600 * 3 - 1, "179m"),
        (3600 * 3 + 60, "3h1m"),
        (3600 * 8, "8h"),
        (3600 * 49, "2d1h"),
        (3600 * 24 * 9 + 3600, "9d"),
        (3600 * 24 * 365 * 2 - 1, "729d"),
        (3600 * 24 * 365 * 2, "2y"),
        (3600 * 24 * (365 * 2 + 70), "2y70d"),
        (3600 * 24 * (365 * 8 + 70), "8y"),
    ],
)
def test_ages_as_kubectl_prints_them(seconds: int, text: str) -> None:
    assert human_duration(seconds) == text


def test_times() -> None:
    assert parse_time_ns("2001-09-09T01:46:40Z") == 10**18
    assert parse_time_ns("2001-09-09T03:46:40.5+02:00") == 10**18 + 500_000_000
    assert parse_time_ns("yesterday") is None
    assert parse_time_ns("2001-09-09T01:46:40") is None
    assert parse_time_ns(None) is None


def test_changes_tell_what_a_terminal_would_show() -> None:
    before = rows([pod("a", running("c")), pod("b", running("c"))], NOW_NS)
    later = rows([pod("a", waiting("c", "Error", "boom", restarts=2)), pod("d", running("c"))], NOW_NS)
    assert changes(before, before) == []
    assert changes(before, later) == [
        "b: gone",
        "b/c: gone",
        "a: Error, restarts 2, 198.18.0.2",
        "a/c: Error, restarts 2, boom",
        "d: Running, 198.18.0.2",
        "d/c: Running",
    ]


def test_a_passing_second_is_no_change() -> None:
    pods = [pod("a", running("c"))]
    assert changes(rows(pods, NOW_NS), rows(pods, NOW_NS + 10**9)) == []


FIELDS = ["metadata", "name", "namespace", "spec", "status", "state", "running", "waiting", "terminated"]
FIELDS += ["reason", "message", "exitCode", "startTime", "initContainers", "containerStatuses"]
FIELDS += ["initContainerStatuses"]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(
            st.sampled_from(FIELDS),
            children,
            max_size=5,
        )
    ),
    max_leaves=30,
)
pod_like = st.dictionaries(st.sampled_from(["metadata", "spec", "status"]), json_values)


@given(st.lists(pod_like, max_size=4), st.integers(0, 120))
def test_no_answer_breaks_the_table(pods: list[Any], width: int) -> None:
    lines = render(pods, NOW_NS, width).split("\n")
    assert all(len(line) <= width for line in lines)
    assert len(lines) == 1 + max(1, len(rows(pods, NOW_NS)))
    assert all(char.isprintable() for line in lines for char in line)


@given(st.lists(pod_like, max_size=4), st.integers(1, 120))
def test_colours_change_nothing_but_colours(pods: list[Any], width: int) -> None:
    coloured = render(pods, NOW_NS, width, colour=True)
    assert re.sub(r"\x1b\[\d+m", "", coloured) == render(pods, NOW_NS, width)


@given(st.text(alphabet="ab\n", max_size=40), st.integers(1, 10))
def test_fit_keeps_to_the_height(text: str, height: int) -> None:
    fitted = fit(text, height).split("\n")
    assert len(fitted) <= height
    assert fitted == text.split("\n") or fitted[-1].startswith("…")
