"""Security contexts: users and groups, capabilities, seccomp, AppArmor, SELinux, /proc, namespaces.

Rules: `kuberuntime/security_context.go`, `pkg/securitycontext` and `pkg/security/apparmor` of Kubernetes. A
container's own setting wins over the pod's.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.api.annotations import APPARMOR_CONTAINER_PREFIX
from trio_kubelet.api.containers import AnyContainer, all_containers
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.podinfo.context import ImageUser, NodeContext
from trio_kubelet.podinfo.doors import ConfigError

_READONLY_PATHS = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
_LOCALHOST = "localhost/"
_GROUPS_POLICIES = frozenset(cri.SupplementalGroupsPolicy.keys())
_MAX_USER_ID = 2**31 - 1


def effective_security_context(pod: v1.Pod, container: v1.Container) -> v1.SecurityContext:
    """The container's security context with what only the pod says (users, SELinux) filled in."""
    own = container.security_context or v1.SecurityContext()
    of_pod = pod.spec.security_context
    if of_pod is None:
        return own

    def first(own_value: int | None, pod_value: int | None) -> int | None:
        return pod_value if own_value is None else own_value

    return msgspec.structs.replace(
        own,
        run_as_user=first(own.run_as_user, of_pod.run_as_user),
        run_as_group=first(own.run_as_group, of_pod.run_as_group),
        run_as_non_root=of_pod.run_as_non_root if own.run_as_non_root is None else own.run_as_non_root,
        se_linux_options=own.se_linux_options or of_pod.se_linux_options,
    )


def verify_run_as_non_root(pod: v1.Pod, container: v1.Container, image_user: ImageUser) -> None:
    """Raises ConfigError when `runAsNonRoot` is asked for and the container would run as root, or as a
    user whose number is not known.
    """
    effective = effective_security_context(pod, container)
    if not effective.run_as_non_root:
        return
    meta = pod.metadata
    where = f'(pod: "{meta.name}_{meta.namespace}({meta.uid})", container: {container.name})'
    if effective.run_as_user is not None:
        if effective.run_as_user == 0:
            raise ConfigError(f"container's runAsUser breaks non-root policy {where}")
        return
    if image_user.uid is None:
        if image_user.name:
            raise ConfigError(
                f"container has runAsNonRoot and image has non-numeric user ({image_user.name}), "
                f"cannot verify user is non-root {where}"
            )
    elif image_user.uid == 0:
        raise ConfigError(f"container has runAsNonRoot and image will run as root {where}")
    elif not 0 < image_user.uid <= _MAX_USER_ID:
        raise ConfigError(
            f"container has runAsNonRoot and image has an invalid user id ({image_user.uid}). "
            f"(Must be 1-({_MAX_USER_ID})) {where}"
        )


def container_security_context(
    pod: v1.Pod,
    container: v1.Container,
    ctx: NodeContext,
    image_user: ImageUser,
    namespaces: cri.NamespaceOption,
    extra_groups: Sequence[int] = (),
) -> cri.LinuxContainerSecurityContext:
    """What one container may do and as whom; `extra_groups` are those of its volumes. Raises ConfigError."""
    effective = effective_security_context(pod, container)
    of_pod = pod.spec.security_context or v1.PodSecurityContext()
    unmasked = effective.proc_mount == "Unmasked"
    result = cri.LinuxContainerSecurityContext(
        capabilities=_capabilities(effective.capabilities),
        privileged=bool(effective.privileged),
        namespace_options=namespaces,
        selinux_options=selinux_options(effective.se_linux_options),
        run_as_user=_int64(effective.run_as_user),
        run_as_group=_int64(effective.run_as_group),
        readonly_rootfs=bool(effective.read_only_root_filesystem),
        supplemental_groups=[*supplemental_groups(of_pod), *extra_groups],
        supplemental_groups_policy=supplemental_groups_policy(of_pod),
        no_new_privs=effective.allow_privilege_escalation is False,
        masked_paths=() if unmasked else ctx.masked_paths,
        readonly_paths=() if unmasked else _READONLY_PATHS,
        seccomp=_seccomp(pod, container, ctx),
    )
    if effective.run_as_user is None:
        if image_user.uid is not None:
            result.run_as_user.value = image_user.uid
            result.run_as_user.SetInParent()
        result.run_as_username = image_user.name
    apparmor = _apparmor_profile(pod, container)
    if apparmor is not None:
        _set_apparmor(result, apparmor)
    return result


def sandbox_security_context(
    pod: v1.Pod, namespaces: cri.NamespaceOption, extra_groups: Sequence[int] = ()
) -> cri.LinuxSandboxSecurityContext:
    """The sandbox's context; it always runs under the runtime's default seccomp profile, for nothing in
    it needs more.
    """
    result = cri.LinuxSandboxSecurityContext(
        privileged=any(
            each.security_context is not None and each.security_context.privileged
            for each in all_containers(pod.spec)
        ),
        seccomp=cri.SecurityProfile(profile_type=cri.SecurityProfile.RuntimeDefault),
    )
    of_pod = pod.spec.security_context
    if of_pod is None:
        return result
    result.MergeFrom(
        cri.LinuxSandboxSecurityContext(
            namespace_options=namespaces,
            run_as_user=_int64(of_pod.run_as_user),
            run_as_group=_int64(of_pod.run_as_group),
            supplemental_groups=supplemental_groups(of_pod, extra_groups),
            supplemental_groups_policy=supplemental_groups_policy(of_pod),
            selinux_options=selinux_options(of_pod.se_linux_options),
        )
    )
    return result


