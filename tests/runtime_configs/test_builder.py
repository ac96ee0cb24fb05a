"""The builder puts in place what the configs name."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from tests.runtime_configs.pods import NODE, container, first, pod
from tests.slowness import within_cpu
from trio_kubelet.api import v1
from trio_kubelet.node.userns import UserNamespaceRanges
from trio_kubelet.podinfo.context import NodeContext, RuntimeHandler
from trio_kubelet.podinfo.doors import ConfigError, LogDirectoryError, ObjectError
from trio_kubelet.runtime.configs.builder import ConfigBuilder
from trio_kubelet.runtime.doors import ContainerRequest
from trio_kubelet.volumes.files import unmount_all

_REQUEST = ContainerRequest(restart_count=0, image_ref="sha256:1", pod_ips=("10.0.0.1",))


class _Objects:
    async def config_map(self, namespace: str, name: str) -> v1.ConfigMap | None:
        if name == "broken":
            raise ObjectError("the API server does not answer")
        return v1.ConfigMap(data={"k": "v"}) if (namespace, name) == ("ns", "m") else None

    async def secret(self, namespace: str, name: str) -> v1.Secret | None:
        return v1.Secret(data={"k": b"hidden"}) if name == "s" else None

    async def service_account_token(self, pod: v1.Pod, source: v1.ServiceAccountTokenProjection) -> str:
        raise NotImplementedError


class _Events:
    def __init__(self) -> None:
        self.reasons: list[str] = []

    def record(self, pod: v1.Pod, type: str, reason: str, message: str, field_path: str = "") -> None:
        self.reasons.append(reason)


def _node(tmp_path: Path) -> NodeContext:
    return msgspec.structs.replace(NODE, root_dir=f"{tmp_path}/root", pod_logs_dir=f"{tmp_path}/logs")


def _builder(tmp_path: Path, resolv_conf: str = "", **parts: Any) -> ConfigBuilder:
    node = _node(tmp_path)
    ranges = UserNamespaceRanges(node.root_dir, lambda: {"": RuntimeHandler(user_namespaces=True)})
    return ConfigBuilder(lambda: node, resolv_conf, ranges, **parts)


async def test_sandbox_reads_resolv_conf_each_time_and_makes_its_log_directory(tmp_path: Path) -> None:
    resolv_conf = tmp_path / "resolv.conf"
    resolv_conf.write_text("nameserver 1.1.1.1\n")
    events = _Events()
    builder = _builder(tmp_path, str(resolv_conf), events=events)
    made = pod()
    assert list((await builder.sandbox_config(made, 0)).dns_config.servers) == ["1.1.1.1"]
    resolv_conf.write_text("nameserver 2.2.2.2\n")
    config = await builder.sandbox_config(made, 1)
    assert list(config.dns_config.servers) == ["2.2.2.2"]
    assert config.metadata.attempt == 1
    assert stat.S_IMODE(os.stat(config.log_directory).st_mode) == 0o755
    assert events.reasons == ["MissingClusterDNS"] * 2
    with resolv_conf.open("wb") as file:
        file.truncate((10 << 20) + 1)
    with pytest.raises(ConfigError, match=r"parsing resolv conf file. Error: the read limit is reached$"):
        await builder.sandbox_config(made, 2)
    resolv_conf.unlink()
    with pytest.raises(ConfigError, match="no such file"):
        await builder.sandbox_config(made, 2)


async def test_dns_settings_that_are_too_much_are_told_again(tmp_path: Path) -> None:
    resolv_conf = tmp_path / "resolv.conf"
    resolv_conf.write_text("nameserver 1.1.1.1\nnameserver 2.2.2.2\n")
    events = _Events()
    builder = _builder(tmp_path, str(resolv_conf), events=events)
    much = pod(dnsPolicy="Default", dnsConfig={"nameservers": ["3.3.3.3", "4.4.4.4"]})
    for made in (much, pod(), pod(dnsConfig={"options": [{"name": "rotate"}]})):
        await builder.sandbox_config(made, 0)
        events.reasons.clear()
        builder.remind(made)
        assert events.reasons == ["DNSConfigForming"] * (made is much)


async def test_container_finds_its_files(tmp_path: Path) -> None:
    made = pod(container(terminationMessagePath="/dev/termination-log"), hostAliases=[{"ip": "1.1.1.1"}])
    builder = _builder(tmp_path)
    config = await builder.container_config(made, first(made), _REQUEST)
    hosts, log = (Path(mount.host_path) for mount in config.mounts)
    assert "10.0.0.1\tp\n" in hosts.read_text()
    assert stat.S_IMODE(hosts.stat().st_mode) == 0o644
    assert (log.read_bytes(), stat.S_IMODE(log.stat().st_mode)) == (b"", 0o666)
    assert (tmp_path / "logs/ns_p_u1/c").is_dir()
    first_inode = hosts.stat().st_ino
    again = await builder.container_config(
        made, first(made), msgspec.structs.replace(_REQUEST, restart_count=1)
    )
    assert again.mounts[1].host_path != str(log)
    # A running container has the file itself mounted: replaced, it would not see the new one.
    assert hosts.stat().st_ino == first_inode


async def test_restarts_that_nobody_counted_are_counted_by_the_logs(tmp_path: Path) -> None:
    made, builder = pod(), _builder(tmp_path)
    unknown = msgspec.structs.replace(_REQUEST, restart_count=None)
    assert (await builder.container_config(made, first(made), unknown)).metadata.attempt == 0
    (tmp_path / "logs/ns_p_u1/c/4.log.20261122").touch()
    config = await builder.container_config(made, first(made), unknown)
    assert (config.metadata.attempt, config.log_path) == (5, "c/5.log")
    assert (await builder.container_config(made, first(made), _REQUEST)).metadata.attempt == 0


async def test_a_log_directory_that_cannot_be_made(tmp_path: Path) -> None:
    made, builder = pod(), _builder(tmp_path)
    (tmp_path / "logs").write_text("in the way")
    with pytest.raises(ConfigError) as caught:
        await builder.container_config(made, first(made), _REQUEST)
    start = "create container log directory for container c failed: mkdir "
    assert str(caught.value) == f"{start}{tmp_path}/logs/ns_p_u1: not a directory"
    with pytest.raises(LogDirectoryError, match=r"^mkdir .*/logs/ns_p_u1: not a directory$"):
        await builder.sandbox_config(made, 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
async def test_sub_path_is_bound_and_a_bad_one_tells_nothing_of_the_node(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "evil").symlink_to("/etc")
    mount = {"name": "h", "mountPath": "/x", "subPath": "sub"}
    volumes = [{"name": "h", "hostPath": {"path": str(data)}}]
    made = pod(container(volumeMounts=[mount]), volumes=volumes)
    builder = _builder(tmp_path)
    try:
        config = await builder.container_config(made, first(made), _REQUEST)
        assert os.stat(config.mounts[0].host_path).st_ino == os.stat(data / "sub").st_ino
    finally:
        unmount_all(str(tmp_path))
    (data / "file").touch()
    for path, failed in (
        ("evil", "prepare subPath"),
        ("evil/none", "create subPath directory"),
        ("file/below", "prepare subPath"),
    ):
        bad = pod(container(volumeMounts=[{**mount, "subPath": path}]), volumes=volumes)
        with pytest.raises(ConfigError) as caught:
            await builder.container_config(bad, first(bad), _REQUEST)
        assert str(caught.value) == f'failed to {failed} for volumeMount "h" of container "c"'


class _Services:
    async def variables(self, pod: v1.Pod) -> dict[str, str]:
        return {"SVC": "1"}


async def test_variables_come_from_objects_and_files(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "vars").write_text("F='from file'\n")
    sources = {
        "M": {"configMapKeyRef": {"name": "m", "key": "k"}},
        "S": {"secretKeyRef": {"name": "s", "key": "k"}},
        "F": {"fileKeyRef": {"volumeName": "h", "path": "vars", "key": "F"}},
    }
    env = [{"name": name, "valueFrom": source} for name, source in sources.items()]
    reader = container(env=env, volumeMounts=[{"name": "h", "mountPath": "/h"}])
    made = pod(reader, volumes=[{"name": "h", "hostPath": {"path": str(data)}}])
    builder = _builder(tmp_path, objects=_Objects(), services=_Services())
    config = await builder.container_config(made, first(made), _REQUEST)
    assert {entry.key: entry.value for entry in config.envs} == {
        "M": b"v",
        "S": b"hidden",
        "F": b"from file",
        "SVC": b"1",
    }


@pytest.mark.parametrize(
    ("source", "objects", "error"),
    [
        ("m", None, "couldn't get configMap ns/m, no kubeClient defined"),
        ("none", _Objects(), 'configmap "none" not found'),
        ("broken", _Objects(), "does not answer"),
    ],
)
async def test_objects_that_cannot_be_had(
    tmp_path: Path, source: str, objects: _Objects | None, error: str
) -> None:
    made = pod(container(envFrom=[{"configMapRef": {"name": source}}]))
    with pytest.raises(ConfigError, match=error):
        await _builder(tmp_path, objects=objects).container_config(made, first(made), _REQUEST)


async def test_runtime_class_without_an_api_server_refuses_that_pod(tmp_path: Path) -> None:
    builder = _builder(tmp_path)
    assert builder.runtime_handler(pod(runtimeClassName="")) == ""
    with pytest.raises(ConfigError, match='"gvisor" not found'):
        builder.runtime_handler(pod(runtimeClassName="gvisor"))


async def test_pods_without_host_users_get_ranges_that_outlive_the_agent(tmp_path: Path) -> None:
    first_pod, second_pod = (pod(hostUsers=False, meta={"uid": uid}) for uid in ("a", "b"))
    hosts = []
    for made in (first_pod, second_pod, first_pod):
        config = await _builder(tmp_path).sandbox_config(made, 0)
        options = config.linux.security_context.namespace_options.userns_options
        hosts.append(options.uids[0].host_id)
    assert hosts[0] == hosts[2] != hosts[1]
    assert all(host % 65536 == 0 and host for host in hosts)
    record = msgspec.json.decode((tmp_path / "root/pods/b/userns").read_bytes())
    assert (
        record["uidMappings"]
        == record["gidMappings"]
        == [{"hostId": hosts[1], "containerId": 0, "length": 65536}]
    )


async def test_runtime_that_cannot_map_users_refuses_that_pod(tmp_path: Path) -> None:
    node = _node(tmp_path)
    builder = ConfigBuilder(lambda: node, "", UserNamespaceRanges(node.root_dir, dict))
    await builder.sandbox_config(pod(), 0)
    with pytest.raises(ConfigError, match="does not support user namespaces"):
        await builder.sandbox_config(pod(hostUsers=False), 0)


async def test_kernel_parameters_reach_the_runtime_with_dots(tmp_path: Path) -> None:
    given = [{"name": "kernel/shm_rmid_forced", "value": "1"}, {"name": "net/ipv4/conf/e.1/x", "value": "2"}]
    config = await _builder(tmp_path).sandbox_config(pod(securityContext={"sysctls": given}), 0)
    assert dict(config.linux.sysctls) == {"kernel.shm_rmid_forced": "1", "net.ipv4.conf.e/1.x": "2"}


def _with_env_file(tmp_path: Path) -> tuple[v1.Pod, Path]:
    """A pod that reads variable X from a file of its empty directory."""
    ref = {"fileKeyRef": {"volumeName": "v", "path": "env", "key": "K"}}
    mount = {"name": "v", "mountPath": "/v"}
    reader = container(env=[{"name": "X", "valueFrom": ref}], volumeMounts=[mount])
    made = pod(reader, volumes=[{"name": "v", "emptyDir": {}}])
    directory = tmp_path / "root" / "pods" / made.metadata.uid / "volumes/kubernetes.io~empty-dir/v"
    directory.mkdir(parents=True)
    return made, directory / "env"


async def test_an_env_file_is_read(tmp_path: Path) -> None:
    made, path = _with_env_file(tmp_path)
    path.write_bytes(b"K='v'\r\n")
    config = await _builder(tmp_path).container_config(made, first(made), _REQUEST)
    assert [(each.key, each.value) for each in config.envs] == [("X", b"v")]


async def test_a_variable_that_no_env_file_has(tmp_path: Path) -> None:
    made, path = _with_env_file(tmp_path)
    path.write_text("L='v'\n")
    with pytest.raises(ConfigError) as missing:
        await _builder(tmp_path).container_config(made, first(made), _REQUEST)
    assert str(missing.value) == f'environment variable key "K" not found in file "{path}"'
    source = (first(made).env or [])[0].value_from
    assert source is not None
    assert source.file_key_ref is not None
    source.file_key_ref.optional = True
    config = await _builder(tmp_path).container_config(made, first(made), _REQUEST)
    assert not config.envs
    path.write_text("K=v\n")  # no quotes
    with pytest.raises(ConfigError, match=r"^couldn't parse env file$"):
        await _builder(tmp_path).container_config(made, first(made), _REQUEST)


async def test_an_env_file_of_a_volume_that_nobody_mounts(tmp_path: Path) -> None:
    made, path = _with_env_file(tmp_path)
    path.write_text("K='v'\n")
    first(made).volume_mounts = None
    with pytest.raises(ConfigError, match=r'^cannot find the volume "v" referenced by FileKeyRef$'):
        await _builder(tmp_path).container_config(made, first(made), _REQUEST)


def _read_from(made: v1.Pod, *files: tuple[str, str]) -> None:
    """Gives the pod a variable for each path and key."""
    made_of = [{"fileKeyRef": {"volumeName": "v", "path": path, "key": key}} for path, key in files]
    env = [{"name": f"X{number}", "valueFrom": source} for number, source in enumerate(made_of)]
    first(made).env = msgspec.convert(env, list[v1.EnvVar])


async def test_env_files_have_a_bound_together(tmp_path: Path) -> None:
    """Every variable had a megabyte of its own: a manifest filled the memory of the node."""
    made, path = _with_env_file(tmp_path)
    path.write_text("K='v'\n#".ljust(1 << 20, "x"))
    for number in range(17):
        (path.parent / f"f{number}").hardlink_to(path)
    _read_from(made, *((f"f{number}", "K") for number in range(16)))
    config = await _builder(tmp_path).container_config(made, first(made), _REQUEST)
    assert [each.value for each in config.envs] == [b"v"] * 16
    _read_from(made, *((f"f{number}", "K") for number in range(17)))
    with pytest.raises(ConfigError, match=r"^the env files have more than 16777216 bytes$"):
        await _builder(tmp_path).container_config(made, first(made), _REQUEST)


async def test_an_env_file_is_read_once(tmp_path: Path) -> None:
    """However many variables it has: it counts once."""
    made, path = _with_env_file(tmp_path)
    path.write_text("".join(f"K{number}='{number}'\n" for number in range(20)).ljust(1 << 20, "\n"))
    _read_from(made, *(("env", f"K{number}") for number in range(20)))
    config = await _builder(tmp_path).container_config(made, first(made), _REQUEST)
    assert [each.value for each in config.envs] == [str(number).encode() for number in range(20)]


@pytest.mark.parametrize("kind", ["fifo", "sparse", "bytes", "link", "device", "none"])
async def test_an_env_file_that_is_none_fails_its_container(tmp_path: Path, kind: str) -> None:
    """A FIFO took a thread for ever, a sparse file was read whole, other bytes than UTF-8 were a defect."""
    made, path = _with_env_file(tmp_path)
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "sparse":
            path.touch()
            os.truncate(path, 1 << 42)
        case "bytes":
            path.write_bytes(b"K='\xff'")
        case "link":
            (tmp_path / "secret").write_text("K='of the node'")
            path.symlink_to(tmp_path / "secret")
        case "device":
            path.symlink_to("/dev/zero")
    with trio.fail_after(30), pytest.raises(ConfigError, match=r"^couldn't parse env file$"):
        await _builder(tmp_path).container_config(made, first(made), _REQUEST)


async def test_without_its_gate_an_env_file_is_not_looked_at(tmp_path: Path) -> None:
    made, path = _with_env_file(tmp_path)
    os.mkfifo(path)
    node = _node(tmp_path)
    features = msgspec.structs.replace(node.features, env_files=False)
    node = msgspec.structs.replace(node, features=features)
    ranges = UserNamespaceRanges(node.root_dir, dict)
    with trio.fail_after(30):
        config = await ConfigBuilder(lambda: node, "", ranges).container_config(made, first(made), _REQUEST)
    assert [(each.key, each.value) for each in config.envs] == [("X", b"")]


async def test_a_hosts_file_that_a_container_has_blown_up_is_not_read(tmp_path: Path) -> None:
    made, builder = pod(container()), _builder(tmp_path)
    config = await builder.container_config(made, first(made), _REQUEST)
    hosts = trio.Path(config.mounts[0].host_path)
    wanted = await hosts.read_bytes()
    os.truncate(hosts, 1 << 42)
    await builder.container_config(made, first(made), _REQUEST)
    assert await hosts.read_bytes() == wanted


async def test_one_of_thousands_of_containers_costs_as_one_of_few(tmp_path: Path) -> None:
    """For each, all containers were looked through: for who mounts what, and for the QoS class."""
    some: dict[str, Any] = {"resources": {"requests": {"memory": "1Mi"}}}
    numbers = range(3000)
    made = pod(
        *(
            container(name=f"c{n}", volumeMounts=[{"name": f"v{n}", "mountPath": "/v"}], **some)
            for n in numbers
        ),
        initContainers=[container(name=f"i{n}", restartPolicy="Always", **some) for n in numbers],
        volumes=[{"name": f"v{n}", "secret": {"secretName": "s"}} for n in numbers],
    )
    builder = _builder(tmp_path)
    for _ in within_cpu(2.0):
        for each in [*(made.spec.containers or ())[:150], *(made.spec.init_containers or ())[:150]]:
            await builder.container_config(made, each, _REQUEST)
