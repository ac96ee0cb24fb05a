"""Whether a pod is valid, field by field."""

from __future__ import annotations

from trio_kubelet.api import v1
from trio_kubelet.api.errors import FieldError


def validate_pod(pod: v1.Pod) -> list[FieldError]:
    """Everything that is wrong with a pod."""
    errors = []
    if not pod.spec.containers:
        errors.append(FieldError("spec.containers", "is required"))
    return errors
