"""`trio-kubelet inspect MANIFEST`: what this node would make of a manifest, without a runtime.

Nothing is changed, not even a directory made. What only a runtime knows is assumed: the image is its own
name and runs as root, the pod's address is 0.0.0.0, the termination log's random name is zeros.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, MutableSequence, Sequence
from typing import Any

import msgspec
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from trio_kubelet.api import v1
from trio_kubelet.api.containers import regular_containers
from trio_kubelet.api.errors import ManifestError
from trio_kubelet.api.timestamps import rfc3339_nano_fixed
from trio_kubelet.api.tree import tree_of
from trio_kubelet.common.go_words import error_words, os_words
from trio_kubelet.config.flag_table import kubelet_flags
from trio_kubelet.config.load import ConfigurationError, Settings, load
from trio_kubelet.config.pflag import CommandLine, Flag, FlagError, parse_command_line
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.machine.facts import node_context, read_machine
from trio_kubelet.node.addresses import default_node_name, find_host_ips, parse_node_ip_flag
from trio_kubelet.node.subids import DEFAULT_IDS_PER_POD
from trio_kubelet.node.userns import namespace_of
from trio_kubelet.podinfo.context import ContainerInputs, NodeContext
from trio_kubelet.podinfo.doors import ConfigError
from trio_kubelet.podinfo.paths import container_dir
from trio_kubelet.podinfo.updates import CONFIG_SEEN_ANNOTATION, FILE_SOURCE
from trio_kubelet.runtime.configs.container import container_config
from trio_kubelet.runtime.configs.dns import parse_resolv_conf
from trio_kubelet.runtime.configs.sandbox import sandbox_config
from trio_kubelet.sources.manifest import MAX_MANIFEST_BYTES, Origin, static_pods
from trio_kubelet.sources.start import pod_rules
from trio_kubelet.volumes.errors import VolumeError
from trio_kubelet.volumes.plan import ImageVolume, PodWide, mount_point, plan_volume

_OWN_FLAGS = {
    flag.name: flag
    for flag in (
        Flag("node-name", "string", "Name of the node (default: the host name)"),
        Flag("as-path", "string", "Path to assume for the manifest; the pod's UID depends on it"),
        Flag("output", "string", "json or yaml", short="o"),
    )
}
_HELP = """\
Shows the pod, sandbox and container configs this node would make of a manifest.

Usage: trio-kubelet inspect MANIFEST [flags]        (MANIFEST - is standard input)

  --node-name NAME   name of the node (default: --hostname-override or the host name)
  --as-path PATH     path to assume for the manifest; the pod's UID depends on it
  --root-dir DIR     directory of the agent's files (default /var/lib/kubelet)
  --config FILE      the node's KubeletConfiguration
  -o json|yaml       output format (default json)

