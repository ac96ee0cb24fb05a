"""Security contexts and namespaces."""

from __future__ import annotations

from typing import Any

import pytest

from tests.runtime_configs.pods import NODE, container, first, node, pod
from trio_kubelet.api import v1
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.podinfo.context import ImageUser, NodeContext
from trio_kubelet.podinfo.doors import ConfigError
from trio_kubelet.runtime.configs.security import (
    container_security_context,
    namespace_options,
    sandbox_security_context,
    verify_run_as_non_root,
)

_NO_USER = ImageUser(None, "")


def _of(
    made: v1.Pod, user: ImageUser = _NO_USER, ctx: NodeContext = NODE
) -> cri.LinuxContainerSecurityContext:
    return container_security_context(made, first(made), ctx, user, namespace_options(made, None))


def test_container_wins_over_pod_and_takes_what_it_does_not_say() -> None:
    made = pod(
        container(securityContext={"runAsUser": 0, "seLinuxOptions": {"level": "s0"}}),
        securityContext={"runAsUser": 5, "runAsGroup": 6, "seLinuxOptions": {"level": "s1"}},
    )
    result = _of(made, ImageUser(77))
    assert (result.HasField("run_as_user"), result.run_as_user.value) == (True, 0)
    assert result.run_as_group.value == 6
    assert result.selinux_options.level == "s0"


def test_user_of_the_image_counts_when_nobody_says_another() -> None:
    assert _of(pod(), ImageUser(77)).run_as_user.value == 77
    named = _of(pod(), ImageUser(None, "www"))
    assert not named.HasField("run_as_user")
    assert named.run_as_username == "www"


@pytest.mark.parametrize(
    ("of_pod", "own", "user", "error"),
    [
        ({"runAsNonRoot": True}, {}, ImageUser(0), "image will run as root"),
        ({"runAsNonRoot": True}, {}, ImageUser(None, "www"), "non-numeric user"),
        ({"runAsNonRoot": True}, {}, ImageUser(2**31), "invalid user id"),
        ({"runAsNonRoot": True}, {"runAsUser": 0}, ImageUser(5), "breaks non-root policy"),
        ({"runAsNonRoot": True}, {"runAsUser": 5}, ImageUser(0), ""),
        ({"runAsNonRoot": True}, {"runAsNonRoot": False}, ImageUser(0), ""),
        ({"runAsNonRoot": True}, {}, ImageUser(5), ""),
        ({}, {}, ImageUser(0), ""),
    ],
)
def test_run_as_non_root(of_pod: dict[str, Any], own: dict[str, Any], user: ImageUser, error: str) -> None:
    made = pod(container(securityContext=own), securityContext=of_pod)
    if error:
        with pytest.raises(ConfigError, match=error):
            verify_run_as_non_root(made, first(made), user)
    else:
        verify_run_as_non_root(made, first(made), user)


@pytest.mark.parametrize(
    ("of_pod", "own", "default", "expected"),
    [
        (None, None, False, ("Unconfined", "")),
        (None, None, True, ("RuntimeDefault", "")),
        ({"type": "RuntimeDefault"}, None, False, ("RuntimeDefault", "")),
        ({"type": "RuntimeDefault"}, {"type": "Unconfined"}, True, ("Unconfined", "")),
        (
            None,
            {"type": "Localhost", "localhostProfile": "a/b.json"},
            False,
            ("Localhost", "/root/seccomp/a/b.json"),
        ),
    ],
)
def test_seccomp(of_pod: Any, own: Any, default: bool, expected: tuple[str, str]) -> None:
    made = pod(container(securityContext={"seccompProfile": own}), securityContext={"seccompProfile": of_pod})
    seccomp = _of(made, ctx=node(seccomp_default=default)).seccomp
    assert (cri.SecurityProfile.ProfileType.Name(seccomp.profile_type), seccomp.localhost_ref) == expected


