"""Security contexts of pods and containers, sysctls, and older annotations that must agree with them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from trio_kubelet.api import v1
from trio_kubelet.api.annotations import (
    APPARMOR_CONTAINER_PREFIX,
    SECCOMP_CONTAINER_PREFIX,
    SECCOMP_POD_ANNOTATION,
)
from trio_kubelet.api.containers import containers_with_path
from trio_kubelet.api.sysctls import normal_sysctl, sysctl_namespace
from trio_kubelet.api.uid_text import internal_json
from trio_kubelet.api.validation.formats import dns_subdomain, relative_path, sysctl_name, user_or_group_id
from trio_kubelet.api.validation.problems import Problems

_PROFILE_TYPES: Final = ("Localhost", "RuntimeDefault", "Unconfined")
_GROUP_CHANGES: Final = ("Always", "OnRootMismatch")
_LONGEST_PROFILE: Final = 4095
_LONGEST_CREDENTIAL_SPEC: Final = 64 * 1024
_LONGEST_USER: Final = 104
_LONGEST_DOMAIN: Final = 255
_NETBIOS_NAME: Final = re.compile(r'[^\\/:*?"<>|.][^\\/:*?"<>|]{0,14}')
_WINDOWS_LABEL: Final = r"[a-zA-Z0-9](?:[-a-zA-Z0-9]{0,61}[a-zA-Z0-9])?"
_WINDOWS_DOMAIN: Final = re.compile(rf"{_WINDOWS_LABEL}(?:\.{_WINDOWS_LABEL})*")


def validate_pod_security(spec: v1.PodSpec, problems: Problems, *, mount_option: bool) -> None:
    """The pod's security context, with the host namespaces that belong to it. `mount_option`: volumes may be
    asked to have their label by mounting.
    """
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
        why = "ShareProcessNamespace and HostPID cannot both be enabled"
        problems.invalid(f"{here}.shareProcessNamespace", True, why)
    _sysctls(spec, context.sysctls or [], f"{here}.sysctls", problems)
    change = context.fs_group_change_policy
    if change is not None and change not in _GROUP_CHANGES:
        problems.unsupported(f"{here}.fsGroupChangePolicy", change, _GROUP_CHANGES)
    _seccomp(context.seccomp_profile, f"{here}.seccompProfile", problems)
    _windows_options(context.windows_options, f"{here}.windowsOptions", problems)
    _apparmor(context.app_armor_profile, f"{here}.appArmorProfile", problems)
    labelled = ("MountOption", "Recursive") if mount_option else ("Recursive",)
    for word, field, supported in (
        (context.supplemental_groups_policy, "supplementalGroupsPolicy", ("Merge", "Strict")),
        (context.se_linux_change_policy, "seLinuxChangePolicy", labelled),
    ):
        if word is not None and word not in supported:
            problems.unsupported(f"{here}.{field}", word, supported)


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
            why = "`hostUsers` must be false to use `Unmasked`"
            problems.invalid(f"{here}.procMount", "Unmasked", why)
    _seccomp(context.seccomp_profile, f"{here}.seccompProfile", problems)
    if context.allow_privilege_escalation is False:
        why = "cannot set `allowPrivilegeEscalation` to false and"
        added = (context.capabilities.add or []) if context.capabilities is not None else []
        both = ["`privileged` to true"] if context.privileged else []
        both += ["`capabilities.Add` CAP_SYS_ADMIN"] * added.count("CAP_SYS_ADMIN")
        for other in both:
            problems.invalid(here, internal_json("core.SecurityContext", context), f"{why} {other}")
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
            problems.invalid(where, sysctl.name, "may not be specified when 'hostNetwork' is true")
        elif spec.host_ipc and namespace == "IPC":
            problems.invalid(where, sysctl.name, "may not be specified when 'hostIPC' is true")
        names.add(sysctl.name)


def _seccomp(profile: v1.SeccompProfile | None, here: str, problems: Problems) -> None:
    if profile is None:
        return
    _profile_type(profile.type, f"{here}.type", "seccompProfile", problems)
    path = f"{here}.localhostProfile"
    if profile.type != "Localhost":
        if profile.localhost_profile is not None:
            shown = {"Type": profile.type, "LocalhostProfile": profile.localhost_profile}
            problems.invalid(path, shown, "can only be set when seccomp type is Localhost")
    elif profile.localhost_profile is None:
        problems.required(path, "must be set when seccomp type is Localhost")
    else:
        problems.check(path, profile.localhost_profile, relative_path)


def _profile_type(kind: str, here: str, field: str, problems: Problems) -> None:
    if kind:
        problems.one_of(here, kind, _PROFILE_TYPES)
    else:
        problems.required(here, f"type is required when {field} is set")


def _apparmor(profile: v1.AppArmorProfile | None, here: str, problems: Problems) -> None:
    if profile is None:
        return
    _profile_type(profile.type, f"{here}.type", "appArmorProfile", problems)
    path, name = f"{here}.localhostProfile", profile.localhost_profile
    if profile.type == "Localhost":
        if not name:
            problems.required(path, "must be set when AppArmor type is Localhost")
        elif name != name.strip():
            problems.invalid(path, name, "must not be padded with whitespace")
        if len((name or "").encode()) > _LONGEST_PROFILE:
            problems.too_long(path, _LONGEST_PROFILE)
    elif name is not None and profile.type in _PROFILE_TYPES:
        problems.invalid(path, name, "can only be set when AppArmor type is Localhost")


def _windows_options(options: v1.WindowsSecurityContextOptions | None, here: str, problems: Problems) -> None:
    if options is None:
        return
    if options.gmsa_credential_spec_name is not None:
        problems.check(f"{here}.gmsaCredentialSpecName", options.gmsa_credential_spec_name, dns_subdomain)
    spec = options.gmsa_credential_spec
    if spec is not None and not spec:
        problems.invalid(f"{here}.gmsaCredentialSpec", spec, "gmsaCredentialSpec cannot be an empty string")
    elif spec is not None and len(spec.encode()) > _LONGEST_CREDENTIAL_SPEC:
        why = f"gmsaCredentialSpec size must be under {_LONGEST_CREDENTIAL_SPEC // 1024} KiB"
        problems.invalid(f"{here}.gmsaCredentialSpec", spec, why)
    if options.run_as_user_name is not None:
        problems.check(f"{here}.runAsUserName", options.run_as_user_name, _windows_user)


def _windows_user(name: str) -> list[str]:
    if not name:
        return ["runAsUserName cannot be an empty string"]
    if re.search(r"[\x00-\x1f\x7f]", name):
        return ["runAsUserName cannot contain control characters"]
    if name.count("\\") > 1:
        return ["runAsUserName cannot contain more than one backslash"]
    domain, backslash, user = name.rpartition("\\")
    wrong = []
    if len(domain.encode()) > _LONGEST_DOMAIN:
        wrong.append(f"Domain length must be under {_LONGEST_DOMAIN + 1} characters")
    if backslash and not (_NETBIOS_NAME.fullmatch(domain) or _WINDOWS_DOMAIN.fullmatch(domain)):
        wrong.append("Domain doesn't match the NetBios nor the DNS format")
    if not user:
        wrong.append("User cannot be empty")
    elif len(user.encode()) > _LONGEST_USER:
        wrong.append(f"User length must not be longer than {_LONGEST_USER} characters")
    if user and not user.strip(". "):
        wrong.append("User cannot contain only periods or spaces")
    if re.search(r'["/\\:;|=,+*?<>@\[\]]', user):
        wrong.append('User cannot contain the following characters: "/\\:;|=,+*?<>@[]')
    return [f"runAsUserName's {problem}" for problem in wrong]


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
    kind = "seccomp" if isinstance(profile, v1.SeccompProfile) else "apparmor"
    if not same_type:
        problems.forbidden(f"{here}.type", f"{kind} type in annotation and field must match")
    elif profile.type == "Localhost" and text.removeprefix("localhost/") != profile.localhost_profile:
        problems.forbidden(f"{here}.localhostProfile", f"{kind} profile in annotation and field must match")
