"""Annotations in which pods said what they say in fields now; who still sets them is understood."""

from __future__ import annotations

from typing import Final

SECCOMP_POD_ANNOTATION: Final = "seccomp.security.alpha.kubernetes.io/pod"
SECCOMP_CONTAINER_PREFIX: Final = "container.seccomp.security.alpha.kubernetes.io/"
APPARMOR_CONTAINER_PREFIX: Final = "container.apparmor.security.beta.kubernetes.io/"
