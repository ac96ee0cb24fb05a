"""Pods for these tests, from the fields that matter to one."""

from __future__ import annotations

from typing import Any

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.podinfo.context import NodeContext

NODE = NodeContext(
    node_name="node1",
    root_dir="/root",
    host_ips=("192.0.2.2", "2001:db8::2"),
    memory_capacity=1000 << 20,
    allocatable={"cpu": "4", "memory": "1000Mi", "ephemeral-storage": "100Gi"},
    huge_page_sizes=("2MB", "1GB"),
)


def node(**changes: Any) -> NodeContext:
    """The node with some of its fields changed."""
    return msgspec.structs.replace(NODE, **changes)


def container(**fields: Any) -> dict[str, Any]:
    """A container as it stands in a manifest."""
    return {"name": "c", "image": "i", **fields}


def pod(*containers: dict[str, Any], meta: dict[str, Any] | None = None, **spec: Any) -> v1.Pod:
    """A pod with defaults of the API server where configs depend on them."""
    metadata = {"name": "p", "namespace": "ns", "uid": "u1", **(meta or {})}
    defaults = {"dnsPolicy": "ClusterFirst", "enableServiceLinks": True, "securityContext": {}}
    containers = containers or (container(),)
    fields = {"metadata": metadata, "spec": {**defaults, "containers": list(containers), **spec}}
    return msgspec.convert(fields, v1.Pod)


def first(of: v1.Pod) -> v1.Container:
    """The pod's first container."""
    assert of.spec.containers
    return of.spec.containers[0]
