"""A machine that really goes down, with pods: rebooted, then switched off. Run by
`python -m tools.node_machine shutdown` beside the machine, with the API server of its node.

What a kubelet did in the same machine is in `graceful-shutdown.json` of the recordings: inhibitor, drop-in,
order of the groups, statuses, the condition of the Node.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import trio

from tests.containerd.harness import wait_until
from tests.containerd.scenes import say
from tests.containerd.test_pod_objects import Cluster
from tests.containerd.test_sources import kubeconfig
from tests.kube.apiserver import serving
from tests.kube.store import Refused, Tree
from tools.node_machine.image import GATEWAY
from trio_kubelet.api import v1
from trio_kubelet.api.defaults import set_pod_defaults

PROJECT = Path(__file__).parents[1]
MESSAGE = "Pod was terminated in response to imminent node shutdown."
CRITICAL = 2_000_000_000
HOME = "/var/lib/real-shutdown"
CONFIG = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "staticPodPath": "/etc/kubernetes/manifests",
    "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
    "cgroupDriver": "systemd",
    "failSwapOn": False,
    "readOnlyPort": 10255,
    "shutdownGracePeriod": "30s",
    "shutdownGracePeriodCriticalPods": "12s",
    "nodeStatusUpdateFrequency": "10s",
}
NETWORK = {
    "cniVersion": "1.0.0",
    "name": "pods",
    "plugins": [
        {"type": "bridge", "bridge": "pods", "ipam": {"type": "host-local", "subnet": "10.88.0.0/24"}}
    ],
}
PREPARE = f"""
set -e
mkdir -p {HOME} /etc/kubernetes/manifests /etc/cni/net.d /etc/containerd
touch {HOME}/log
containerd config default | sed -e 's/SystemdCgroup = false/SystemdCgroup = true/' \
    -e 's|sandbox_image = .*|sandbox_image = "localhost/pause:1"|' \
    -e 's|bin_dir = .*|bin_dir = "/usr/lib/cni"|' > /etc/containerd/config.toml
