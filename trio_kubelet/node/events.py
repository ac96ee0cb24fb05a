"""Events about the node itself, as opposed to those about its pods.

Whoever has something to say about the node says it through `NodeRecorderDoor`; the recorder behind it
aggregates, limits and sends, and never makes anybody wait.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from trio_kubelet.common.go_words import error_words
from trio_kubelet.config.load import ConfigurationError
from trio_kubelet.config.types import KubeletConfiguration
from trio_kubelet.podinfo.doors import NodeRecorderDoor
from trio_kubelet.podinfo.recorder import PodEvent, log_node_event

CGROUP_V1_WARNING: Final = (
    "cgroup v1 detected. cgroup v1 support is deprecated and will be removed in a future release. "
    "Please migrate to cgroup v2. More information at "
    "https://git.k8s.io/enhancements/keps/sig-node/5573-remove-cgroup-v1"
)

ON_DISK_WARNING: Final = (
    "The tmpfs noswap option is not supported. Memory-backed volumes (e.g. secrets, emptyDirs, etc.) might "
    "be swapped to disk and should no longer be considered secure."
)


class NodeEvent(msgspec.Struct, frozen=True):
    """An event that a decision gave rise to."""

    type: str
    reason: str
    message: str


PODS_LIMITED: Final = NodeEvent(
    "Normal", "NodeAllocatableEnforced", "Updated Node Allocatable limit across pods"
)


def start_events(
    config: KubeletConfiguration,
    reserved: Iterable[str] = (),
    *,
    cgroup_v2: bool,
    swaps_tmpfs: bool = False,
    unlimited: str = "",
) -> list[NodeEvent]:
    """What an agent that starts has to say of itself, in the kubelet's words and order; `reserved`: about
    cgroups it has limited for others; `swaps_tmpfs`: what is in memory may get to a disk; `unlimited`:
    why all pods together are not limited, "" if they are.
    """
    events = [NodeEvent("Normal", "Starting", "Starting kubelet.")]
    if swaps_tmpfs:
        events.insert(0, NodeEvent("Warning", "PossibleMemoryBackedVolumesOnDisk", ON_DISK_WARNING))
    if not cgroup_v2:
        events.append(NodeEvent("Warning", "CgroupV1", CGROUP_V1_WARNING))
    if config.cgroups_per_qos:  # without `pods` in `enforceNodeAllocatable` it is all the machine has
        failed = NodeEvent("Warning", "FailedNodeAllocatableEnforcement", unlimited)
        events.append(failed if unlimited else PODS_LIMITED)
    events += [NodeEvent("Normal", "NodeAllocatableEnforced", text) for text in reserved]
    return events


def record_all(recorder: NodeRecorderDoor, events: list[NodeEvent]) -> None:
    """Hands events to a recorder, in order."""
    for event in events:
        recorder.record_node(event.type, event.reason, event.message)


@contextmanager
def told_as_event(node_name: str) -> Iterator[None]:
    """A step of the start that fails is an event too, in the log: nobody else listens yet.

    `node_name` may be empty, for the machine's own.
    """
    try:
        yield
    except (OSError, ConfigurationError) as exc:
        log_node_event(node_name or socket.gethostname())("Warning", "KubeletSetupFailed", error_words(exc))
        raise


def echo_to_node(recorder: NodeRecorderDoor, event: PodEvent) -> None:
    """A listener of pod events: what a pod lacks for want of a setting of the node is told of both."""
    if event.reason == "MissingClusterDNS":
        recorder.record_node(event.type, event.reason, event.message.partition('". ')[2])
