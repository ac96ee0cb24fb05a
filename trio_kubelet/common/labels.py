"""Labels of the runtime's objects that more than one room goes by."""

from __future__ import annotations

POD_UID = "io.kubernetes.pod.uid"
"""On every sandbox and container of a pod: the pod's UID."""