systemctl enable --now containerd
cd /root/trio-kubelet
/opt/venv/bin/python -c '
import trio
from pathlib import Path
from trio_kubelet.standalone import images
Path("/root/images.tar").write_bytes(trio.run(images.build_local_archive, Path("/bin/busybox")))'
ctr -n k8s.io images import /root/images.tar >/dev/null
systemctl daemon-reload
systemctl enable --now trio-kubelet
"""


class Guest:
    """The machine, reached by ssh."""

    def __init__(self, ssh: Sequence[str]) -> None:
        self._ssh = ssh

    async def do(self, command: str, *, text: str = "", seconds: float = 120, check: bool = True) -> str:
        """Runs a shell command there, with that on its standard input; what it says."""
        with trio.fail_after(seconds):
            done = await trio.run_process(
                [*self._ssh, command],
                stdin=text.encode(),
                capture_stdout=True,
                capture_stderr=True,
                check=False,
            )
        if check and done.returncode:
            raise AssertionError(f"{command[:200]}: {done.stderr.decode()[-2000:]}")
        return done.stdout.decode()

    async def put(self, path: str, text: str) -> None:
        """Writes a file there."""
        await self.do(f"mkdir -p $(dirname {path}) && cat > {path}", text=text)

    async def log(self) -> list[tuple[float, str]]:
        """What the containers of the machine said, and when."""
        lines = (await self.do(f"cat {HOME}/log")).splitlines()
        return [(float(at), word) for at, _, word in (line.partition(" ") for line in lines)]

    async def boot(self) -> str:
        """Which start of the machine this is, "" while it does not answer."""
        try:
            return (await self.do("cat /proc/sys/kernel/random/boot_id", check=False, seconds=20)).strip()
        except trio.TooSlowError:
            return ""


def a_pod(name: str, code: int = 0, **spec: Any) -> Tree:
    """A pod of the node that says when it begins, when it is asked to end and when it does."""
    last = f"{say(name + '-asked')}; sleep 1; {say(name + '-end')}; exit {code}"
    script = f"trap '{last}' TERM; {say(name)}; while :; do sleep 3600 & wait $!; done"
    container = {
        "name": "c",
        "image": "localhost/busybox:1",
        "command": ["sh", "-c", script],
        "volumeMounts": [{"name": "log", "mountPath": "/journal"}],
    }
    more = {"nodeName": "node", "hostNetwork": True, "terminationGracePeriodSeconds": 5}
    volume = {"name": "log", "hostPath": {"path": HOME}}
    tree = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [container], "volumes": [volume], **more, **spec},
    }
    made = msgspec.convert(tree, v1.Pod)
    set_pod_defaults(made)
    found: Tree = json.loads(msgspec.json.encode(made))
    return found


class Scene:
    """The machine and the API server of its node."""

    def __init__(self, guest: Guest, cluster: Cluster) -> None:
        self.guest, self.cluster = guest, cluster

    def ready(self) -> tuple[str, str]:
        """The condition of that name: status and message."""
        try:
            conditions = self.cluster.store.get("nodes", "", "node")["status"]["conditions"]
        except (Refused, KeyError):
            return "", ""
        found = [(each["status"], each.get("message", "")) for each in conditions if each["type"] == "Ready"]
        return found[0] if found else ("", "")

    def status(self, name: str) -> Tree:
        """A pod's status."""
        return dict((self.cluster.shown(name) or {}).get("status") or {})

    def add(self, name: str, code: int = 0, **spec: Any) -> None:
        """A pod of the API server, that will end with this code."""
        self.cluster.store.create("pods", "default", a_pod(name, code, **spec))

    async def running(self, *names: str) -> None:
        """All of them run and have said so."""

        async def said() -> bool:
            return set(names) <= {word for _, word in await self.guest.log()}

        def run() -> bool:
            return all(self.status(name).get("phase") == "Running" for name in names)

        await wait_until(run, 90, "they run")
        await wait_until(said, 60, "they say so")

    async def held(self) -> str:
        """The delay that the agent holds, as logind lists it."""
        lines = (await self.guest.do("systemd-inhibit --list --no-legend --no-pager")).splitlines()
        return " ".join(next((line for line in lines if "kubelet" in line), "").split())

    async def prepare(self, directory: Path, url: str) -> None:
        """Containerd, images and the packaged service."""
        kubeconfig(directory, url, self.cluster.ca, "node")
        for name in ("kubeconfig", "node.pem", "ca.pem"):
            await self.guest.put(f"/etc/kubernetes/{name}", (directory / name).read_text())
        await self.guest.put("/etc/kubernetes/config.json", json.dumps(CONFIG))
        await self.guest.put("/etc/cni/net.d/10-pods.conflist", json.dumps(NETWORK))
        await self.guest.put("/etc/kubernetes/manifests/st.json", json.dumps(a_pod("st")))
        command = [
            "/opt/venv/bin/trio-kubelet",
            "--config=/etc/kubernetes/config.json",
            "--kubeconfig=/etc/kubernetes/kubeconfig",
            "--hostname-override=node",
            "-v=3",
        ]
        lines = (PROJECT / "packaging" / "trio-kubelet.service").read_text().splitlines()
        kept = [line for line in lines if not line.startswith("Environment")]
        start = f"ExecStart={shlex.join(command)}"
        unit = [start if line.startswith("ExecStart=") else line for line in kept]
        await self.guest.put("/etc/systemd/system/trio-kubelet.service", "\n".join(unit) + "\n")
        await self.guest.do(PREPARE, seconds=180)
        await wait_until(lambda: self.ready()[0] == "True", 60, "the node is ready")

    async def restarted_logind(self) -> None:
        """A logind that is started anew is asked for the delay again."""
        await self.guest.do("systemctl restart systemd-logind")
        began = time.monotonic()
        await wait_until(self.held, 60, "the delay is held again")
        print(f"logind started anew: the delay is held again {time.monotonic() - began:.1f} s after")

    def terminated(self, name: str) -> tuple[str, str]:
        """Phase and reason of a pod that ended with the node, "" while its status does not say that. One that
        ended well has no reason, as recorded.
        """
        status = self.status(name)
        told = [c for c in status.get("conditions") or () if c["type"] == "DisruptionTarget"]
        if not told or status["phase"] not in ("Succeeded", "Failed"):
            return "", ""
        assert (told[0]["status"], told[0]["reason"], told[0]["message"]) == (
            "True",
            "TerminationByKubelet",
            MESSAGE,
        )
        assert status.get("message", MESSAGE) == MESSAGE
        return str(status["phase"]), str(status.get("reason", ""))

    def is_terminated(self, name: str) -> bool:
        """Whether the status of the pod says that it ended with the node."""
        return bool(self.terminated(name)[0])

    async def goes_down(self, how: str, names: Sequence[str]) -> None:
        """Asks for it; all the API server is to be told is told."""
        began = time.monotonic()
        await self.guest.do(f"systemctl {how} --no-block --no-wall", check=False)
        await wait_until(lambda: self.ready()[1] == "node is shutting down", 15, "the node is not ready")
        print(f"{how}: not ready {time.monotonic() - began:.1f} s after")
        for name in names:
            await wait_until(partial(self.is_terminated, name), 30, f"the status of {name}")
        print(f"{how}: all statuses are written {time.monotonic() - began:.1f} s after")

    async def comes_back(self, boot: str) -> None:
        """It was rebooted, and the node is ready again."""
        began = time.monotonic()

        async def another() -> bool:
            return await self.guest.boot() not in ("", boot)

        await wait_until(another, 180, "the machine is up again")
        await wait_until(lambda: self.ready()[0] == "True", 120, "the node is ready again")
        print(f"ready again {time.monotonic() - began:.1f} s after")

    async def held_and_rebooted(self) -> None:
        """The delay is held, pods end in their groups, and the node comes back."""
        who = await self.held()
        print(f"held: {who}")
        assert who.startswith("kubelet 0 root ")
        assert who.endswith("shutdown Kubelet needs time to handle node shutdown delay")
        drop_in = await self.guest.do("cat /etc/systemd/logind.conf.d/99-kubelet.conf")
        assert drop_in == "# Kubelet logind override\n[Login]\nInhibitDelayMaxSec=30\n"
        delay = "busctl get-property org.freedesktop.login1 /org/freedesktop/login1 "
        delay += "org.freedesktop.login1.Manager InhibitDelayMaxUSec"
        assert (await self.guest.do(delay)).split() == ["t", "30000000"]
        await self.restarted_logind()
        self.add("low", priority=-10)
        self.add("web")
        self.add("crit", code=3, priority=CRITICAL)
        await self.running("low", "web", "crit")
        boot = await self.guest.boot()
        await self.goes_down("reboot", ("low", "web", "crit", "st-node"))
        await self.comes_back(boot)
        assert self.cluster.events("Shutdown")[0] == "Shutdown manager detected shutdown event"
        told = await self.guest.log()
        first: dict[str, float] = {}
        for at, word in told:
            first.setdefault(word, at)
        asked = [first[f"{name}-asked"] for name in ("low", "web", "st")]
        ended = [first[f"{name}-end"] for name in ("low", "web", "st")]
        assert max(asked) < min(ended), "the pods of a group end at the same time"
        assert max(ended) <= first["crit-asked"] < first["crit-end"]
        print(f"asked, ended: {dict(sorted(first.items(), key=lambda each: each[1]))}")
        state = json.loads(await self.guest.do("cat /var/lib/kubelet/graceful_node_shutdown_state"))
        assert "0001-01-01T00:00:00Z" not in (state["startTime"], state["endTime"])
        metrics = await self.guest.do("curl -s http://127.0.0.1:10255/metrics")
        name = "kubelet_graceful_shutdown_end_time_seconds "
        [shown] = [line for line in metrics.splitlines() if line.startswith(name)]
        assert float(shown.split()[1]) > 0

        async def again() -> bool:
            return [word for _, word in await self.guest.log()].count("st") == 2

        await wait_until(again, 60, "the static pod is there again")  # the others stay ended
        await wait_until(lambda: self.status("st-node").get("phase") == "Running", 30, "its mirror says so")
        print("the static pod runs again, and its mirror says so")
        phases = [self.terminated(name) for name in ("low", "web", "crit")]
        assert phases == [("Succeeded", ""), ("Succeeded", ""), ("Failed", "Terminated")]
        assert [word for _, word in await self.guest.log()].count("web") == 1

    async def switched_off(self) -> None:
        """The same once more, for good."""
        self.add("last")
        await self.running("last")
        await self.goes_down("poweroff", ("last",))


