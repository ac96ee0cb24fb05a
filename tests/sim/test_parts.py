"""The smaller parts of the simulation: behaviours, images, logs, faults, the command."""

from __future__ import annotations

import pathlib
import signal
import sys

import hypothesis.strategies as st
import pytest
import trio
from hypothesis import given

from trio_kubelet.cri.connect import open_cri
from trio_kubelet.cri.errors import Unavailable
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.sim import main
from trio_kubelet.sim.answers import write_log
from trio_kubelet.sim.behaviour import Behaviour, behaviour_of, of_command, of_image
from trio_kubelet.sim.cli import parser
from trio_kubelet.sim.faults import Fault, Faults, Kind, parse_script, random_script
from trio_kubelet.sim.images import full_reference
from trio_kubelet.sim.populate import container_config, sandbox_config
from trio_kubelet.sim.runtime import SimRuntime

SECOND = 1_000_000_000


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("sleep 5", Behaviour(5.0, 0)),
        ("exit 3", Behaviour(0.0, 3)),
        ("false", Behaviour(0.0, 1)),
        ("sleep 2 && sleep 1; exit 9; sleep 50", Behaviour(3.0, 9)),
        (
            "echo hello there; sleep 1; echo done",
            Behaviour(1.0, 0, output=((0.0, "hello there"), (1.0, "done"))),
        ),
        ("trap '' TERM; sleep 9", Behaviour(9.0, 0, ignore_term=True)),
        ("echo up; while true; do :; done", Behaviour(output=((0.0, "up"),))),
        ("nginx -g 'daemon off'", Behaviour()),
        ("nginx -g 'unclosed", Behaviour()),
    ],
)
def test_what_a_script_says(command: str, expected: Behaviour) -> None:
    assert of_command(["/bin/sh", "-c", command]) == expected


def test_a_command_without_a_shell_is_one_statement() -> None:
    assert of_command(["/usr/bin/sleep", "1h"]) == Behaviour()
    assert of_command(["sleep", "7"]) == Behaviour(7.0)


@given(st.text(max_size=40))
def test_any_script_is_some_behaviour(script: str) -> None:
    found = of_command(["sh", "-c", script])
    assert found.run_seconds is None or found.run_seconds >= 0
    assert 0 <= found.exit_code <= 255


@pytest.mark.parametrize(
    ("image", "seconds", "code"),
    [
        ("docker.io/sim/exit-3:latest", 0.0, 3),
        ("sleep-5", 5.0, 0),
        ("example.com:5000/sleep-2.5-exit-1@sha256:00", 2.5, 1),
        ("false", 0.0, 1),
        ("nginx:1.27", None, 0),
        ("sleepy-5", None, 0),
    ],
)
def test_what_an_image_name_says(image: str, seconds: float | None, code: int) -> None:
    found = of_image(image)
    assert (found.run_seconds, found.exit_code) == (seconds, code)


def test_variables_beat_annotations_beat_the_command() -> None:
    config = container_config("c", sandbox_config(1, "u"))
    config.command.extend(["sleep", "5"])
    config.annotations["sim/exit-code"] = "4"
    found = behaviour_of(config, {"sim/run-seconds": "6", "sim/exit-code": "1"})
    assert (found.run_seconds, found.exit_code) == (6.0, 4)
    config.envs.append(cri.KeyValue(key="SIM_OOM", value=b"1"))
    config.envs.append(cri.KeyValue(key="SIM_EXIT_CODE", value=b"what"))
    found = behaviour_of(config, {})
    assert (found.run_seconds, found.exit_code, found.oom) == (5.0, 137, True)


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("nginx", "docker.io/library/nginx:latest"),
        ("me/app:1", "docker.io/me/app:1"),
        ("localhost/x", "localhost/x:latest"),
        ("host:5000/a/b", "host:5000/a/b:latest"),
        ("r.io/a@sha256:12", "r.io/a@sha256:12"),
    ],
)
def test_image_names(name: str, full: str) -> None:
    assert full_reference(name) == full


