"""What a container finds around it, and what the node finds of the container."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

from tests.containerd.conftest import CHOSEN, NewNode
from tests.containerd.harness import Node, container, pod, wait_until
from tests.containerd.registry import Registry, running_registry
from tests.containerd.scenes import Journal, container_state, log_links, say, until_restarted, until_waiting
from trio_kubelet.standalone.images import BUSYBOX_IMAGE
from trio_kubelet.standalone.node import Provisions


async def test_volumes(node: Node) -> None:
    host = node.layout.base / "host"
    host.mkdir()
    (host / "file").write_text("from the host\n")
    names = {"disk": "/disk", "memory": "/memory", "made": "/made", "facts": "/facts", "file": "/file"}
    mounts = [{"name": name, "mountPath": path} for name, path in names.items()]
    mounts.append({"name": "disk", "mountPath": "/part", "subPath": "deep/er"})
    items = [
        {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
        {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}},
        {
            "path": "memory",
            "resourceFieldRef": {"containerName": "main", "resource": "limits.memory", "divisor": "1Mi"},
        },
    ]
    manifest = pod(
        "volumes",
        container(volumeMounts=mounts, resources={"limits": {"memory": "64Mi"}}),
        container("other", volumeMounts=[{"name": "disk", "mountPath": "/same"}]),
        volumes=[
            {"name": "disk", "emptyDir": {}},
            {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "2Mi"}},
            {"name": "made", "hostPath": {"path": str(host / "made"), "type": "DirectoryOrCreate"}},
            {"name": "file", "hostPath": {"path": str(host / "file"), "type": "File"}},
            {"name": "facts", "downwardAPI": {"items": items}},
        ],
    )
    manifest["metadata"]["labels"] = {"app": "volumes"}
    node.write(manifest)
    main, other = (c.id for c in await node.wait_running("volumes", "main", "other"))
    await node.exec(main, "sh", "-c", "echo shared > /disk/a; echo part > /part/b; echo up > /made/c")
    assert await node.exec(other, "cat", "/same/a", "/same/deep/er/b") == "shared\npart\n"
    assert (host / "made" / "c").read_text() == "up\n"
    assert stat.S_IMODE((host / "made").stat().st_mode) == 0o755
    assert await node.exec(main, "cat", "/file") == "from the host\n"
    facts = await node.exec(
        main, "sh", "-c", "cat /facts/name; echo; cat /facts/labels; echo; cat /facts/memory"
    )
    assert facts.split() == [f"volumes-{node.name}", 'app="volumes"', "64"]
    mounted = await node.exec(main, "sh", "-c", "grep ' /memory ' /proc/mounts")
    assert mounted.startswith("tmpfs /memory tmpfs rw")
    assert "size=2048k" in mounted
    assert (await node.exec(main, "stat", "-c", "%a", "/disk")).strip() == "777"


async def test_a_host_path_of_the_wrong_kind_holds_only_its_pod_back(node: Node) -> None:
    wrong = {"name": "host", "hostPath": {"path": str(node.layout.base / "nowhere"), "type": "Directory"}}
    node.write(
        pod("wrong", container(volumeMounts=[{"name": "host", "mountPath": "/host"}]), volumes=[wrong])
    )
    node.write(pod("right"))
    await node.wait_running("right")
    await until_waiting(node, "wrong", "ContainerCreating")
    assert await node.running("wrong") == []
    (node.layout.base / "nowhere").mkdir()
    await node.wait_running("wrong", timeout=40)


async def test_a_volume_type_without_support_fails_its_pod_with_a_reason(node: Node) -> None:
    disk = {"name": "disk", "flexVolume": {"driver": "test.example/disk"}}
    mount = {"name": "disk", "mountPath": "/disk"}
    node.write(pod("unsupported", container(volumeMounts=[mount]), volumes=[disk]))
    node.write(pod("plain"))
    await node.wait_running("plain")

    def told() -> bool:
        assert node.agent is not None
        lines = node.agent.log_text().splitlines()
        reason = "no volume plugin matched"
        return any(f"unsupported-{node.name}" in line and "disk" in line and reason in line for line in lines)

    async def shown() -> str | None:
        return (await node.pod_status("unsupported")).get("phase")

    await wait_until(told, 15, "the reason names pod and volume")
    assert await wait_until(shown, 15, "the pod has a status") in ("Pending", "Failed")
    assert await node.containers("unsupported") == []


async def test_hosts_hostname_and_resolver(node: Node) -> None:
    aliases = [{"ip": "10.1.2.3", "hostnames": ["alias", "other.alias"]}]
    dns = {
        "nameservers": ["192.0.2.1"],
        "searches": ["example.test"],
        "options": [{"name": "ndots", "value": "3"}],
    }
    node.write(pod("hosts", hostAliases=aliases, hostname="given", dnsPolicy="None", dnsConfig=dns))
    [main] = await node.wait_running("hosts")
    hosts = await node.exec(main.id, "cat", "/etc/hosts")
    assert hosts.startswith("# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n")
    assert f"{await node.pod_ip('hosts')}\tgiven\n" in hosts
    assert "10.1.2.3\talias\tother.alias\n" in hosts
    assert (await node.exec(main.id, "hostname")).strip() == "given"
    resolver = await node.exec(main.id, "cat", "/etc/resolv.conf")
    assert resolver == "search example.test\nnameserver 192.0.2.1\noptions ndots:3\n"


async def test_termination_messages(node: Node) -> None:
    from_file = container("file", "echo 'last words' > /dev/termination-log; exit 3")
    own_path = {"terminationMessagePath": "/tmp/message"}
    elsewhere = container("path", "echo -n moved > /tmp/message; exit 4", **own_path)
    fallback = {"terminationMessagePolicy": "FallbackToLogsOnError"}
    from_log = container("log", "echo first; echo second; exit 5", **fallback)
    node.write(pod("message", from_file, elsewhere, from_log, restartPolicy="Never"))

    async def told() -> dict[str, tuple[int, str]] | None:
        found = {}
        for name in ("file", "path", "log"):
            ended = ((await container_state(node, "message", name)).get("state") or {}).get("terminated")
            if ended is None:
                return None
            found[name] = (ended["exitCode"], ended.get("message", ""))
        return found

    assert await wait_until(told, 20) == {
        "file": (3, "last words\n"),
        "path": (4, "moved"),
        "log": (5, "first\nsecond\n"),
    }


async def test_log_links_lead_to_what_the_container_wrote(node: Node) -> None:
    node.write(pod("logs", container("main", "echo to stdout; echo to stderr >&2; sleep 1000")))
    [main] = await node.wait_running("logs")
    [name] = await wait_until(lambda: log_links(node, "logs"))
    assert name == f"logs-{node.name}_default_main-{main.id}.log"
    link = node.layout.pod_logs.parent / "containers" / name
    uid = main.labels["io.kubernetes.pod.uid"]
    assert os.readlink(link) == str(
        node.layout.pod_logs / f"default_logs-{node.name}_{uid}" / "main" / "0.log"
    )
    await wait_until(lambda: len(link.read_text().splitlines()) == 2)
    shown = {tuple(line.split(" ", 3)[1:]) for line in link.read_text().splitlines()}
    assert shown == {("stdout", "F", "to stdout"), ("stderr", "F", "to stderr")}


async def test_a_restart_continues_with_the_next_log_file(node: Node) -> None:
    journal = Journal.of(node, "restart-logs")
    again = "grep -q up /journal/log"
    script = f"echo hello; {again} && {say('up')} && exec sleep 3600; {say('up')}; exit 1"
    node.write(journal.pod("restarts", container("main", script)))
    await journal.until("up", "up")
    newest = (await node.containers("restarts"))[0]
    uid = newest.labels["io.kubernetes.pod.uid"]
    directory = node.layout.pod_logs / f"default_restarts-{node.name}_{uid}" / "main"
    await wait_until(lambda: {path.name for path in directory.iterdir()} == {"0.log", "1.log"})
    await until_restarted(node, "restarts")


async def test_image_pull_policies(new_node: NewNode, provisions: Callable[[str], Provisions]) -> None:
    images = provisions(CHOSEN).images_archive
    # The registry's image is the one the node has under another name: with records of pulls, as by default,
    # a pod that names the other would have to pull it, too.
    config = {"imagePullCredentialsVerificationPolicy": "NeverVerify"}
    with running_registry(images) as registry:
        async with new_node() as node:
            await node.start_agent("-v=4", config=config)
            await _pull_by_policy(node, registry)


async def _pull_by_policy(node: Node, registry: Registry) -> None:
    here, there = BUSYBOX_IMAGE, registry.reference("busybox:1")

    def puller(name: str, image: str, policy: str) -> None:
        node.write(pod(name, container("main", image=image, imagePullPolicy=policy)))

    puller("never", "localhost/missing:1", "Never")
    puller("present", here, "IfNotPresent")
    puller("pulled", there, "IfNotPresent")
    puller("denied", registry.reference("missing:1"), "IfNotPresent")
    await node.wait_running("present")
    await node.wait_running("pulled")
    assert any("busybox/manifests/1" in path for path in registry.requests)
    asked = len(registry.requests)
    puller("again", there, "IfNotPresent")
    await node.wait_running("again")
    assert not any("busybox" in path for path in registry.requests[asked:])
    puller("always", there, "Always")
    await node.wait_running("always")
    assert any("busybox/manifests/1" in path for path in registry.requests[asked:])
    message = (await until_waiting(node, "never", "ErrImageNeverPull"))["message"]
    assert "localhost/missing:1" in message
    message = (await until_waiting(node, "denied", "ImagePullBackOff"))["message"]
    assert "missing:1" in message


async def test_the_pod_s_cgroup_has_its_limits(node: Node) -> None:
    resources = {"requests": {"cpu": "100m", "memory": "32Mi"}, "limits": {"cpu": "200m", "memory": "64Mi"}}
    node.write(pod("limited", container(resources=resources)))
    [main] = await node.wait_running("limited")
    uid = main.labels["io.kubernetes.pod.uid"]
    groups = [Path(trace) for trace in node.pod_traces(uid) if f"kubepods/burstable/pod{uid}" in trace]
    assert groups
    limits = [path / "memory.limit_in_bytes" for path in groups if (path / "memory.limit_in_bytes").exists()]
    limits += [path / "memory.max" for path in groups if (path / "memory.max").exists()]
    assert {path.read_text().strip() for path in limits} == {str(64 << 20)}
    assert all((path / main.id).is_dir() for path in groups if (path / "cgroup.procs").exists())


async def test_environment_variables(node: Node) -> None:
    env = [
        {"name": "FIRST", "value": "1"},
        {"name": "SECOND", "value": "$(FIRST)-$(NONE)"},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    ]
    node.write(pod("env", container(env=env)))
    [main] = await node.wait_running("env")
    lines = (await node.exec(main.id, "env")).splitlines()
    assert {"FIRST=1", "SECOND=1-$(NONE)", f"NODE={node.name}", f"IP={await node.pod_ip('env')}"} <= set(
        lines
    )
