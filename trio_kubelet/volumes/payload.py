"""Files of downward API, config map, secret and projected volumes, from values already fetched. Pure."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.api.containers import containers_with_path
from trio_kubelet.api.errors import aggregate_errors
from trio_kubelet.podinfo.context import NodeContext
from trio_kubelet.podinfo.doors import ConfigError, CredentialBundle, ObjectError
from trio_kubelet.podinfo.downward import container_resource, find_container, metadata_field
from trio_kubelet.volumes.errors import VolumeError

T = TypeVar("T")

_MAX_NAME = 255
_MAX_PATH = 4096
_MAX_PARTS = 128
_PRIVATE_MODE = 0o600
_DEFAULT_MODE = 0o644
MOST_BYTES: Final = 128 << 20
"""Of all files of a pod's volumes: those of more than a hundred of the largest objects there can be."""
MOST_DIRECTORIES: Final = 16384
"""That paths of a pod's files name: one path of a manifest is enough for two thousand."""


class FileProjection(msgspec.Struct, frozen=True):
    """Content and mode of one file of a volume, and the user it is given to (None: the agent's own)."""

    data: bytes
    mode: int
    user: int | None = None

    def __repr__(self) -> str:  # the content may be secret
        return f"FileProjection({len(self.data)} bytes, mode={self.mode:o})"


class Objects(msgspec.Struct, frozen=True):
    """What a volume's files come from. An object that is not in the mapping does not exist.

    By their place among the projected sources: service account tokens, trust anchors, certificates with their
    keys; of the latter two, why they cannot be had.
    """

    config_maps: Mapping[str, v1.ConfigMap] = {}
    secrets: Mapping[str, v1.Secret] = {}
    tokens: Mapping[int, str] = {}
    anchors: Mapping[int, bytes | ObjectError] = {}
    certificates: Mapping[int, CredentialBundle | ObjectError] = {}

    def __repr__(self) -> str:
        return f"Objects({sorted(self.config_maps)}, {sorted(self.secrets)}, {len(self.tokens)} tokens)"


def config_map_names(volume: v1.Volume) -> Iterator[str]:
    """Config maps the volume needs."""
    if volume.config_map is not None:
        yield volume.config_map.name
    for source in _sources(volume):
        if source.config_map is not None:
            yield source.config_map.name


def secret_names(volume: v1.Volume) -> Iterator[str]:
    """Secrets the volume needs."""
    if volume.secret is not None:
        yield volume.secret.secret_name
    for source in _sources(volume):
        if source.secret is not None:
            yield source.secret.name


def token_sources(volume: v1.Volume) -> Iterator[tuple[int, v1.ServiceAccountTokenProjection]]:
    """Service account tokens the volume needs, with their places among the sources."""
    for index, source in enumerate(_sources(volume)):
        if source.service_account_token is not None:
            yield index, source.service_account_token


def anchor_sources(volume: v1.Volume) -> Iterator[tuple[int, v1.ClusterTrustBundleProjection]]:
    """Cluster trust bundles the volume shows, with their places among the sources."""
    for index, source in enumerate(_sources(volume)):
        if source.cluster_trust_bundle is not None:
            yield index, source.cluster_trust_bundle


def certificate_places(volume: v1.Volume) -> Iterator[int]:
    """The places of the certificates the volume shows among the sources."""
    for index, source in enumerate(_sources(volume)):
        if source.pod_certificate is not None:
            yield index


