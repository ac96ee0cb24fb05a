"""The hot path: the relist table and the hashes, in C through cffi, with a plain-Python twin of each.

`RelistTable` is the C table where the extension is built, else (or with `TRIO_KUBELET_PURE=1`, with a
warning) `pure_table.PureRelistTable`.
"""

from __future__ import annotations

from trio_kubelet.native.doors import RelistTableLike
from trio_kubelet.native.hashes import (
    container_hash,
    fnv1a32,
    fnv1a128,
    payload_digest,
    static_pod_uid,
)
from trio_kubelet.native.library import core
from trio_kubelet.native.types import (
    ListAnswer,
    ListedContainer,
    MalformedList,
    PodChange,
    PodView,
    RelistCounts,
    SandboxView,
)

HAVE_C = core is not None
"""Whether the C extension is in use."""

RelistTable: type[RelistTableLike]
if core is not None:
    from trio_kubelet.native.table import CRelistTable

    RelistTable = CRelistTable
else:
    from trio_kubelet.native.pure_table import PureRelistTable

    RelistTable = PureRelistTable

__all__ = [
    "HAVE_C",
    "ListAnswer",
    "ListedContainer",
    "MalformedList",
    "PodChange",
    "PodView",
    "RelistCounts",
    "RelistTable",
    "RelistTableLike",
    "SandboxView",
    "container_hash",
    "fnv1a32",
    "fnv1a128",
    "payload_digest",
    "static_pod_uid",
]
