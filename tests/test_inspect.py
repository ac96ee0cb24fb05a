"""`trio-kubelet inspect` against what the kubelet was recorded to make of manifests."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from trio_kubelet.inspect import inspect_pod, main
from trio_kubelet.podinfo.context import NodeContext
from trio_kubelet.sources.apiserver import WatchedPod

_GOLDEN = Path(__file__).parent / "golden"
_CASES: list[dict[str, Any]] = json.loads((_GOLDEN / "cri-configs.json").read_text())["cases"]
_VECTORS: list[dict[str, Any]] = json.loads((_GOLDEN / "static-pods.json").read_text())["vectors"]


def _normalise(document: Any) -> Any:
    """Without what differs each time: the moment a pod was seen, random names and the image's id."""
    text = json.dumps(document)
    text = re.sub(r'("kubernetes.io/config.seen": )"[^"]*"', r'\1"SEEN"', text)
    text = re.sub(r"(/containers/[^/\"]+/)[0-9a-f]{8}\"", r'\1ID"', text)
    value = json.loads(text)
    if "image" in value:
        value["image"].pop("image")
    return value


@pytest.mark.parametrize("case", _CASES, ids=[case["manifest"]["metadata"]["name"] for case in _CASES])
def test_recorded_configs(case: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, logs = tmp_path / "root", tmp_path / "logs"
    config = tmp_path / "config.yaml"
    header = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
    config.write_text(f'{header}resolvConf: ""\npodLogsDir: {logs}\n')
    manifest = tmp_path / "pod.json"
    manifest.write_text(json.dumps(case["manifest"]))
    flags = ["--node-name=node1", f"--root-dir={root}", "--config", str(config)]
    assert main([str(manifest), *flags]) == 0
    shown = json.loads(capsys.readouterr().out.replace(str(root), "${ROOT}").replace(str(logs), "${PODLOGS}"))
    # The recorded path of the manifest is not known here, and the UID is made from it.
    text = json.dumps(shown).replace(shown["pod"]["metadata"]["uid"], case["uid"])
    shown = json.loads(text)
    assert _normalise(shown["sandboxConfig"]) == _normalise(case["sandbox_config"])
    configs = {entry["metadata"]["name"]: entry for entry in shown["containerConfigs"]}
    for recorded in case["containers"]:
        assert _normalise(configs[recorded["name"]]) == _normalise(recorded["config"])
    spec = case["manifest"]["spec"]
    order = [c["name"] for c in [*spec.get("initContainers", []), *spec["containers"]]]
    assert list(configs) == order


@pytest.mark.parametrize("vector", _VECTORS, ids=[Path(vector["file"]).name for vector in _VECTORS])
def test_recorded_pods(vector: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = tmp_path / Path(vector["file"]).name
    manifest.write_bytes(vector["manifest"].encode())
    flags = ["--node-name", "node-a", "--as-path", vector["file"], "--root-dir", str(tmp_path)]
    code = main([str(manifest), *flags])
    output = capsys.readouterr()
    if vector["accepted"]:
        assert code == 0
        assert json.loads(output.out)["pod"] == vector["pod"]
    else:
        assert code == 1
        assert output.out == ""
        assert str(manifest) in output.err


_MINIMAL = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, image: i}]}\n"


def test_yaml_says_the_same_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = tmp_path / "p.yaml"
    manifest.write_text(_MINIMAL)
    assert main([str(manifest), "-o", "yaml"]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert main([str(manifest)]) == 0
    in_json = json.loads(capsys.readouterr().out)
    assert shown["pod"] == in_json["pod"]
    assert list(shown) == ["pod", "sandboxConfig", "containerConfigs"]


def test_yaml_is_read_by_go_as_what_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = tmp_path / "p.yaml"
    manifest.write_text(_MINIMAL.replace("{name: p}", '{name: p, labels: {commit: "12e4"}}'))
    assert main([str(manifest), "-o", "yaml"]) == 0
    assert capsys.readouterr().out.count('commit: "12e4"\n') == 2  # in the pod and in its sandbox


def test_several_pods_are_several_documents(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = (
        {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}} for name in "ab"
    )
    manifest = tmp_path / "p.json"
    manifest.write_text(json.dumps({"apiVersion": "v1", "kind": "PodList", "items": [one, other]}))
    assert main([str(manifest), "-o", "yaml", "--node-name", "n"]) == 0
    shown = list(yaml.safe_load_all(capsys.readouterr().out))
    assert [each["pod"]["metadata"]["name"] for each in shown] == ["a-n", "b-n"]


def test_container_that_could_not_start_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = tmp_path / "p.yaml"
    manifest.write_text(_MINIMAL.replace("image: i", "image: i, securityContext: {runAsNonRoot: true}"))
    assert main([str(manifest)]) == 0
    output = capsys.readouterr()
    assert "runAsNonRoot" in output.err
    assert json.loads(output.out)["containerConfigs"] == []


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        ([], "expected one manifest"),
        (["a", "b"], "expected one manifest"),
        (["/nonexistent/pod.yaml"], "no such file"),
        (["x", "-o", "xml"], "unknown output format"),
        (["x", "--node-nam", "n"], "did you mean --node-name"),
        (["x", "--config", "/nonexistent"], "/nonexistent"),
    ],
)
def test_wrong_use_is_one_clear_error(
    argv: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 1
    output = capsys.readouterr()
    assert reason in output.err
    assert output.out == ""


def test_a_pod_of_the_api_server_is_shown_without_its_managed_fields() -> None:
    named = {"name": "a", "namespace": "d", "uid": "u"}
    given = {"metadata": {**named, "managedFields": [{"manager": "m"}]}, "spec": {"containers": []}}
    pod = msgspec.json.decode(msgspec.json.encode(given), type=WatchedPod)
    made, notes = inspect_pod(pod, NodeContext(node_name="n"), 0)
    assert (made["pod"]["metadata"], notes) == (named, [])
