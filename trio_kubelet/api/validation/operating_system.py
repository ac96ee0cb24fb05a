"""What may not be set for a pod of one operating system, and Windows host processes."""

from __future__ import annotations

from typing import Final

from trio_kubelet.api import v1
from trio_kubelet.api.containers import containers_with_path
from trio_kubelet.api.validation.problems import Problems

_POD_ONLY_LINUX: Final = {
    "app_armor_profile": "appArmorProfile",
    "se_linux_options": "seLinuxOptions",
    "seccomp_profile": "seccompProfile",
    "fs_group": "fsGroup",
    "fs_group_change_policy": "fsGroupChangePolicy",
    "run_as_user": "runAsUser",
    "run_as_group": "runAsGroup",
    "supplemental_groups": "supplementalGroups",
    "supplemental_groups_policy": "supplementalGroupsPolicy",
    "se_linux_change_policy": "seLinuxChangePolicy",
}
_CONTAINER_ONLY_LINUX: Final = {
    "app_armor_profile": "appArmorProfile",
    "se_linux_options": "seLinuxOptions",
    "seccomp_profile": "seccompProfile",
    "capabilities": "capabilities",
    "read_only_root_filesystem": "readOnlyRootFilesystem",
    "privileged": "privileged",
    "allow_privilege_escalation": "allowPrivilegeEscalation",
    "proc_mount": "procMount",
    "run_as_user": "runAsUser",
    "run_as_group": "runAsGroup",
}


def validate_operating_system(spec: v1.PodSpec, problems: Problems) -> None:
    if spec.os is None:
        return
    if spec.os.name == "linux":
        _linux(spec, problems)
    elif spec.os.name == "windows":
        _windows(spec, problems)
    elif not spec.os.name:
        problems.required("spec.os.name")
    else:
        problems.unsupported("spec.os", spec.os.name, ("linux", "windows"))


def _linux(spec: v1.PodSpec, problems: Problems) -> None:
    why = "windows options cannot be set for a linux pod"
    if spec.security_context is not None and spec.security_context.windows_options is not None:
        problems.forbidden("spec.securityContext.windowsOptions", why)
    for container, where in containers_with_path(spec):
        context = container.security_context
        if context is not None and context.windows_options is not None:
            problems.forbidden(f"{where}.securityContext.windowsOptions", why)


def _windows(spec: v1.PodSpec, problems: Problems) -> None:
    why = "cannot be set for a windows pod"
    for value, field in (
        (spec.host_users is not None, "hostUsers"),
        (spec.host_pid, "hostPID"),
        (spec.host_ipc, "hostIPC"),
        (spec.share_process_namespace is not None, "shareProcessNamespace"),
    ):
        if value:
            problems.forbidden(f"spec.{field}", why)
    pod = spec.security_context
    if pod is not None:
        for attribute, field in _POD_ONLY_LINUX.items():
            if getattr(pod, attribute) is not None:
                problems.forbidden(f"spec.securityContext.{field}", why)
        if pod.sysctls:
            problems.forbidden("spec.securityContext.sysctls", why)
    for container, where in containers_with_path(spec):
        for attribute, field in _CONTAINER_ONLY_LINUX.items():
            if getattr(container.security_context, attribute, None) is not None:
                problems.forbidden(f"{where}.securityContext.{field}", why)


def validate_host_processes(spec: v1.PodSpec, problems: Problems) -> None:
    pod_wide = _host_process(spec.security_context)
    host_processes = others = 0
    for container, where in containers_with_path(spec):
        own = _host_process(container.security_context)
        if pod_wide is not None and own is not None and pod_wide != own:
            field = f"{where}.securityContext.windowsOptions.hostProcess"
            was = str(pod_wide).lower()
            problems.invalid(
                field, own, f"pod hostProcess value must be identical if both are specified, was {was}"
            )
        if own if own is not None else pod_wide:
            host_processes += 1
        else:
            others += 1
    if host_processes and others:
        why = "If pod contains any hostProcess containers then all containers must be HostProcess containers"
        problems.invalid("spec", "", why)
    if host_processes and not spec.host_network:
        why = "hostNetwork must be true if pod contains any hostProcess containers"
        problems.invalid("spec.hostNetwork", False, why)


def _host_process(context: v1.PodSecurityContext | v1.SecurityContext | None) -> bool | None:
    options = context.windows_options if context is not None else None
    return options.host_process if options is not None else None
