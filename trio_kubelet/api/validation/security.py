"""Security contexts of pods and containers, sysctls, and older annotations that must agree with them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from trio_kubelet.api import v1
from trio_kubelet.api.containers import containers_with_path
from trio_kubelet.api.sysctls import normal_sysctl, sysctl_namespace
from trio_kubelet.api.validation.formats import dns_subdomain, relative_path, sysctl_name, user_or_group_id
from trio_kubelet.api.validation.metadata import (
    APPARMOR_CONTAINER_PREFIX,
    SECCOMP_CONTAINER_PREFIX,
    SECCOMP_POD_ANNOTATION,
)
from trio_kubelet.api.validation.problems import Problems

_PROFILE_TYPES: Final = ("Localhost", "RuntimeDefault", "Unconfined")
_LONGEST_PROFILE: Final = 4095
_NETBIOS_NAME: Final = re.compile(r'[^\\/:*?"<>|.][^\\/:*?"<>|]{0,14}')
_WINDOWS_LABEL: Final = r"[a-zA-Z0-9](?:[-a-zA-Z0-9]{0,61}[a-zA-Z0-9])?"
_WINDOWS_DOMAIN: Final = re.compile(rf"{_WINDOWS_LABEL}(?:\.{_WINDOWS_LABEL})*")


def validate_pod_security(spec: v1.PodSpec, problems: Problems) -> None:
    """The pod's security context, with the host namespaces that belong to it."""
    context = spec.security_context
    if context is None:
        return
    here = "spec.securityContext"
    for number, field in (
        (context.fs_group, "fsGroup"),
        (context.run_as_user, "runAsUser"),
        (context.run_as_group, "runAsGroup"),
    ):
        if number is not None:
            problems.check(f"{here}.{field}", number, user_or_group_id)
    for index, group in enumerate(context.supplemental_groups or ()):
        problems.check(f"{here}.supplementalGroups[{index}]", group, user_or_group_id)
    if spec.share_process_namespace and spec.host_pid:
        problems.invalid(f"{here}.shareProcessNamespace", True, "excludes hostPID")
    _sysctls(spec, context.sysctls or [], f"{here}.sysctls", problems)
    for word, field, supported in (
        (context.fs_group_change_policy, "fsGroupChangePolicy", ("OnRootMismatch", "Always")),
        (context.supplemental_groups_policy, "supplementalGroupsPolicy", ("Merge", "Strict")),
        (context.se_linux_change_policy, "seLinuxChangePolicy", ("Recursive",)),
    ):
        if word is not None and word not in supported:
            problems.unsupported(f"{here}.{field}", word, supported)
    _seccomp(context.seccomp_profile, f"{here}.seccompProfile", problems)
    _windows_options(context.windows_options, f"{here}.windowsOptions", problems)
    _apparmor(context.app_armor_profile, f"{here}.appArmorProfile", problems)


def validate_container_security(
    context: v1.SecurityContext | None, here: str, problems: Problems, *, host_users: bool
) -> None:
    if context is None:
        return
    for number, field in ((context.run_as_user, "runAsUser"), (context.run_as_group, "runAsGroup")):
        if number is not None:
            problems.check(f"{here}.{field}", number, user_or_group_id)
    if context.proc_mount is not None:
        if context.proc_mount not in ("Default", "Unmasked"):
            problems.unsupported(f"{here}.procMount", context.proc_mount, ("Default", "Unmasked"))
        if host_users and context.proc_mount == "Unmasked":
            problems.invalid(f"{here}.procMount", "Unmasked", "needs hostUsers: false")
    _seccomp(context.seccomp_profile, f"{here}.seccompProfile", problems)
    if context.allow_privilege_escalation is False:
        if context.privileged:
            problems.invalid(here, "privileged", "excludes allowPrivilegeEscalation: false")
        added = (context.capabilities.add or []) if context.capabilities is not None else []
        if "CAP_SYS_ADMIN" in added:
            problems.invalid(here, "CAP_SYS_ADMIN", "excludes allowPrivilegeEscalation: false")
    _windows_options(context.windows_options, f"{here}.windowsOptions", problems)
    _apparmor(context.app_armor_profile, f"{here}.appArmorProfile", problems)


def _sysctls(spec: v1.PodSpec, sysctls: list[v1.Sysctl], here: str, problems: Problems) -> None:
    names: set[str] = set()
    for index, sysctl in enumerate(sysctls):
        where = f"{here}[{index}].name"
        if not sysctl.name:
            problems.required(where)
        elif problems.check(where, sysctl.name, sysctl_name) and sysctl.name in names:
            problems.duplicate(where, sysctl.name)
        namespace = sysctl_namespace(normal_sysctl(sysctl.name).partition("*")[0])
        if spec.host_network and namespace == "Net":
            problems.invalid(where, sysctl.name, "is the host's with hostNetwork")
        elif spec.host_ipc and namespace == "IPC":
            problems.invalid(where, sysctl.name, "is the host's with hostIPC")
        names.add(sysctl.name)


