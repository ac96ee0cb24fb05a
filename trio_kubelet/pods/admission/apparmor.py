"""Whether this node can keep a pod's AppArmor profiles (kubelet: `pkg/security/apparmor`)."""

from __future__ import annotations

import os

from trio_kubelet.api import v1
from trio_kubelet.api.annotations import APPARMOR_CONTAINER_PREFIX
from trio_kubelet.api.containers import all_containers
from trio_kubelet.common.log import go_quote
from trio_kubelet.runtime.configs.security import own_apparmor_profile

_UNCONFINED = "unconfined"


def is_enabled() -> bool:
    """Whether the kernel has AppArmor switched on. Blocking."""
    if not os.path.exists("/sys/kernel/security/apparmor"):
        return False
    try:
        with open("/sys/module/apparmor/parameters/enabled", encoding="ascii") as file:
            return file.read(1) == "Y"
    except OSError:
        return False


def refusal(pod: v1.Pod, enabled: bool) -> str:
    """Why the pod is refused for its profiles, "" if not; one that has run before is not asked. Pure."""
    if pod.status.phase not in ("", "Pending") or not _is_required(pod):
        return ""
    if not enabled:
        return "Cannot enforce AppArmor: AppArmor is not enabled on the host"
    for profile in _profiles(pod):
        name = profile.localhost_profile
        if profile.type == "Localhost" and not (name or "").strip():
            shown = "nil" if name is None else f"*{name}"
            whole = go_quote(f"&AppArmorProfile{{Type:Localhost,LocalhostProfile:{shown},}}")
            return f"Cannot enforce AppArmor: invalid empty AppArmor profile name: {whole}"
    return ""


def _profiles(pod: v1.Pod) -> list[v1.AppArmorProfile]:
    """The profiles of the pod and its containers, from fields and, for containers, old annotations."""
    found = []
    if pod.spec.security_context is not None and pod.spec.security_context.app_armor_profile is not None:
        found.append(pod.spec.security_context.app_armor_profile)
    own = (own_apparmor_profile(pod, container) for container in all_containers(pod.spec))
    found += [profile for profile in own if profile is not None]
    return found


def _is_required(pod: v1.Pod) -> bool:
    """Whether the pod asks for any confinement."""
    if any(profile.type != "Unconfined" for profile in _profiles(pod)):
        return True
    annotations = pod.metadata.annotations or {}
    return any(
        key.startswith(APPARMOR_CONTAINER_PREFIX) and value != _UNCONFINED
        for key, value in annotations.items()
    )