@pytest.mark.parametrize("kind", ["Strictest", ""])
@pytest.mark.parametrize("default", [False, True])
def test_a_kind_of_seccomp_profile_that_is_not_known_is_no_leave_to_run_without(
    kind: str, default: bool
) -> None:
    """Of an API server that is newer."""
    made = pod(container(securityContext={"seccompProfile": {"type": kind}}))
    with pytest.raises(ConfigError, match=f'^unknown seccomp profile type: "{kind}"$'):
        _of(made, ctx=node(seccomp_default=default))


@pytest.mark.parametrize(
    ("of_pod", "own", "annotation", "expected"),
    [
        (None, None, None, ""),
        ({"type": "RuntimeDefault"}, None, None, "runtime/default"),
        ({"type": "RuntimeDefault"}, {"type": "Unconfined"}, None, "unconfined"),
        ({"type": "RuntimeDefault"}, None, "localhost/mine", "localhost/mine"),
        ({"type": "Unconfined"}, None, "nonsense", "unconfined"),
        (None, {"type": "Localhost", "localhostProfile": "x"}, "unconfined", "localhost/x"),
    ],
)
def test_apparmor_and_its_old_annotation(of_pod: Any, own: Any, annotation: Any, expected: str) -> None:
    key = "container.apparmor.security.beta.kubernetes.io/c"
    made = pod(
        container(securityContext={"appArmorProfile": own}),
        securityContext={"appArmorProfile": of_pod},
        meta={"annotations": {key: annotation}} if annotation else {},
    )
    result = _of(made)
    assert result.apparmor_profile == expected
    assert result.HasField("apparmor") == bool(expected)


def test_unmasked_proc_hides_and_protects_nothing() -> None:
    result = _of(pod(container(securityContext={"procMount": "Unmasked"})))
    assert not result.masked_paths
    assert not result.readonly_paths
    assert _of(pod(container(securityContext={"procMount": "Default"}))).masked_paths


@pytest.mark.parametrize(("value", "expected"), [(None, False), (True, False), (False, True)])
def test_no_new_privileges_only_when_escalation_is_forbidden(value: bool | None, expected: bool) -> None:
    result = _of(pod(container(securityContext={"allowPrivilegeEscalation": value})))
    assert result.no_new_privs == expected


def test_groups_and_their_policy() -> None:
    context = {"fsGroup": 9, "supplementalGroups": [7, 8], "supplementalGroupsPolicy": "Strict"}
    made = pod(securityContext=context)
    for result in (_of(made), sandbox_security_context(made, cri.NamespaceOption())):
        assert list(result.supplemental_groups) == [9, 7, 8]
        assert result.supplemental_groups_policy == cri.Strict
    with pytest.raises(ConfigError, match="supplementalGroupsPolicy"):
        _of(pod(securityContext={"supplementalGroupsPolicy": "Nonsense"}))


def test_sandbox_is_privileged_with_any_of_its_containers() -> None:
    made = pod(initContainers=[container(name="i", securityContext={"privileged": True})])
    assert sandbox_security_context(made, cri.NamespaceOption()).privileged
    assert not _of(made).privileged


@pytest.mark.parametrize(
    ("spec", "target", "pid"),
    [
        ({}, "", cri.CONTAINER),
        ({"shareProcessNamespace": True}, "", cri.POD),
        ({"hostPID": True, "shareProcessNamespace": None}, "x", cri.NODE),
        ({}, "x", cri.TARGET),
        ({"shareProcessNamespace": True}, "x", cri.POD),
    ],
)
def test_process_namespace(spec: dict[str, Any], target: str, pid: int) -> None:
    options = namespace_options(pod(**spec), None, target)
    assert options.pid == pid
    assert options.target_id == (target if pid == cri.TARGET else "")


def test_host_namespaces() -> None:
    options = namespace_options(pod(hostNetwork=True, hostIPC=True), None)
    assert (options.network, options.ipc) == (cri.NODE, cri.NODE)
    assert options.userns_options.mode == cri.NODE
