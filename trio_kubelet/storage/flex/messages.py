"""What FlexVolume drivers are told, and what their answers mean. Pure.

A driver is a program: a command and its arguments in, one JSON object out. Rules and texts are those of the
kubelet's `flexvolume` plugin.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.storage.errors import NotSupported, OperationError
from trio_kubelet.storage.names import escape
from trio_kubelet.storage.specs import Spec
from trio_kubelet.volumes.local import fs_group_of

NOT_SUPPORTED: Final = "Not supported"
_SUCCESS: Final = "Success"
_ESCAPED: Final = {"&": "\\u0026", "<": "\\u003c", ">": "\\u003e", "\u2028": "\\u2028", "\u2029": "\\u2029"}

Source = v1.FlexVolumeSource | v1.FlexPersistentVolumeSource


class Capabilities(msgspec.Struct, frozen=True):
    """What a driver can do; what it does not mention it can, except telling how full its volumes are."""

    attach: bool = True
    supportsmetrics: bool = False
    fsgroup: bool = True
    requiresfsresize: bool = True
    selinuxrelabel: bool = True


class Answer(msgspec.Struct, frozen=True):
    """What a driver says, with its keys in small letters: Go does not mind how they are written."""

    status: str = ""
    message: str = ""
    device: str = ""
    attached: bool = False
    capabilities: Capabilities | None = None


def answer_of(command: str, output: bytes) -> Answer:
    """A driver's answer. Raises NotSupported, and OperationError for a failure and for what is no answer."""
    try:
        answer = msgspec.convert(_small(json.loads(output)), Answer)
    except (ValueError, RecursionError) as error:  # of both libraries
        raise OperationError(_words(output, error)) from error
    if answer.status == NOT_SUPPORTED:
        raise NotSupported(NOT_SUPPORTED)
    if answer.status != _SUCCESS:
        raise OperationError(f"{command} command failed, status: {answer.status}, reason: {answer.message}")
    return answer


def _small(found: Any) -> Any:
    """The keys of objects in small letters."""
    if not isinstance(found, dict):
        return found
    return {key.lower(): _small(value) for key, value in found.items()}


def _words(output: bytes, error: Exception) -> str:
    """Why an output is no answer, as Go says it where it is clear."""
    text = output.decode("utf-8", "replace").strip()
    if not text or (isinstance(error, json.JSONDecodeError) and error.pos >= len(text)):
        return "unexpected end of JSON input"
    if text[0] not in '{["-0123456789tfn':
        return f"invalid character '{text[0]}' looking for beginning of value"
    return str(error)


def options_of(spec: Spec, extra: Mapping[str, str] | None = None) -> str:
    """The options a driver is given for a volume; those of the volume itself go before all others."""
    source = source_of(spec)
    options = {
        "kubernetes.io/fsType": source.fs_type,
        "kubernetes.io/readwrite": "ro" if spec.read_only else "rw",
        "kubernetes.io/pvOrVolumeName": spec.name,
        **(extra or {}),
        **(source.options or {}),
    }
    text = json.dumps(options, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return "".join(_ESCAPED.get(each, each) for each in text)


def pod_options(pod: v1.Pod, secrets: Mapping[str, bytes]) -> dict[str, str]:
    """What a driver is told of the pod it mounts for."""
    meta = pod.metadata
    found = {
        "kubernetes.io/pod.name": meta.name,
        "kubernetes.io/pod.namespace": meta.namespace,
        "kubernetes.io/pod.uid": meta.uid,
        "kubernetes.io/serviceAccount.name": pod.spec.service_account_name,
    }
    for key, value in secrets.items():
        found[f"kubernetes.io/secret/{key}"] = base64.b64encode(value).decode()
    if (group := fs_group_of(pod)) is not None:
        found["kubernetes.io/mounterArgs.FsGroup"] = str(group)
    return found


def secret_of(spec: Spec, namespace: str) -> tuple[str, str]:
    """Namespace and name of a volume's secret, "" for none; `namespace` is the pod's."""
    ref = source_of(spec).secret_ref
    if ref is None:
        return "", ""
    named = ref.namespace if isinstance(ref, v1.SecretReference) else ""
    return named or namespace, ref.name


def source_of(spec: Spec) -> Source:
    """Where the volume's own description is."""
    assert isinstance(spec.source, v1.FlexVolumeSource | v1.FlexPersistentVolumeSource)
    return spec.source


def program_of(driver: str) -> str:
    """A driver's program below the directory of drivers (`vendor~driver/driver`), "" for what names none."""
    directory, name = escape(driver), driver.rpartition("/")[2]
    parts = driver.split("/")
    if not directory or directory.startswith(".") or "\0" in driver or {"", ".", ".."} & set(parts):
        return ""
    return f"{directory}/{name}"
