"""What calls to a driver need besides the volume: its CSIDriver object, secrets, tokens, the attachment.

A driver's object need not exist; then the rules are those of a driver that must be attached, is told nothing
of pods, and leaves ownership to the agent for volumes of one writer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.podinfo.doors import GrantedToken, ObjectError
from trio_kubelet.storage import data_file
from trio_kubelet.storage.doors import StorageObjectsDoor
from trio_kubelet.storage.errors import Ending, OperationError
from trio_kubelet.storage.names import attachment_name
from trio_kubelet.storage.specs import READ_WRITE_ONCE, READ_WRITE_ONCE_POD, Spec

PREFIX: Final = "kubernetes.io/csi: "
TOKENS: Final = "csi.storage.k8s.io/serviceAccount.tokens"
_POLICY_FILE: Final = "File"
_POLICY_NONE: Final = "None"
_POLICY_DEFAULT: Final = "ReadWriteOnceWithFSType"


def pod_attributes(pod: v1.Pod, ephemeral: bool) -> dict[str, str]:
    """What a driver with `podInfoOnMount` is told of the pod."""
    meta = pod.metadata
    return {
        "csi.storage.k8s.io/pod.name": meta.name,
        "csi.storage.k8s.io/pod.namespace": meta.namespace,
        "csi.storage.k8s.io/pod.uid": meta.uid,
        "csi.storage.k8s.io/serviceAccount.name": pod.spec.service_account_name,
        "csi.storage.k8s.io/ephemeral": "true" if ephemeral else "false",
    }


def token_attribute(tokens: Mapping[str, GrantedToken]) -> dict[str, str]:
    """Tokens for a driver with `tokenRequests`, by audience."""
    shown = {
        audience: {"token": token.text, "expirationTimestamp": token.expires}
        for audience, token in sorted(tokens.items())
    }
    return {TOKENS: msgspec.json.encode(shown).decode()}


def attach_required(driver: v1.CSIDriver | None) -> bool:
    """Whether volumes of the driver are attached before they are mounted."""
    return driver is None or driver.spec.attach_required is not False


def lifecycle_problem(name: str, driver: v1.CSIDriver | None, ephemeral: bool) -> str:
    """Why the driver does not take such volumes, "" if it does."""
    mode = "Ephemeral" if ephemeral else "Persistent"
    if driver is None:
        if not ephemeral:
            return ""
        return f'volume mode "{mode}" not supported by driver {name} (no CSIDriver object)'
    modes = driver.spec.volume_lifecycle_modes or []
    if mode in modes:
        return ""
    shown = " ".join(f'"{each}"' for each in modes)
    return f'volume mode "{mode}" not supported by driver {name} (only supports [{shown}])'


def gives_to_group(spec: Spec, fs_type: str, group: int | None, policy: str) -> bool:
    """Whether the agent gives the volume's files to the pod's group (`fsGroupPolicy`)."""
    if group is None or spec.read_only or policy == _POLICY_NONE:
        return False
    if policy == _POLICY_FILE:
        return True
    if not fs_type:
        return False
    if spec.ephemeral:
        return True
    return READ_WRITE_ONCE in spec.access_modes or READ_WRITE_ONCE_POD in spec.access_modes


class CSIContext:
    """Reads what the module says, for the volumes of this node."""

    def __init__(self, node_name: str, objects: StorageObjectsDoor) -> None:
        self._node_name = node_name
        self._objects = objects

    def attachment_name(self, spec: Spec) -> str:
        """The VolumeAttachment of a volume on this node."""
        return attachment_name(spec.handle, spec.driver, self._node_name)

    def volume_data(self, spec: Spec) -> dict[str, str]:
        """What the file beside a volume says of it."""
        return {
            data_file.SPEC_NAME: spec.name,
            data_file.HANDLE: spec.handle,
            data_file.DRIVER: spec.driver,
            data_file.NODE: self._node_name,
            data_file.ATTACHMENT: self.attachment_name(spec),
        }

    async def driver(self, name: str) -> v1.CSIDriver | None:
        """The driver's object. Raises OperationError."""
        try:
            return await self._objects.driver(name)
        except ObjectError as error:
            raise OperationError(f"{PREFIX}{error}", Ending.TRANSIENT) from error

    async def check_lifecycle(self, spec: Spec) -> None:
        """That the driver takes such volumes. Raises OperationError."""
        problem = lifecycle_problem(spec.driver, await self.driver(spec.driver), spec.ephemeral)
        if problem:
            text = f"{PREFIX}mounter.SetupAt failed to check volume lifecycle mode: {problem}"
            raise OperationError(text, Ending.TRANSIENT)

    async def group_policy(self, spec: Spec) -> str:
        """The driver's `fsGroupPolicy`. Raises OperationError."""
        driver = await self.driver(spec.driver)
        return (driver.spec.fs_group_policy if driver is not None else None) or _POLICY_DEFAULT

    async def attachment(self, spec: Spec) -> v1.VolumeAttachment | None:
        """The volume's attachment, None if it is not there. Raises OperationError."""
        try:
            return await self._objects.attachment(self.attachment_name(spec))
        except ObjectError as error:
            raise OperationError(str(error), Ending.TRANSIENT) from error

    async def publish_context(self, spec: Spec, what: str = "") -> dict[str, str]:
        """What the attacher handed on for the driver on the node. Raises OperationError, whose text begins
        with `what`, in which `{}` stands for the attachment's name.
        """
        if spec.ephemeral or not attach_required(await self.driver(spec.driver)):
            return {}
        name = self.attachment_name(spec)
        try:
            found = await self.attachment(spec)
        except OperationError as error:
            raise OperationError(f"{what.format(name)}{error}", error.ending) from error
        if found is None:
            text = f'volumeattachments.storage.k8s.io "{name}" not found'
            raise OperationError(what.format(name) + text, Ending.TRANSIENT)
        return dict(found.status.attachment_metadata or {})

    async def secret(self, ref: v1.SecretReference | None, what: str) -> dict[str, str]:
        """The keys of a secret. Raises OperationError, whose text begins with `what`, in which `{}` stands
        for the secret.
        """
        if ref is None:
            return {}
        where = f"{ref.namespace}/{ref.name}"
        try:
            found = await self._objects.secret(ref.namespace, ref.name)
            error = f'secrets "{ref.name}" not found' if found is None else ""
        except ObjectError as exc:
            found, error = None, str(exc)
        if found is None:
            text = (
                f"{PREFIX}failed to find the secret {ref.name} in the namespace {ref.namespace} with error: "
                f"{error}"
            )
            raise OperationError(what.format(where) + text, Ending.TRANSIENT)
        return {key: value.decode("utf-8", "surrogateescape") for key, value in (found.data or {}).items()}

    async def of_pod(self, spec: Spec, pod: v1.Pod) -> tuple[dict[str, str], dict[str, str]]:
        """What the driver is told of the pod: as attributes, and as secrets. Of tokens it is not told with a
        block device (kubelet: `publishVolumeForBlock`). Raises OperationError.
        """
        driver = await self.driver(spec.driver)
        if driver is None:
            return {}, {}
        shown = pod_attributes(pod, spec.ephemeral) if driver.spec.pod_info_on_mount else {}
        if spec.block or not driver.spec.token_requests:
            return shown, {}
        tokens = {}
        for request in driver.spec.token_requests:
            try:
                tokens[request.audience] = await self._objects.token(
                    pod, request.audience, request.expiration_seconds
                )
            except ObjectError as error:
                text = f"{PREFIX}mounter.SetUpAt failed to get service accoount token attributes: {error}"
                raise OperationError(text, Ending.TRANSIENT) from error
        hidden = token_attribute(tokens)
        if driver.spec.service_account_token_in_secrets:
            return shown, hidden
        return {**shown, **hidden}, {}
