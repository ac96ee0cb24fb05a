"""The command's arguments, its directories and its lock."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from trio_kubelet.standalone import command


def test_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRIO_KUBELET_CONTAINERD", raising=False)
    given = command.parse([str(tmp_path), "--name", "n1", "--containerd=2.1", "--", "-v=4", "--help"])
    assert given == command.Options(tmp_path, "n1", "2.1", False, ("-v=4", "--help"))
    assert command.parse([str(tmp_path), "--simulated"]).simulated


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


def test_one_process_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "BASE", tmp_path)
    with command._only_one("a"):
        with command._only_one("b"):
            pass
        with pytest.raises(command.CannotStart, match="already running"), command._only_one("a"):
            pass
    with command._only_one("a"):
        pass
