"""Whether this node takes a pod: the answers, and who gives them.

The rules themselves are pure and stand in `admission`; an admitter knows the node and remembers what it
granted.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from trio_kubelet.api.v1 import Pod

UNEXPECTED: Final = "UnexpectedAdmissionError"
"""Why a pod is refused that could not be judged, or not be given what it asks for."""

# Reasons that appear in the metric by their own name; the others are counted together.
METRIC_REASONS: Final = frozenset(
    {
        "AppArmor",
        "Evicted",
        "InitContainerRestartPolicyForbidden",
        "InvalidNodeInfo",
        "NodeShutdown",
        "OutOfcpu",
        "OutOfephemeral-storage",
        "OutOfmemory",
        "OutOfpods",
        "PodFeatureUnsupported",
        "PodLevelResourcesNotSupported",
        "PodOSNotSupported",
        "PodOSSelectorNodeLabelDoesNotMatch",
        "SupplementalGroupsPolicyNotSupported",
        "SysctlForbidden",
        "TopologyAffinityError",
        UNEXPECTED,
        "UnexpectedPredicateFailureType",
        "UnknownReason",
        "VolumeAttachmentLimitExceeded",
        "node(s) had taints that the pod didn't tolerate",
    }
)


class Admit(msgspec.Struct, frozen=True):
    """The pod may run."""


class Reject(msgspec.Struct, frozen=True):
    """The pod must not run here; words as the kubelet's."""

    reason: str
    message: str

    @property
    def metric_reason(self) -> str:
        """The reason as the metric counts it."""
        if self.reason in METRIC_REASONS:
            return self.reason
        return "OutOfExtendedResources" if self.reason.startswith("OutOf") else "Other"


class Preempt(msgspec.Struct, frozen=True):
    """The pod is critical and may run once these others have ended."""

    victims: tuple[Pod, ...]
    resource: str  # the first one that was short


class Allocate(msgspec.Struct, frozen=True):
    """The pod is to be given devices and the like first, or the node is to be looked at anew; after that
    admission is asked again.
    """


class Postpone(msgspec.Struct, frozen=True):
    """A running pod cannot be given the resources it now asks for (KEP-1287).

    `reason` is Deferred (perhaps later) or Infeasible (never on this node); `cause` is the admission's word
    for it, which the event shows; `detail` is the metric's for what is infeasible.
    """

    reason: str
    message: str
    cause: str = "Infeasible"
    detail: str = ""


Decision: TypeAlias = Admit | Reject | Preempt | Allocate