class PodFiles:
    """Makes the files of a pod's volumes. What many of them hold is made once, and all together have a bound:
    a line of a manifest is enough for a file with a megabyte of a config map.
    """

    def __init__(
        self, pod: v1.Pod, ctx: NodeContext, most: int = MOST_BYTES, most_directories: int = MOST_DIRECTORIES
    ) -> None:
        """`most`: bytes of all files; `most_directories` their paths name."""
        self._pod, self._ctx = pod, ctx
        self._most = self._room = most
        self._most_directories = self._directories = most_directories
        self._fields: dict[str, bytes] = {}  # by path
        self._encoded: dict[str, dict[str, bytes]] = {}  # the data of config maps, by name

    def of(self, volume: v1.Volume, objects: Objects) -> dict[str, FileProjection]:
        """All files of a volume by path. Raises VolumeError."""
        files = dict[str, FileProjection]()
        for path, file in self._files(volume, objects):
            self._room -= len(file.data)
            if self._room < 0:
                raise VolumeError(f"the files of the pod's volumes have more than {self._most} bytes")
            self._directories -= path.count("/")
            if self._directories < 0:
                raise VolumeError(
                    "the paths of the files of the pod's volumes name more than "
                    f"{self._most_directories} directories"
                )
            files[path] = file
        for path in files:
            check_path(path)
        return {posixpath.normpath(path): file for path, file in files.items()}

    def _files(self, volume: v1.Volume, objects: Objects) -> Iterator[tuple[str, FileProjection]]:
        failures: list[str] = []
        if volume.downward_api is not None:
            mode = _mode(volume.downward_api.default_mode)
            yield from self._downward(volume.downward_api.items, mode, failures)
        elif volume.config_map is not None:
            source = volume.config_map
            mode = _mode(source.default_mode)
            yield from self._config_map(source.name, source.items, mode, bool(source.optional), objects)
        elif volume.secret is not None:
            secret = volume.secret
            mode = _mode(secret.default_mode)
            yield from _secret_files(secret.secret_name, secret.items, mode, bool(secret.optional), objects)
        elif volume.projected is not None:
            mode = _mode(volume.projected.default_mode)
            for index, part in enumerate(_sources(volume)):
                try:
                    yield from self._projected(part, index, mode, objects, failures)
                except VolumeError as error:
                    failures.append(str(error))
        if failures:
            raise VolumeError(aggregate_errors(failures))

    def _downward(
        self, items: Sequence[v1.DownwardAPIVolumeFile] | None, mode: int, failures: list[str]
    ) -> Iterator[tuple[str, FileProjection]]:
        """Files with facts about the pod. Limits that are not set are the node's allocatable resources. Why
        some cannot be had is added to `failures`.
        """
        for item in items or ():
            try:
                data = self._fact(item)
            except ConfigError as error:
                failures.append(str(error))
            else:
                yield item.path, FileProjection(data, mode if item.mode is None else item.mode)

    def _fact(self, item: v1.DownwardAPIVolumeFile) -> bytes:
        if item.field_ref is not None:
            return self._field(item.field_ref.field_path)
        if item.resource_field_ref is not None:
            container = find_container(self._pod, item.resource_field_ref.container_name)
            return container_resource(item.resource_field_ref, container, self._ctx.allocatable).encode()
        return b""

    def _field(self, path: str) -> bytes:
        if path not in self._fields:
            self._fields[path] = metadata_field(self._pod, path).encode("utf-8", "surrogateescape")
        return self._fields[path]

    def _projected(
        self, part: v1.VolumeProjection, index: int, mode: int, objects: Objects, failures: list[str]
    ) -> Iterator[tuple[str, FileProjection]]:
        pod = self._pod
        if part.downward_api is not None:
            yield from self._downward(part.downward_api.items, mode, failures)
        elif part.config_map is not None:
            source = part.config_map
            yield from self._config_map(source.name, source.items, mode, bool(source.optional), objects)
        elif part.secret is not None:
            secret = part.secret
            yield from _secret_files(secret.name, secret.items, mode, bool(secret.optional), objects)
        elif part.service_account_token is not None:
            token = objects.tokens[index].encode()
            yield part.service_account_token.path, _private(pod, token, mode)
        elif part.cluster_trust_bundle is not None:
            yield part.cluster_trust_bundle.path, _private(pod, _had(objects.anchors[index]), mode)
        elif part.pod_certificate is not None:
            wanted, bundle = part.pod_certificate, _had(objects.certificates[index])
            for path, data in (
                (wanted.credential_bundle_path, bundle.key + bundle.chain),
                (wanted.key_path, bundle.key),
                (wanted.certificate_chain_path, bundle.chain),
            ):
                if path:
                    yield path, _private(pod, data, mode)

    def _config_map(
        self, name: str, items: Sequence[v1.KeyToPath] | None, mode: int, optional: bool, objects: Objects
    ) -> Iterator[tuple[str, FileProjection]]:
        config_map = objects.config_maps.get(name)
        if config_map is None and not optional:
            raise VolumeError(f'configmap "{name}" not found')
        data: dict[str, bytes] = {}
        if config_map is not None:
            if name not in self._encoded:
                text = {key: value.encode() for key, value in (config_map.data or {}).items()}
                self._encoded[name] = {**(config_map.binary_data or {}), **text}
            data = self._encoded[name]
        yield from _keys(data, items, mode, optional, "configmap references non-existent config key")


