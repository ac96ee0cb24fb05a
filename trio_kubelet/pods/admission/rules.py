"""Whether this node takes a pod, and if not, why, in the kubelet's words (`lifecycle/predicate.go`). Pure."""

from __future__ import annotations

from collections.abc import Sequence

from trio_kubelet.api.v1 import Pod
from trio_kubelet.podinfo.qos import is_critical_pod
from trio_kubelet.podinfo.totals import has_pod_level_resources
from trio_kubelet.pods.admission import apparmor, features
from trio_kubelet.pods.admission.admitter import UNEXPECTED, Admit, Preempt, Reject
from trio_kubelet.pods.admission.fit import Failure, Insufficient, NodeFacts, failures
from trio_kubelet.pods.admission.occupancy import Others
from trio_kubelet.pods.admission.preemption import NoVictims, choose_victims
from trio_kubelet.pods.admission.sysctls import SysctlAllowlist

OS = "linux"
OS_LABEL = "kubernetes.io/os"


def decide(pod: Pod, others: Others, node: NodeFacts, sysctls: SysctlAllowlist) -> Admit | Reject | Preempt:
    """The node's answer about `pod` beside the active pods `others`, with the resources they were granted."""
    if text := sysctls.refusal(pod):
        return Reject("SysctlForbidden", text)
    refusal = _operating_system(pod) or _groups_policy(pod, node) or _runtime_class(pod, node)
    if refusal is not None:
        return refusal
    found = failures(pod, others, node)
    if found and not is_critical_pod(pod):
        return Reject(found[0].reason, str(found[0]))
    decision: Admit | Reject | Preempt = _make_room(pod, others, found) if found else Admit()
    if isinstance(decision, Reject):
        return decision
    if text := apparmor.refusal(pod, node.apparmor):
        return Reject("AppArmor", text)
    if has_pod_level_resources(pod.spec) and not node.pod_level_resources:
        return Reject("PodLevelResourcesNotSupported", "PodLevelResources feature gate is disabled")
    if text := features.lacking(features.needed_to_run(pod), node.declared):
        return Reject("PodFeatureUnsupported", text)
    return decision


def _operating_system(pod: Pod) -> Reject | None:
    """Labels and fields that name another operating system; making room would not help."""
    label = (pod.metadata.labels or {}).get(OS_LABEL)
    if label is not None and label != OS:
        return Reject(
            "PodOSSelectorNodeLabelDoesNotMatch",
            "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
        )
    if pod.spec.os is not None and pod.spec.os.name != OS:
        return Reject("PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS")
    return None


def _groups_policy(pod: Pod, node: NodeFacts) -> Reject | None:
    """A policy for supplementary groups that the runtime cannot keep to (KEP-3619)."""
    context = pod.spec.security_context
    policy = context.supplemental_groups_policy if context is not None else None
    if policy != "Strict" or node.strict_supplemental_groups:
        return None
    message = "SupplementalGroupsPolicy=Strict is not supported in this node"
    return Reject("SupplementalGroupsPolicyNotSupported", message)


def _runtime_class(pod: Pod, node: NodeFacts) -> Reject | None:
    """A runtime class that nobody can look up: the kubelet takes such a pod and crashes over it."""
    name = pod.spec.runtime_class_name
    if not name or node.runtime_classes is not None:
        return None
    message = f'RuntimeClass "{name}" cannot be looked up on a node without an API server'
    return Reject("RuntimeClassNotSupported", message)


def _make_room(pod: Pod, others: Others, found: Sequence[Failure]) -> Reject | Preempt:
    """A critical pod does not fail for want of resources while others can be ended."""
    for failure in found:
        if not isinstance(failure, Insufficient):
            return Reject(failure.reason, str(failure))
    short = [failure for failure in found if isinstance(failure, Insufficient)]
    try:
        victims = choose_victims(pod, others.pods(), short)
    except NoVictims as exc:
        return Reject(
            UNEXPECTED,
            "Unexpected error while attempting to recover from admission failure: "
            f"preemption: error finding a set of pods to preempt: {exc}",
        )
    return Preempt(tuple(victims), short[0].resource)