def test_logs_in_cri_format(tmp_path: pathlib.Path) -> None:
    runtime = SimRuntime(preload=("registry.k8s.io/sim/app:1.0",))
    pod = sandbox_config(1, "u")
    pod.log_directory = str(tmp_path)
    config = container_config("c", pod)
    config.command.extend(["sh", "-c", "echo one; sleep 2; echo two"])
    sandbox = runtime.run_sandbox(pod, "", SECOND)
    container = runtime.create_container(sandbox.id, config, pod, SECOND)
    log = tmp_path / "c" / "0.log"
    assert container.log_path == str(log)
    write_log(container, 9 * SECOND)
    runtime.start_container(container.id, 1_714_557_600_000_000_005)
    write_log(container, container.started_ns)  # its directory is not there
    log.parent.mkdir()
    write_log(container, container.started_ns + SECOND)
    assert log.read_text() == "2024-05-01T10:00:00.000000005Z stdout F one\n"
    write_log(container, container.started_ns + 2 * SECOND)
    assert log.read_text().splitlines()[1:] == ["2024-05-01T10:00:02.000000005Z stdout F two"]


def test_faults_strike_where_and_as_often_as_the_script_says() -> None:
    faults = Faults([Fault(Kind.FAIL, "List*", skip=1, count=2), Fault(Kind.DROP, "GetContainerEvents")])
    struck = [faults.for_call("ListContainers") is not None for _ in range(5)]
    assert struck == [False, True, True, False, False]
    assert faults.for_call("Version") is None
    assert faults.for_call("GetContainerEvents") is None
    found = faults.for_event()
    assert found is not None
    assert found.kind is Kind.DROP
    faults.clear()
    assert faults.for_event() is None


@given(st.integers(0, 10_000))
def test_a_seed_makes_the_same_bad_day(seed: int) -> None:
    script = random_script(seed)
    assert script == random_script(seed)
    days = [Faults(list(script), seed) for _ in range(2)]
    decisions = [[day.for_call("StartContainer") for _ in range(50)] for day in days]
    assert decisions[0] == decisions[1]


def test_scripts_from_json() -> None:
    assert parse_script('[{"kind": "slow", "method": "Version", "seconds": 2}]') == [
        Fault(Kind.SLOW, "Version", seconds=2)
    ]
    with pytest.raises(ValueError, match=r"fault script: .*kind"):
        parse_script('[{"kind": "odd"}]')
    with pytest.raises(ValueError, match="fault 0: no such code: ODD"):
        parse_script('[{"kind": "fail", "code": "ODD"}]')


def test_the_commands_arguments() -> None:
    args = parser().parse_args(["--socket", "/s", "--pods", "1000", "--containers", "10", "--churn", "2.5"])
    assert (args.pods, args.containers, args.churn) == (1000, 10, 2.5)


@pytest.mark.parametrize("problem", ["directory", "script", "missing script"])
def test_what_keeps_the_command_from_running(tmp_path: pathlib.Path, problem: str) -> None:
    (tmp_path / "bad.json").write_text('[{"kind": "odd"}]')
    arguments = {
        "directory": ["--socket", str(tmp_path / "missing" / "sim.sock")],
        "script": ["--socket", str(tmp_path / "s"), "--faults", str(tmp_path / "bad.json")],
        "missing script": ["--socket", str(tmp_path / "s"), "--faults", str(tmp_path / "none.json")],
    }
    assert main(arguments[problem]) == 1


async def test_the_command_serves_until_it_is_told_to_stop(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "sim.sock"
    code = "import sys; from trio_kubelet.sim import main; sys.exit(main(sys.argv[1:]))"
    arguments = ["--socket", str(path), "--pods", "3", "--containers", "2", "--churn", "50"]
    command = [sys.executable, "-c", code, *arguments]
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            process = await nursery.start(trio.run_process, command)
            async with open_cri(str(path)) as (runtime, _):
                while True:
                    try:
                        assert len(await runtime.list_containers()) == 6
                        break
                    except Unavailable:
                        await trio.sleep(0.05)
                async with runtime.container_events() as events:
                    await anext(events)
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
    assert not path.exists()