def check_path(path: str) -> None:
    """Refuses paths that leave the volume, could be taken for the writer's own (`..data`) or are too long
    (kubelet: `validatePath`), or too deep. Lengths are in bytes. Raises VolumeError.
    """
    parts = path.split("/")
    if not path:
        raise VolumeError('invalid path: must not be empty: ""')
    if not parts[0]:
        raise VolumeError(f"invalid path: must be relative path: {path}")
    if len(os.fsencode(path)) > _MAX_PATH:
        raise VolumeError(f"invalid path: must be less than or equal to {_MAX_PATH} characters")
    for part in parts:
        if part == "..":
            raise VolumeError(f"invalid path: must not contain '..': {path}")
        if len(os.fsencode(part)) > _MAX_NAME:
            raise VolumeError(f"invalid path: filenames must be less than or equal to {_MAX_NAME} characters")
    if parts[0].startswith(".."):
        raise VolumeError(f"invalid path: must not start with '..': {path}")
    if len(parts) > _MAX_PARTS:
        raise VolumeError(f"invalid path: more than {_MAX_PARTS} parts: {path}")


def _sources(volume: v1.Volume) -> Sequence[v1.VolumeProjection]:
    return (volume.projected.sources or ()) if volume.projected is not None else ()


def _mode(mode: int | None) -> int:
    return _DEFAULT_MODE if mode is None else mode


def _had(found: T | ObjectError) -> T:
    """Raises VolumeError for what cannot be had."""
    if isinstance(found, ObjectError):
        raise VolumeError(str(found))
    return found


def _private(pod: v1.Pod, data: bytes, mode: int) -> FileProjection:
    """A file that only the pod's one user, or the volume's group, is to read where there is one; giving it
    the group adds the right.
    """
    context, user = pod.spec.security_context, only_user(pod)
    private = user is not None or (context is not None and context.fs_group is not None)
    return FileProjection(data, _PRIVATE_MODE if private else mode, user)


def only_user(pod: v1.Pod) -> int | None:
    """The user that all containers of the pod run as, None if they differ or one does not say."""
    spec = pod.spec
    of_pod = spec.security_context.run_as_user if spec.security_context is not None else None
    users = set()
    for container, _ in containers_with_path(spec):
        own = container.security_context
        users.add(own.run_as_user if own is not None and own.run_as_user is not None else of_pod)
    return users.pop() if len(users) == 1 else None


def _secret_files(
    name: str, items: Sequence[v1.KeyToPath] | None, mode: int, optional: bool, objects: Objects
) -> Iterator[tuple[str, FileProjection]]:
    secret = objects.secrets.get(name)
    if secret is None and not optional:
        raise VolumeError(f'secret "{name}" not found')
    data = (secret.data or {}) if secret is not None else {}
    yield from _keys(data, items, mode, optional, "references non-existent secret key")


def _keys(
    data: Mapping[str, bytes], items: Sequence[v1.KeyToPath] | None, mode: int, optional: bool, missing: str
) -> Iterator[tuple[str, FileProjection]]:
    """All keys, or those that are asked for under the names that are asked for."""
    if not items:
        yield from ((key, FileProjection(value, mode)) for key, value in data.items())
        return
    for item in items:
        if item.key in data:
            yield item.path, FileProjection(data[item.key], mode if item.mode is None else item.mode)
        elif not optional:
            raise VolumeError(f"{missing}: {item.key}")
