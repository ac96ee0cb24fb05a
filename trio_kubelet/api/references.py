"""What a static pod may not refer to: objects of an API server it does not depend on."""

from __future__ import annotations

from trio_kubelet.api import v1
from trio_kubelet.api.errors import FieldError


def api_reference(pod: v1.Pod) -> FieldError | None:
    """The first reference to an API object, or None."""
    if pod.spec.service_account_name:
        return FieldError("spec.serviceAccountName", "static pods may not reference serviceaccounts")
    return None