def tell(cluster: Cluster) -> None:
    """What the API server was told of the node and its pods."""
    for each in cluster.store.history:
        if each.new and each.resource in ("nodes", "pods"):
            status = each.new.get("status") or {}
            conditions = {
                c["type"]: (c["status"], c.get("message", "")) for c in status.get("conditions") or ()
            }
            words = [status.get(name) for name in ("phase", "reason", "message")]
            print(each.resource, each.new["metadata"]["name"], words, conditions)


async def play(ssh: Sequence[str]) -> None:
    """Reboots the machine and switches it off. Raises AssertionError."""
    cluster = Cluster()
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        tls = cluster.ca.server_context(directory, (GATEWAY,))
        async with serving(cluster.server, tls, host=GATEWAY) as url:
            scene = Scene(Guest(ssh), cluster)
            try:
                await scene.prepare(directory, url)
                await scene.held_and_rebooted()
                await scene.switched_off()
            except BaseException:
                tell(cluster)
                raise


def main() -> int:
    try:
        trio.run(play, sys.argv[1:])
    except BaseException:
        command = [*sys.argv[1:], "journalctl -b --no-pager -u trio-kubelet -u containerd | tail -80"]
        subprocess.run(command, check=False, timeout=60)
        raise
    return 0


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.exit(main())
