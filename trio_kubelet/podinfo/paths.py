"""Where a pod's directories and log files are: the kubelet's layout, which other tools read too.

UIDs come from manifests, from the API server and from what the runtime lists, and directories are removed by
them: one that leads elsewhere has no directory.
"""

from __future__ import annotations

import errno
import os

from trio_kubelet.api import v1
from trio_kubelet.api.validation.formats import directory_name


def pods_dir(root_dir: str) -> str:
    """The directory of all pod directories."""
    return f"{root_dir}/pods"


def pod_dir(root_dir: str, uid: str) -> str:
    """A pod's directory. Raises OSError for a UID that is no name of one."""
    if problems := directory_name(uid):
        raise OSError(errno.EINVAL, f"UID of a pod {problems[0]}", uid)
    return f"{root_dir}/pods/{uid}"


def container_dir(root_dir: str, uid: str, container: str) -> str:
    """Where a container's termination logs are."""
    return f"{pod_dir(root_dir, uid)}/containers/{container}"


def etc_hosts_path(root_dir: str, uid: str) -> str:
    """The file mounted on `/etc/hosts`."""
    return f"{pod_dir(root_dir, uid)}/etc-hosts"


def volume_dir(root_dir: str, uid: str, plugin: str, volume: str) -> str:
    """A volume's directory; `plugin` e.g. `kubernetes.io/empty-dir`."""
    return f"{pod_dir(root_dir, uid)}/volumes/{plugin.replace('/', '~')}/{volume}"


def subpath_target(root_dir: str, uid: str, volume: str, container: str, index: int) -> str:
    """Where a subPath of a volume is bind-mounted, `index` being its place in `volumeMounts`."""
    return f"{pod_dir(root_dir, uid)}/volume-subpaths/{volume}/{container}/{index}"


def pod_logs_path(pod_logs_dir: str, pod: v1.Pod) -> str:
    """A pod's log directory: `NAMESPACE_NAME_UID`."""
    meta = pod.metadata
    return f"{pod_logs_dir}/{meta.namespace}_{meta.name}_{meta.uid}"


def container_log_path(container: str, restart_count: int) -> str:
    """A container's log file below the pod's log directory."""
    return f"{container}/{restart_count}.log"


def clean_container_path(path: str) -> str:
    """A path in a container from its root on and without detours, as mounts of the runtime name it (kubelet:
    `MakeAbsolutePath`).
    """
    return os.path.normpath("/" + path.lstrip("/"))
