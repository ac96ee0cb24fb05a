"""A node without an API server: the same doors as `Cluster`, with nothing behind them."""

from __future__ import annotations

from trio_kubelet.base import Base
from trio_kubelet.kube.pull_secrets import NodeLogins, PullSecrets
from trio_kubelet.node.metrics import NodeMetrics
from trio_kubelet.pods.admission.fit import NodeFacts
from trio_kubelet.pods.doors import MirrorsDoor, NoMirrors
from trio_kubelet.pods.metrics import status_sync_durations
from trio_kubelet.storage.steps import ReportedVolumes


class Alone:
    """What runs here comes from manifests alone."""

    objects = None
    services = None
    runtime_classes = None
    mirrors: MirrorsDoor = NoMirrors()
    look_at_node = None
    storage_objects = None
    csi_info = None

    def __init__(self, base: Base) -> None:
        plugins = base.providers.keyrings(None) if base.providers is not None else None
        self.pull_secrets = PullSecrets(None, base.recorder, NodeLogins(base.flags.root_dir), plugins).of
        # The kubelet shows the metrics of a node's way into its cluster without one, too.
        NodeMetrics(base.registry, base.clock).named(base.machine.node.node_name)
        status_sync_durations(base.registry)

    def node_volumes(self) -> ReportedVolumes:
        """There is no Node that could tell of volumes, and nobody else who could attach them."""
        return ReportedVolumes(controller=False)

    def host_ips(self, otherwise: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Only what is known `otherwise`: as with the kubelet, statuses do not show any then."""
        return otherwise

    def node_facts(self, base: NodeFacts) -> NodeFacts:
        """What admission goes by."""
        return base
