"""Pods as the API server's watch brings them: what this agent only passes on stays as it came."""

from __future__ import annotations

from typing import Final

import msgspec

from trio_kubelet.api.v1 import ObjectMeta, Pod

_NONE: Final = msgspec.Raw()


class WatchedMetadata(ObjectMeta):
    """The metadata with `managedFields`, which `/pods` shows and nobody here reads."""

    managed_fields: msgspec.Raw = _NONE

    def __post_init__(self) -> None:
        if self.managed_fields is not _NONE:
            # As decoded it is a part of the whole answer, which would stay in memory with it.
            self.managed_fields = self.managed_fields.copy()


class WatchedPod(Pod):
    """A pod of the API server."""

    metadata: WatchedMetadata = msgspec.field(default_factory=WatchedMetadata)
