"""What v1 says twice, said once: the aliases that the API's internal form does not have."""

from __future__ import annotations

from typing import Final

from trio_kubelet.api import v1

# Leftovers of Kubernetes 1.5; the conversion drops them, so they are not hashed either.
_DROPPED_ANNOTATIONS: Final = frozenset(
    f"pod.{stage}.kubernetes.io/init-container{suffix}"
    for stage in ("alpha", "beta")
    for suffix in ("s", "-statuses")
)


def unify(pod: v1.Pod) -> None:
    """Bring both names of a value together and drop what the internal pod has no place for.

    Changes the pod in place; call it on a freshly decoded and defaulted one.
    """
    pod.api_version = pod.kind = ""
    spec, status = pod.spec, pod.status
    spec.service_account_name = spec.service_account_name or spec.service_account
    spec.service_account = spec.service_account_name
    grace = spec.termination_grace_period_seconds
    if grace is not None and grace < 0:
        spec.termination_grace_period_seconds = 1
    annotations = pod.metadata.annotations
    if annotations and not _DROPPED_ANNOTATIONS.isdisjoint(annotations):
        pod.metadata.annotations = {
            key: value for key, value in annotations.items() if key not in _DROPPED_ANNOTATIONS
        }
    if status.pod_ip and (not status.pod_ips or status.pod_ips[0].ip != status.pod_ip):
        status.pod_ips = [v1.PodIP(ip=status.pod_ip)]
    if status.pod_ips:
        status.pod_ip = status.pod_ips[0].ip
