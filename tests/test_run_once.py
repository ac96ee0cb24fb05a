"""`--runonce` as a user meets it: a process that starts the pods of the manifests on a simulated runtime."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from trio_kubelet.config.flags import KubeletFlags
from trio_kubelet.cri.connect import open_cri
from trio_kubelet.volumes.files import unmount_all

ROOT = Path(__file__).parents[1]
DEADLINE = 60.0


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[str]:
    """The endpoint of a simulated runtime of its own."""
    socket = tmp_path / "cri.sock"
    command = [sys.executable, "-m", "trio_kubelet", "sim", "--socket", str(socket)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            until = time.monotonic() + DEADLINE
            while not socket.exists():
                assert process.poll() is None
                assert time.monotonic() < until
                time.sleep(0.05)
            yield f"unix://{socket}"
        finally:
            process.terminate()


def write(manifests: Path, name: str, **spec: Any) -> None:
    containers = [{"name": "c", "image": "busybox:1", "command": ["sleep", "100000"]}]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}}
    manifests.mkdir(exist_ok=True)
    (manifests / f"{name}.json").write_text(json.dumps({**pod, "spec": {"containers": containers, **spec}}))


def run_once(tmp_path: Path, endpoint: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    config = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "podLogsDir": f"{tmp_path}/logs",
        "staticPodPath": f"{tmp_path}/manifests",
        "containerRuntimeEndpoint": endpoint,
        "cgroupsPerQOS": False,
        "enforceNodeAllocatable": [],
        "failCgroupV1": False,
        "failSwapOn": False,
        **settings,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    options = [f"--config={tmp_path}/config.json", f"--root-dir={tmp_path}/root", "--hostname-override=n1"]
    options.append(f"--container-logs-dir={tmp_path}/links")
    try:
        return started_once(options)
    finally:
        unmount_all(f"{tmp_path}/root")


def started_once(options: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trio_kubelet", *options, "--set-kernel-tunables=false", "--runonce"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )


def test_the_pods_of_the_manifests_run_and_their_directories_are_there(tmp_path: Path, runtime: str) -> None:
    write(tmp_path / "manifests", "web")
    result = run_once(tmp_path, runtime)
    assert result.returncode == 0, result.stderr
    [pod] = (tmp_path / "root" / "pods").iterdir()
    assert {"volumes", "plugins", "containers"} <= {path.name for path in pod.iterdir()}
    assert [path.name for path in (tmp_path / "logs").iterdir()] == [f"default_web-n1_{pod.name}"]
    assert (tmp_path / "links").is_dir()


def test_log_collectors_find_their_links_where_a_kubelet_has_them_wherever_the_logs_are() -> None:
    assert KubeletFlags().container_logs_dir == "/var/log/containers"


def test_a_pod_that_is_refused_is_named_and_no_failure(tmp_path: Path, runtime: str) -> None:
    write(tmp_path / "manifests", "web")
    write(tmp_path / "manifests", "picky", nodeSelector={"disk": "none"})
    result = run_once(tmp_path, runtime)
    assert result.returncode == 0
    assert 'pod="default/picky-n1" reason="NodeAffinity"' in result.stderr
    assert "Traceback" not in result.stderr
    assert len(list((tmp_path / "root" / "pods").iterdir())) == 1


async def test_the_runtime_is_told_the_addresses_of_pods(tmp_path: Path, runtime: str) -> None:
    await trio.to_thread.run_sync(partial(run_once, tmp_path, runtime, podCIDR="10.88.0.0/16"))
    async with open_cri(runtime) as services:
        answer = await services.runtime.status(verbose=True)
    assert json.loads(answer.info["config"])["podCIDR"] == "10.88.0.0/16"
