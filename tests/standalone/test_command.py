"""The command's arguments, its directories and its lock."""

from __future__ import annotations

import contextlib
import errno
import io
import ipaddress
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import trio
import trio.testing
import yaml

from trio_kubelet.common.mountinfo import mounts_from
from trio_kubelet.config.load import ConfigurationError
from trio_kubelet.cri.connect import open_cri
from trio_kubelet.cri.errors import CRIError
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.standalone import cleanup, command
from trio_kubelet.standalone.agent import AgentPorts
from trio_kubelet.standalone.layout import NodeLayout
from trio_kubelet.standalone.node import Provisions
from trio_kubelet.standalone.packages import Containerd
from trio_kubelet.standalone.screen import Caption
from trio_kubelet.volumes.linux import MS_BIND, mount, mount_tmpfs


def test_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRIO_KUBELET_CONTAINERD", raising=False)
    given = command.parse([str(tmp_path), "--name", "n1", "--containerd=2.1", "--", "-v=4", "--help"])
    assert given == command.Options(tmp_path, "n1", "2.1", False, ("-v=4", "--help"))
    assert command.parse([str(tmp_path), "--simulated"]).simulated


@pytest.mark.parametrize("name", ["", "Bad_Name", "../../x", "a" * 13, "-a"])
def test_a_name_that_a_node_cannot_have_is_refused_before_anything_is_made(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "BASE", tmp_path / "base")
    with pytest.raises(SystemExit) as ended:
        command.run_command([f"--name={name}", str(tmp_path)])
    assert ended.value.code == 1
    assert "up to 12 lower-case letters, digits and dashes" in capsys.readouterr().err
    assert not command.BASE.exists()


def test_examples_of_the_current_directory_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command.parse([]).manifests == tmp_path / "trio-kubelet-manifests"
    (tmp_path / "examples/manifests").mkdir(parents=True)
    assert command.parse([]).manifests == tmp_path / "examples/manifests"


def test_an_installed_user_gets_a_copy_of_the_examples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    directory = command.parse([]).manifests
    command._prepare_manifests(directory)
    pods = [yaml.safe_load(path.read_text()) for path in directory.glob("*.yaml")]
    assert {each["metadata"]["name"] for each in pods} == {"web", "crash", "init", "sidecar"}
    (directory / "web.yaml").unlink()
    command._prepare_manifests(directory)
    assert not (directory / "web.yaml").exists()


def test_a_directory_that_is_not_there_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "missing"
    assert command.run_command(["--simulated", str(missing)]) == 1
    assert str(missing) in capsys.readouterr().err


async def test_the_agent_keeps_to_the_directory_of_its_node(tmp_path: Path) -> None:
    layout = NodeLayout("n1", tmp_path, ipaddress.IPv4Network("10.9.9.0/24"))
    settings = await command._settings(command.parse([str(tmp_path)]), layout, AgentPorts(1, 2, 3), {})
    for place in (settings.flags.root_dir, settings.flags.cert_dir, settings.config.pod_logs_dir):
        assert place.startswith(f"{tmp_path}/")


def test_an_agent_that_cannot_start_is_said_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run(*settings: object) -> None:
        raise ConfigurationError("the certificate cannot be used")

    monkeypatch.setattr("trio_kubelet.agent.run", run)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert command.run_command(["--simulated", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "trio-kubelet: error: the certificate cannot be used\n"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EPIPE])
