"""The hot path: the relist table and the hashes, in C through cffi, with a plain-Python twin of each.

`RelistTable` is the C table where the extension is built, else (or with `TRIO_KUBELET_PURE=1`, with a
warning) `pure_table.PureRelistTable`.
"""

from __future__ import annotations

from trio_kubelet.native.doors import RelistTableLike
from trio_kubelet.native.library import core

HAVE_C = core is not None
"""Whether the C extension is in use."""

RelistTable: type[RelistTableLike]
if core is not None:
    from trio_kubelet.native.table import CRelistTable

    RelistTable = CRelistTable
else:
    from trio_kubelet.native.pure_table import PureRelistTable

    RelistTable = PureRelistTable