Any other flag of the agent is taken into account as well. The exit code is 1 for a manifest that would be
refused; the reason is on standard error.
"""
_ANY_ADDRESS = "0.0.0.0"
_NO_LOG_NAME = "00000000"


def render(message: Message) -> dict[str, Any]:
    """The fields of a message that are set; bytes as text, enums as numbers, maps sorted by key."""
    result: dict[str, Any] = {}
    for field, value in message.ListFields():
        kind = field.message_type
        if kind is not None and kind.GetOptions().map_entry:
            scalar = kind.fields_by_name["value"]
            result[field.name] = {key: _plain(scalar, value[key]) for key in sorted(value)}
        elif isinstance(value, MutableSequence):  # protobuf 5 has no other word that 7 has, too
            result[field.name] = [_plain(field, item) for item in value]
        else:
            result[field.name] = _plain(field, value)
    return result


def _plain(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None:
        return render(value)
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


class InspectError(Exception):
    """Nothing can be shown; the message says why."""


def main(argv: Sequence[str]) -> int:
    """Runs the command and returns its exit code."""
    try:
        line = parse_command_line(argv, {**kubelet_flags(), **_OWN_FLAGS})
        if line.values.get("help"):
            print(_HELP, end="")
            return 0
        documents = _run(line)
    except (FlagError, ConfigurationError, InspectError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    _write(documents, str(line.values.get("output", "json")))
    return 0


def inspect_pod(pod: v1.Pod, node: NodeContext, seen_ns: int) -> tuple[dict[str, Any], list[str]]:
    """What the node makes of a pod, and what of it could not be made and why."""
    notes: list[str] = []
    shown = tree_of({"metadata": pod.metadata, "spec": pod.spec})
    shown["metadata"].pop("managedFields", None)  # as in what kubectl shows
    result: dict[str, Any] = {"pod": shown}
    # The moment a pod was first seen is noted when it is taken up, so it is in no manifest's own pod.
    annotations = {**(pod.metadata.annotations or {}), CONFIG_SEEN_ANNOTATION: rfc3339_nano_fixed(seen_ns)}
    pod = msgspec.structs.replace(
        pod, metadata=msgspec.structs.replace(pod.metadata, annotations=annotations)
    )
    userns = None
    if pod.spec.host_users is False:
        userns = namespace_of(DEFAULT_IDS_PER_POD, DEFAULT_IDS_PER_POD)
    try:
        config = as_containerd_keeps(sandbox_config(pod, node, user_namespace=userns))
        result["sandboxConfig"] = render(config)
    except ConfigError as error:
        notes.append(f"the sandbox cannot be created: {error}")
    result["containerConfigs"] = []
    for container in regular_containers(pod.spec):
        try:
            made = container_config(pod, container, node, _inputs(pod, container, node, userns))
        except (ConfigError, VolumeError) as error:
            notes.append(f'container "{container.name}" cannot be created: {error}')
        else:
            result["containerConfigs"].append(render(made))
    return result, notes


def as_containerd_keeps(config: cri.PodSandboxConfig) -> cri.PodSandboxConfig:
    """The config as containerd 2 keeps and shows it: where sysctls are set at all, it writes its own into the
    same map, for pods with a network (and for pings, users) of their own.
    """
    options = config.linux.security_context.namespace_options
    sysctls = config.linux.sysctls
    if sysctls and options.network != cri.NODE:
        added = {"net.ipv4.ip_unprivileged_port_start": "0"}
        if not options.HasField("userns_options") or options.userns_options.mode == cri.NODE:
            added["net.ipv4.ping_group_range"] = "0 2147483647"
        sysctls.update({name: value for name, value in added.items() if name not in sysctls})
    return config


def _inputs(
    pod: v1.Pod, container: v1.Container, node: NodeContext, userns: cri.UserNamespace | None
) -> ContainerInputs:
    used = {mount.name for mount in container.volume_mounts or ()}
    volumes, images, shared = {}, {}, PodWide(pod, node)
    for volume in pod.spec.volumes or ():
        if volume.name not in used:
            continue
        plan = plan_volume(pod, volume, node, shared)
        point = mount_point(plan)
        if point is not None:
            volumes[volume.name] = point
        elif isinstance(plan, ImageVolume) and volume.image is not None:
            reference = volume.image.reference
            images[volume.name] = cri.ImageSpec(image=reference, user_specified_image=reference)
    directory = container_dir(node.root_dir, pod.metadata.uid, container.name)
    return ContainerInputs(
        image_ref=container.image,
        pod_ips=() if pod.spec.host_network else (_ANY_ADDRESS,),
        volumes=volumes,
        image_volumes=images,
        termination_log=f"{directory}/{_NO_LOG_NAME}",
        user_namespace=userns,
    )


def _run(line: CommandLine) -> list[dict[str, Any]]:
    if len(line.words) != 1:
        raise InspectError(f"expected one manifest, got {len(line.words)}; see trio-kubelet inspect --help")
    if line.values.get("output", "json") not in ("json", "yaml"):
        raise InspectError(f"unknown output format {line.values['output']!r}: expected json or yaml")
    own = {name: value for name, value in line.values.items() if name in _OWN_FLAGS}
    others = {name: value for name, value in line.values.items() if name not in _OWN_FLAGS}
    settings = load(CommandLine(others, ()), check_host=False)
    node = _node(settings, str(own.get("node-name", "")))
    name = line.words[0]
    path = str(own.get("as-path", "")) or os.path.abspath(name)
    try:
        origin = Origin(node.node_name, FILE_SOURCE, path, pod_rules(settings.gates))
        pods = static_pods(_read(name), origin)
    except ManifestError as error:
        raise InspectError("\nerror: ".join(f"{name}: {each}" for each in error.errors)) from None
    documents = []
    for pod in pods:
        document, notes = inspect_pod(pod, node, time.time_ns())
        documents.append(document)
        for note in notes:
            print(f"warning: {name}: {note}", file=sys.stderr)
    return documents


def _node(settings: Settings, node_name: str) -> NodeContext:
    flags = settings.flags
    root_dir = os.path.abspath(flags.root_dir)
    try:
        name = node_name or default_node_name(flags.hostname_override)
        node_ips = parse_node_ip_flag(flags.node_ip)
    except ValueError as error:
        raise InspectError(str(error)) from None
    node = node_context(
        read_machine(root_dir),
        settings.config,
        settings.gates,
        node_name=name,
        root_dir=root_dir,
        host_ips=find_host_ips(name, node_ips),
        node_ips=node_ips.all,
        seccomp_default=flags.seccomp_default,
    )
    path = settings.config.resolv_conf
    if not path:
        return node
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return msgspec.structs.replace(node, resolv_conf=parse_resolv_conf(file.read()))
    except (OSError, ValueError) as error:
        raise InspectError(f"resolvConf {path}: {error_words(error)}") from None


def _read(name: str) -> bytes:
    try:
        if name == "-":
            data = sys.stdin.buffer.read(MAX_MANIFEST_BYTES + 1)
        else:
            with open(name, "rb") as file:
                data = file.read(MAX_MANIFEST_BYTES + 1)
    except OSError as error:
        raise InspectError(f"{name}: {os_words(error)}") from None
    if len(data) > MAX_MANIFEST_BYTES:
        raise InspectError(f"{name}: a manifest has at most {MAX_MANIFEST_BYTES} bytes")
    return data


def _write(documents: Sequence[Mapping[str, Any]], form: str) -> None:
    """One document for each pod; a manifest with a list of pods gives several."""
    if form == "yaml":
        from trio_kubelet.api.yaml_writer import yaml_bytes  # knows YAML, which costs time

        print("---\n".join(yaml_bytes(each, sort_keys=False).decode() for each in documents), end="")
        return
    for document in documents:
        print(json.dumps(document, indent=2, ensure_ascii=False))
