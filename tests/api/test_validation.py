"""What makes a pod invalid, where no recorded pod shows it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trio_kubelet.api.errors import ManifestError
from trio_kubelet.sources.manifest import Origin, static_pod

CONTAINERS = [{"name": "c", "image": "b"}]


def refused(spec: dict[str, Any], **metadata: Any) -> list[str]:
    """The fields that a static pod is refused for, in order; none if it is taken."""
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "a", **metadata},
        "spec": {"containers": CONTAINERS, **spec},
    }
    try:
        static_pod(json.dumps(body).encode(), Origin("n", "file", "/x"))
    except ManifestError as exc:
        return [error.field for error in exc.errors]
    return []


def windows_user(name: str) -> dict[str, Any]:
    return {"securityContext": {"windowsOptions": {"runAsUserName": name}}}


@pytest.mark.parametrize(
    ("name", "good"),
    [
        (f"{'a' * 63}.example\\user", True),
        (f"{'a' * 64}.example\\user", False),
        (".netbios\\user", False),
        ("é" * 52, True),
        ("é" * 53, False),  # counted in bytes
        (" . ", False),
        ("a\\b\\c", False),
    ],
)
def test_user_names_of_windows(name: str, good: bool) -> None:
    field = "spec.securityContext.windowsOptions.runAsUserName"
    assert refused(windows_user(name)) == ([] if good else [field])


@pytest.mark.parametrize(
    ("iqn", "good"),
    [
        ("iqn.2020-01.example:disk", True),
        ("eui.0123456789abcdef", True),
        ("naa.0123456789abcdef0123456789abcdef", True),
        ("iqn.2020-01.example:disk\n", False),
        ("eui.0123456789abcdef\n", False),
        ("naa.0123456789abcdef0123456789abcdef\n", False),
        ("eui-eui.0123456789abcdef", False),
    ],
)
def test_names_of_iscsi_targets(iqn: str, good: bool) -> None:
    source = {"targetPortal": "10.0.0.1:3260", "iqn": iqn, "lun": 0}
    problems = refused({"volumes": [{"name": "v", "iscsi": source}]})
    assert problems == ([] if good else ["spec.volumes[0].iscsi.iqn"])


def test_an_event_owns_nothing_however_its_version_is_written() -> None:
    owner = {"kind": "Event", "name": "e", "uid": "u"}
    for version in ("v1", "/v1"):
        assert refused({}, ownerReferences=[{**owner, "apiVersion": version}]) == ["metadata.ownerReferences"]
    assert refused({}, ownerReferences=[{**owner, "apiVersion": "events.k8s.io/v1"}]) == []


def test_a_claim_template_has_labels_and_annotations_only() -> None:
    template = {
        "metadata": {"labels": {"a": "b"}, "uid": "u", "generateName": "g"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    here = "spec.volumes[0].ephemeral.volumeClaimTemplate.metadata"
    volumes = [{"name": "v", "ephemeral": {"volumeClaimTemplate": template}}]
    assert refused({"volumes": volumes}) == [f"{here}.generateName", f"{here}.uID"]