def namespace_options(
    pod: v1.Pod, user_namespace: cri.UserNamespace | None, target_container_id: str = ""
) -> cri.NamespaceOption:
    """Which namespaces are the node's, the pod's or the container's own.

    `target_container_id`: share the processes of that container, unless the pod shares them anyway.
    """
    spec = pod.spec

    def pod_or_node(host: bool) -> cri.NamespaceMode.ValueType:
        return cri.NODE if host else cri.POD

    if spec.host_pid:
        pid = cri.NODE
    elif spec.share_process_namespace:
        pid = cri.POD
    else:
        pid = cri.TARGET if target_container_id else cri.CONTAINER
    return cri.NamespaceOption(
        network=pod_or_node(spec.host_network),
        ipc=pod_or_node(spec.host_ipc),
        pid=pid,
        target_id=target_container_id if pid == cri.TARGET else "",
        userns_options=user_namespace or cri.UserNamespace(mode=cri.NODE),
    )


def supplemental_groups(context: v1.PodSecurityContext, extra: Sequence[int] = ()) -> list[int]:
    """Groups besides the primary one: the volumes' first; `extra` ones stand there in a sandbox."""
    fs_group = [] if context.fs_group is None else [context.fs_group]
    return [*fs_group, *extra, *(context.supplemental_groups or ())]


def supplemental_groups_policy(context: v1.PodSecurityContext) -> cri.SupplementalGroupsPolicy.ValueType:
    """Whether groups of the image's /etc/group are added. Raises ConfigError."""
    policy = context.supplemental_groups_policy
    if policy is None:
        return cri.Merge
    if policy not in _GROUPS_POLICIES:
        raise ConfigError(f"unsupported supplementalGroupsPolicy: {policy}")
    return cri.SupplementalGroupsPolicy.Value(policy)


def selinux_options(options: v1.SELinuxOptions | None) -> cri.SELinuxOption | None:
    """SELinux labels, None when none are given."""
    if options is None:
        return None
    return cri.SELinuxOption(user=options.user, role=options.role, type=options.type, level=options.level)


def _int64(value: int | None) -> cri.Int64Value | None:
    return None if value is None else cri.Int64Value(value=value)


def _capabilities(capabilities: v1.Capabilities | None) -> cri.Capability | None:
    if capabilities is None:
        return None
    return cri.Capability(add_capabilities=capabilities.add or (), drop_capabilities=capabilities.drop or ())


def _seccomp(pod: v1.Pod, container: v1.Container, ctx: NodeContext) -> cri.SecurityProfile:
    own, of_pod = container.security_context, pod.spec.security_context
    profile = (own.seccomp_profile if own is not None else None) or (
        of_pod.seccomp_profile if of_pod is not None else None
    )
    kind = profile.type if profile is not None else "RuntimeDefault" if ctx.seccomp_default else "Unconfined"
    if kind == "RuntimeDefault":
        return cri.SecurityProfile(profile_type=cri.SecurityProfile.RuntimeDefault)
    if kind == "Unconfined":
        return cri.SecurityProfile(profile_type=cri.SecurityProfile.Unconfined)
    if kind != "Localhost" or profile is None:
        raise ConfigError(f'unknown seccomp profile type: "{kind}"')
    if not profile.localhost_profile:
        raise ConfigError("localhostProfile must be set if seccompProfile type is Localhost.")
    return cri.SecurityProfile(
        profile_type=cri.SecurityProfile.Localhost,
        localhost_ref=posixpath.normpath(f"{ctx.root_dir}/seccomp/{profile.localhost_profile}"),
    )


def _apparmor_profile(pod: v1.Pod, container: v1.Container) -> v1.AppArmorProfile | None:
    of_pod = pod.spec.security_context
    return own_apparmor_profile(pod, container) or (None if of_pod is None else of_pod.app_armor_profile)


def own_apparmor_profile(pod: v1.Pod, container: AnyContainer) -> v1.AppArmorProfile | None:
    """The profile given for the very container, in its field or in the annotation that was before it."""
    own = container.security_context
    if own is not None and own.app_armor_profile is not None:
        return own.app_armor_profile
    annotation = (pod.metadata.annotations or {}).get(APPARMOR_CONTAINER_PREFIX + container.name, "")
    if annotation == "runtime/default":
        return v1.AppArmorProfile(type="RuntimeDefault")
    if annotation == "unconfined":
        return v1.AppArmorProfile(type="Unconfined")
    if annotation.startswith(_LOCALHOST):
        return v1.AppArmorProfile(type="Localhost", localhost_profile=annotation.removeprefix(_LOCALHOST))
    return None


def _set_apparmor(result: cri.LinuxContainerSecurityContext, profile: v1.AppArmorProfile) -> None:
    """Sets the profile in the present form and in the one older runtimes read."""
    match profile.type:
        case "RuntimeDefault":
            result.apparmor.profile_type = cri.SecurityProfile.RuntimeDefault
            result.apparmor.SetInParent()
            result.apparmor_profile = "runtime/default"
        case "Unconfined":
            result.apparmor.profile_type = cri.SecurityProfile.Unconfined
            result.apparmor_profile = "unconfined"
        case "Localhost":
            if profile.localhost_profile is None:
                raise ConfigError("missing localhost apparmor profile name")
            result.apparmor.profile_type = cri.SecurityProfile.Localhost
            result.apparmor.localhost_ref = profile.localhost_profile
            result.apparmor_profile = _LOCALHOST + profile.localhost_profile
        case other:
            raise ConfigError(f'unknown apparmor profile type: "{other}"')