def test_a_display_that_cannot_be_written_ends_the_node(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run(*settings: object) -> None:
        await trio.sleep_forever()

    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr("trio_kubelet.agent.run", run)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("sys.stdout", Broken())
    if number == errno.EPIPE:
        with pytest.raises(BrokenPipeError):
            command.run_command(["--simulated", str(tmp_path)])
        assert capsys.readouterr().err == ""
    else:
        assert command.run_command(["--simulated", str(tmp_path)]) == 1
        said = capsys.readouterr().err
        assert said == "trio-kubelet: error: /dev/stdout: no space left on device\n"


@pytest.mark.parametrize(("left", "code"), [([], 0), (["mount /somewhere"], 1)])
def test_after_a_signal_the_exit_code_tells_whether_something_is_left(
    left: list[str],
    code: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layout = NodeLayout("n1", tmp_path, ipaddress.IPv4Network("10.9.9.0/24"))
    containerd = Containerd(tmp_path, (1, 7), None)

    @contextlib.asynccontextmanager
    async def private_node(*_: object) -> AsyncIterator[None]:
        yield

    async def agent_and_screen(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await trio.sleep_forever()

    def answers(value: object) -> Callable[..., Awaitable[object]]:
        async def answer(*_: object, **__: object) -> object:
            return value

        return answer

    monkeypatch.setattr(command, "BASE", tmp_path)
    monkeypatch.setattr(command, "provide", answers(Provisions(containerd, tmp_path, b"")))
    monkeypatch.setattr(command, "new_layout", answers(layout))
    monkeypatch.setattr(command, "private_node", private_node)
    monkeypatch.setattr(command, "_agent_and_screen", agent_and_screen)
    monkeypatch.setattr(cleanup, "become_subreaper", lambda: None)
    monkeypatch.setattr(cleanup, "leftovers", answers(left))
    assert command.run_command([str(tmp_path), "--name=n1"]) == code
    said = "left behind: mount /somewhere" if left else "nothing is left of the node"
    assert said in capsys.readouterr().err


def test_one_process_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "BASE", tmp_path)
    with command._only_one("a"):
        with command._only_one("b"):
            pass
        with pytest.raises(command.CannotStart, match="already running"), command._only_one("a"):
            pass
    with command._only_one("a"):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts")
async def test_nothing_is_left_of_a_simulated_node_of_roots(tmp_path: Path) -> None:
    """Its agent makes its directory a mount of its own and mounts volumes there."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "data").touch()
    async with command._simulated_node(command.parse([str(tmp_path), "--simulated"])) as layout:
        volume, host_path = layout.agent_root / "pods/u/volumes/m", layout.agent_root / "pods/u/h"
        for directory in (volume, host_path):
            directory.mkdir(parents=True)
        mount(str(layout.agent_root), str(layout.agent_root), flags=MS_BIND)
        mount_tmpfs(str(volume), 1 << 20)
        mount(str(precious), str(host_path), flags=MS_BIND)
    assert mounts_from(str(layout.base)) == []
    assert not layout.base.exists()
    assert (precious / "data").exists()


async def test_what_a_simulated_node_does_not_have_is_said(tmp_path: Path) -> None:
    options = command.parse([str(tmp_path), "--simulated"])
    async with command._simulated_node(options) as layout, open_cri(layout.endpoint) as (runtime, _):
        with pytest.raises(CRIError, match="a simulated container has no commands"):
            await runtime.exec(cri.ExecRequest(container_id="c", cmd=["date"]))
        with pytest.raises(CRIError, match="a simulated container has no ports"):
            await runtime.port_forward("s", [80])


@pytest.mark.parametrize(("flags", "shown"), [((), True), (("--node-page=false",), False)])
async def test_the_page_is_told_when_there_is_one(
    flags: tuple[str, ...], shown: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    captions: list[Caption] = []

    class Screen:
        def __init__(self, out: io.TextIOBase, caption: Caption, port: int) -> None:
            captions.append(caption)

        async def run(self) -> None:
            await trio.sleep_forever()

    async def run(*settings: object) -> None:
        await trio.testing.wait_all_tasks_blocked()

    monkeypatch.setattr(command, "Screen", Screen)
    monkeypatch.setattr("trio_kubelet.agent.run", run)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    layout = NodeLayout("n1", tmp_path, ipaddress.IPv4Network("10.9.9.0/24"))
    options = command.parse([str(tmp_path), "--simulated", "--", *flags])
    await command._agent_and_screen(options, layout, "simulated runtime", {})
    [caption] = captions
    assert any(note.startswith("page: ") for note in caption.notes) is shown
