"""From a pod's volume to what is mounted: the kubelet's rules and texts."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.storage.world import pod_of
from trio_kubelet.api import v1
from trio_kubelet.storage.claims import check_claim, claim_name, claimed_spec
from trio_kubelet.storage.names import attachment_name, inline_handle
from trio_kubelet.storage.resizing import ResizeVerdict, failed, finished, plan
from trio_kubelet.volumes.errors import VolumeError

POD = pod_of("p", "c")
VOLUME = (POD.spec.volumes or [])[0]


def claim_of(**changes: Any) -> v1.PersistentVolumeClaim:
    tree = {
        "metadata": {"name": "c", "namespace": "default", "uid": "u", **changes.pop("metadata", {})},
        "spec": {"volumeName": "pv", "accessModes": ["ReadWriteOnce"], **changes.pop("spec", {})},
        "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}, **changes.pop("status", {})},
    }
    return msgspec.convert(tree, v1.PersistentVolumeClaim)


def volume_of(**spec: Any) -> v1.PersistentVolume:
    tree = {
        "metadata": {"name": "pv", "annotations": {"pv.beta.kubernetes.io/gid": "1234"}},
        "spec": {
            "csi": {"driver": "d", "volumeHandle": "h"},
            "claimRef": {"uid": "u"},
            "capacity": {"storage": "2Gi"},
            **spec,
        },
    }
    return msgspec.convert(tree, v1.PersistentVolume)


WHERE = "error processing PVC default/c: "


@pytest.mark.parametrize(
    ("claim", "text"),
    [
        (claim_of(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}), WHERE + "PVC is being deleted"),
        (claim_of(status={"phase": "Pending"}), WHERE + "PVC is not bound"),
        (claim_of(spec={"volumeName": ""}), WHERE + "PVC has empty pvc.Spec.VolumeName"),
    ],
)
def test_a_claim_that_cannot_be_used(claim: v1.PersistentVolumeClaim, text: str) -> None:
    with pytest.raises(VolumeError) as error:
        check_claim(POD, VOLUME, claim)
    assert str(error.value) == text


def test_a_protected_claim_that_is_being_deleted_is_used_on() -> None:
    meta = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["kubernetes.io/pvc-protection"]}
    check_claim(POD, VOLUME, claim_of(metadata=meta))


def test_a_generic_ephemeral_claim_belongs_to_its_pod() -> None:
    volume = msgspec.convert({"name": "c", "ephemeral": {"volumeClaimTemplate": {}}}, v1.Volume)
    assert claim_name(POD, volume) == "p-c"
    with pytest.raises(VolumeError) as error:
        check_claim(POD, volume, claim_of())
    assert str(error.value) == "PVC default/c was not created for pod default/p (pod is not owner)"
    owner = [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "uid-p", "controller": True}]
    check_claim(POD, volume, claim_of(metadata={"ownerReferences": owner}))


@pytest.mark.parametrize(
    ("volume", "text"),
    [
        (
            volume_of(claimRef=None),
            "found PV object pv but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the "
            "claim",
        ),
        (
            volume_of(claimRef={"uid": "other"}),
            "found PV object pv but its pv.Spec.ClaimRef.UID other does not point to claim.UID u",
        ),
    ],
)
def test_a_volume_that_is_not_the_claims(volume: v1.PersistentVolume, text: str) -> None:
    with pytest.raises(VolumeError) as error:
        claimed_spec(POD, VOLUME, claim_of(), volume)
    assert str(error.value) == WHERE + text


def test_mounts_and_devices_have_their_modes() -> None:
    with pytest.raises(VolumeError, match="volume c has volumeMode Block, but is specified in volumeMounts"):
        claimed_spec(POD, VOLUME, claim_of(), volume_of(volumeMode="Block"))
    pod = pod_of("p", devices=("c",))
    with pytest.raises(
        VolumeError, match="volume c has volumeMode Filesystem, but is specified in volumeDevices"
    ):
        claimed_spec(pod, VOLUME, claim_of(), volume_of())


def test_what_a_claim_comes_to() -> None:
    spec = claimed_spec(POD, VOLUME, claim_of(), volume_of(accessModes=["ReadWriteOncePod"]))
    assert (spec.unique_name, spec.name, spec.gid) == ("kubernetes.io/csi/d^h", "pv", "1234")
    assert (spec.claim_size, spec.capacity, spec.single_pod) == (1 << 30, 2 << 30, True)


@pytest.mark.parametrize("asked", [False, True])
def test_whether_a_persistent_volume_may_be_written_is_the_pods_to_say(asked: bool) -> None:
    """What the persistent volume says of its NFS directory the kubelet goes by as little."""
    found = volume_of(csi=None, nfs={"server": "s", "path": "/x", "readOnly": True})
    source = {"name": "c", "persistentVolumeClaim": {"claimName": "c", "readOnly": asked}}
    assert claimed_spec(POD, msgspec.convert(source, v1.Volume), claim_of(), found).read_only is asked


def test_names_are_the_kubelets() -> None:
    """Digests of the concatenated names, as `getAttachmentName` and `makeVolumeHandle` make them."""
    assert (
        attachment_name("h", "d", "n")
        == "csi-9072ed11cc1acb5fa433a877ff339b6311d013f33bddd1d0092711a8ace5b16d"
    )
    assert inline_handle("u", "v") == attachment_name("u", "v", "")


RESIZE = {"allocatedResources": {"storage": "2Gi"}}


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        (claim_of(), ResizeVerdict.EXPAND),  # a controller that knows no states
        (claim_of(status={"capacity": {"storage": "2Gi"}}), ResizeVerdict.EXPAND),  # on another node perhaps
        (
            claim_of(
                status=RESIZE | {"allocatedResourceStatuses": {"storage": "ControllerResizeInProgress"}}
            ),
            ResizeVerdict.NOT_YET,
        ),
        (
            claim_of(status=RESIZE | {"allocatedResourceStatuses": {"storage": "NodeResizePending"}}),
            ResizeVerdict.EXPAND,
        ),
        (
            claim_of(status=RESIZE | {"allocatedResourceStatuses": {"storage": "NodeResizeInfeasible"}}),
            ResizeVerdict.NOT_YET,
        ),
        (claim_of(status=RESIZE | {"capacity": {"storage": "2Gi"}}), ResizeVerdict.DONE),
        (
            claim_of(
                spec={"accessModes": ["ReadWriteMany"]}, status=RESIZE | {"capacity": {"storage": "2Gi"}}
            ),
            ResizeVerdict.EXPAND,
        ),
    ],
)
def test_when_a_volume_is_expanded(claim: v1.PersistentVolumeClaim, verdict: ResizeVerdict) -> None:
    assert plan(claim, "2Gi").verdict is verdict


def test_what_a_claims_status_says_of_an_expansion() -> None:
    conditions = [{"type": "FileSystemResizePending", "status": "True"}, {"type": "Other", "status": "True"}]
    claim = claim_of(
        status={
            "conditions": conditions,
            "allocatedResourceStatuses": {"storage": "NodeResizePending"},
        }
    )
    assert finished(claim, "2Gi")["status"] == {
        "capacity": {"storage": "2Gi"},
        "allocatedResourceStatuses": {"storage": None},
        "conditions": [{"$patch": "delete", "type": "FileSystemResizePending"}],
    }
    told = failed(claim, "no", "now", infeasible=True)["status"]
    assert told["allocatedResourceStatuses"] == {"storage": "NodeResizeInfeasible"}
    assert told["conditions"][0]["message"] == "failed to expand pvc with no"
    again = claim_of(status={"conditions": [{"type": "NodeResizeError", "status": "True"}]})
    assert failed(again, "no", "now", infeasible=False)["status"] == {}


def test_a_size_that_is_none_fails_its_pod_only() -> None:
    with pytest.raises(VolumeError, match="the size 'much' cannot be read"):
        claimed_spec(POD, VOLUME, claim_of(), volume_of(capacity={"storage": "much"}))
