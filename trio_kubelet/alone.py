"""A node without an API server: the same doors as `Cluster`, with nothing behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trio_kubelet.kube.pull_secrets import NodeLogins, PullSecrets
from trio_kubelet.podinfo.recorder import EventRecorder
from trio_kubelet.pods.admission.fit import NodeFacts
from trio_kubelet.pods.syncer import NoMirrors
from trio_kubelet.storage.steps import ReportedVolumes

if TYPE_CHECKING:  # imported when a node has plugins
    from trio_kubelet.credential_providers.setup import InstalledProviders


class Alone:
    """What runs here comes from manifests alone."""

    objects = None
    services = None
    runtime_classes = None
    mirrors = NoMirrors()
    storage_objects = None
    csi_info = None

    def __init__(
        self, root_dir: str, recorder: EventRecorder, providers: InstalledProviders | None = None
    ) -> None:
        plugins = providers.keyrings(None) if providers is not None else None
        self.pull_secrets = PullSecrets(None, recorder, NodeLogins(root_dir), plugins).of

    def node_volumes(self) -> ReportedVolumes:
        """There is no Node that could tell of volumes."""
        return ReportedVolumes()

    def host_ips(self, otherwise: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Only what is known `otherwise`: as with the kubelet, statuses do not show any then."""
        return otherwise

    def node_facts(self, base: NodeFacts) -> NodeFacts:
        """What admission goes by."""
        return base