def _seccomp(profile: v1.SeccompProfile | None, here: str, problems: Problems) -> None:
    if profile is None:
        return
    problems.one_of(f"{here}.type", profile.type, _PROFILE_TYPES)
    path = f"{here}.localhostProfile"
    if profile.type != "Localhost":
        if profile.localhost_profile is not None:
            problems.invalid(path, profile.localhost_profile, "goes with type Localhost only")
    elif profile.localhost_profile is None:
        problems.required(path)
    else:
        problems.check(path, profile.localhost_profile, relative_path)


def _apparmor(profile: v1.AppArmorProfile | None, here: str, problems: Problems) -> None:
    if profile is None:
        return
    problems.one_of(f"{here}.type", profile.type, _PROFILE_TYPES)
    path, name = f"{here}.localhostProfile", profile.localhost_profile
    if profile.type == "Localhost":
        if not name:
            problems.required(path)
        elif name != name.strip():
            problems.invalid(path, name, "must not begin or end with white space")
        elif len(name.encode()) > _LONGEST_PROFILE:
            problems.add(path, f"is too long: more than {_LONGEST_PROFILE} bytes")
    elif name is not None and profile.type in _PROFILE_TYPES:
        problems.invalid(path, name, "goes with type Localhost only")


def _windows_options(options: v1.WindowsSecurityContextOptions | None, here: str, problems: Problems) -> None:
    if options is None:
        return
    if options.gmsa_credential_spec_name is not None:
        problems.check(f"{here}.gmsaCredentialSpecName", options.gmsa_credential_spec_name, dns_subdomain)
    spec = options.gmsa_credential_spec
    if spec is not None and not 0 < len(spec.encode()) <= 64 * 1024:
        problems.invalid(f"{here}.gmsaCredentialSpec", "", "must have between 1 byte and 64 KiB")
    if options.run_as_user_name is not None:
        problems.check(f"{here}.runAsUserName", options.run_as_user_name, _windows_user)


def _windows_user(name: str) -> str | None:
    if not name or re.search(r"[\x00-\x1f\x7f]", name) or name.count("\\") > 1:
        return "must be user or domain\\user, without control characters"
    domain, backslash, user = name.rpartition("\\")
    if backslash:
        known_form = _NETBIOS_NAME.fullmatch(domain) or _WINDOWS_DOMAIN.fullmatch(domain)
        if len(domain) >= 256 or not known_form:
            return "has no valid domain"
    if (
        not user
        or len(user.encode()) > 104
        or not user.strip(". ")
        or re.search(r'["/\\:;|=,+*?<>@\[\]]', user)
    ):
        return "has no valid user"
    return None


# --- annotations and fields that say the same ------------------------------------------------------


def validate_profile_annotations(
    annotations: Mapping[str, str], spec: v1.PodSpec, problems: Problems
) -> None:
    """A profile given both as field and as annotation must be the same."""
    pod = spec.security_context
    if pod is not None and pod.seccomp_profile is not None and SECCOMP_POD_ANNOTATION in annotations:
        here = "spec.securityContext.seccompProfile"
        _same_seccomp(annotations[SECCOMP_POD_ANNOTATION], pod.seccomp_profile, here, problems)
    windows = spec.os is not None and spec.os.name == "windows"
    for container, where in containers_with_path(spec):
        context = container.security_context
        seccomp = context.seccomp_profile if context is not None else None
        text = annotations.get(SECCOMP_CONTAINER_PREFIX + container.name)
        if seccomp is not None and text is not None:
            _same_seccomp(text, seccomp, f"{where}.securityContext.seccompProfile", problems)
        apparmor = pod.app_armor_profile if pod is not None else None
        if context is not None and context.app_armor_profile is not None:
            apparmor = context.app_armor_profile
        text = annotations.get(APPARMOR_CONTAINER_PREFIX + container.name)
        if apparmor is not None and text is not None and not windows:
            _same_profile(
                text, apparmor, f"{where}.securityContext.appArmorProfile", problems, ("runtime/default",)
            )


def _same_seccomp(text: str, profile: v1.SeccompProfile, here: str, problems: Problems) -> None:
    _same_profile(text, profile, here, problems, ("runtime/default", "docker/default"))


def _same_profile(
    text: str,
    profile: v1.SeccompProfile | v1.AppArmorProfile,
    here: str,
    problems: Problems,
    defaults: tuple[str, ...],
) -> None:
    same_type = {
        "Unconfined": text == "unconfined",
        "RuntimeDefault": text in defaults,
        "Localhost": text.startswith("localhost/"),
    }.get(profile.type, True)
    if not same_type:
        problems.forbidden(f"{here}.type", "differs from the annotation")
    elif profile.type == "Localhost" and text.removeprefix("localhost/") != profile.localhost_profile:
        problems.forbidden(f"{here}.localhostProfile", "differs from the annotation")
