"""Pod cgroups of tests, on the hierarchies of this machine or on other ones."""

from __future__ import annotations

from collections.abc import Mapping

from trio_kubelet.cgroups.drivers import CgroupfsDriver
from trio_kubelet.cgroups.files import CgroupTree, find_hierarchies
from trio_kubelet.cgroups.plan import CgroupSettings
from trio_kubelet.cgroups.pods import PodCgroups
from trio_kubelet.podinfo.context import NodeContext


def cgroupfs_cgroups(
    node: NodeContext, settings: CgroupSettings | None = None, hierarchies: Mapping[str, str] | None = None
) -> PodCgroups:
    """Pod cgroups made as directories."""
    tree = CgroupTree(find_hierarchies() if hierarchies is None else hierarchies)
    return PodCgroups(
        tree=tree,
        driver=CgroupfsDriver(tree),
        node=lambda: node,
        settings=settings or CgroupSettings(),
    )
