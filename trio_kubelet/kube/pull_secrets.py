"""Registry credentials for the pods of this node: their pull secrets, then what the node itself has.

A secret that is missing or makes no sense is told, and the pull is tried without it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from trio_kubelet.api import v1
from trio_kubelet.common.caching import Shared
from trio_kubelet.common.lanes import CONFIGS, NODE_FILES, WorkHangs
from trio_kubelet.common.log import get_logger
from trio_kubelet.credential_providers.doors import PullSecret
from trio_kubelet.credential_providers.keyring import (
    InvalidDockerConfig,
    Keyring,
    Login,
    SecretSource,
    parse_docker_config,
    parse_legacy_docker_config,
)
from trio_kubelet.podinfo.doors import ClusterObjects, PodRecorderDoor, read_all

log = get_logger(__name__)

_MUCH: Final = 64 * 1024
"""Bytes of a pod's pull secrets above which they are read and looked through in a thread: they are the pod's
to choose, a megabyte each.
"""
NODE_CONFIG_LIFE: Final = 300.0
"""Seconds after which the node's own configuration is read again."""

_FORMATS: Final[dict[str, tuple[str, Callable[[bytes], dict[str, Login]]]]] = {
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson", parse_docker_config),
    "kubernetes.io/dockercfg": (".dockercfg", parse_legacy_docker_config),
}


class PullSecrets:
    """Finds the credentials a pod's images are pulled with."""

    def __init__(
        self,
        objects: ClusterObjects | None,
        events: PodRecorderDoor,
        node: NodeLogins,
        plugins: Callable[[v1.Pod], PullSecret] | None = None,
    ) -> None:
        """`plugins` gives what asks the node's credential provider plugins for a pod."""
        self._objects = objects
        self._events = events
        self._node = node
        self._plugins = plugins

    async def of(self, pod: v1.Pod) -> Sequence[PullSecret]:
        """The pod's own credentials first. The pod has to be registered with `objects`."""
        keyrings = (await self._of_pod(pod), await self._node.keyring())
        found: list[PullSecret] = [keyring for keyring in keyrings if keyring]
        if self._plugins is not None:
            found.append(self._plugins(pod))
        return found

    async def _of_pod(self, pod: v1.Pod) -> PullSecret | None:
        objects, namespace = self._objects, pod.metadata.namespace
        names = list(dict.fromkeys(ref.name for ref in pod.spec.image_pull_secrets or () if ref.name))
        if not names or objects is None:
            return None
        found = await read_all(names, lambda name: objects.secret(namespace, name))
        secrets = {name: secret for name in names if isinstance(secret := found[name], v1.Secret)}
        owner = pod.metadata.uid
        much = sum(len(data) for secret in secrets.values() for data in (secret.data or {}).values()) > _MUCH
        try:
            gathered = (
                await CONFIGS.run(_gather, secrets, namespace, owner=owner)
                if much
                else _gather(secrets, namespace)
            )
        except WorkHangs as error:
            gathered = _Gathered(Keyring(), dict.fromkeys(secrets, error))
        for name, why in gathered.failed.items():
            log.warning("Pull secret cannot be used", pod=pod, secret=name, err=why)
        if failed := [name for name in names if name not in secrets or name in gathered.failed]:
            self._events.record(
                pod,
                "Warning",
                "FailedToRetrieveImagePullSecret",
                f"Unable to retrieve some image pull secrets ({', '.join(failed)}); "
                "attempting to pull the image may not succeed.",
            )
        if not gathered.keyring:
            return None
        if not much:
            return gathered.keyring
        from trio_kubelet.credential_providers.many_logins import ManyLogins

        return ManyLogins(gathered.keyring.lookup, owner)


class _Gathered(NamedTuple):
    """The logins of secrets, and why those of some cannot be read."""

    keyring: Keyring
    failed: Mapping[str, Exception]


def _gather(secrets: Mapping[str, v1.Secret], namespace: str) -> _Gathered:
    keyring, failed = Keyring(), dict[str, Exception]()
    for name, secret in secrets.items():
        try:
            logins = _logins_of(secret)
        except InvalidDockerConfig as error:
            failed[name] = error
        else:
            keyring.add(logins, SecretSource(secret.metadata.uid, namespace, name))
    return _Gathered(keyring, failed)


class NodeLogins:
    """Credentials every pod may use: docker's configuration files in the usual places.

    Looked for in the kubelet's own directory, the working directory, root's home and `/`; the first
    `config.json` that can be read counts, else the first `.dockercfg`.
    """

    def __init__(self, root_dir: str, home: str | None = None) -> None:
        home = home if home is not None else os.environ.get("HOME", "")
        self._places = [
            *(
                (os.path.join(directory, "config.json"), parse_docker_config)
                for directory in (root_dir, ".", os.path.join(home, ".docker"), "/.docker")
            ),
            *(
                (os.path.join(directory, ".dockercfg"), parse_legacy_docker_config)
                for directory in (root_dir, ".", home or "/", "/")
            ),
        ]
        self._keyring = Shared(lambda: NODE_FILES.run(self._read), NODE_CONFIG_LIFE)

    async def keyring(self) -> Keyring:
        """The credentials as they were at most some minutes ago."""
        return await self._keyring.get()

    def _read(self) -> Keyring:
        for path, parse in self._places:
            try:
                with open(path, "rb") as file:
                    return Keyring([parse(file.read())])
            except FileNotFoundError:
                continue
            except (OSError, InvalidDockerConfig) as error:
                log.v(4).info("Docker configuration cannot be used", path=path, err=error)
        return Keyring([])


def _logins_of(secret: v1.Secret) -> dict[str, Login]:
    """Raises InvalidDockerConfig."""
    key, parse = _FORMATS.get(secret.type, ("", None))
    data = (secret.data or {}).get(key)
    return parse(data) if parse is not None and data else {}
