"""Disks of clouds by their old types, against what the reference translates them to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.storage.world import pod_of
from trio_kubelet.api import v1
from trio_kubelet.storage.claims import inline_spec
from trio_kubelet.storage.migration import migrated_persistent, migrated_volume
from trio_kubelet.volumes.errors import VolumeError

GOLDEN: dict[str, Any] = msgspec.json.decode(
    (Path(__file__).parents[1] / "golden" / "csi-migration.json").read_bytes()
)
PREFIX = "failed to translate in-tree pv to CSI: "
NOT_READ = {"controllerPublishSecretRef", "controllerExpandSecretRef"}
"""What only controllers read of a persistent volume."""


def cases(kind: str) -> list[Any]:
    return [pytest.param(case, id=case["case"]) for case in GOLDEN[kind]]


def shown(volume: v1.PersistentVolume) -> dict[str, Any]:
    """A volume as the golden data shows it: without what is empty."""
    assert volume.spec.csi is not None
    tree = msgspec.to_builtins(volume.spec.csi)
    return {
        "name": volume.metadata.name,
        "csi": {key: value for key, value in tree.items() if value and key not in NOT_READ},
        "accessModes": volume.spec.access_modes,
    }


def expected(found: dict[str, Any]) -> dict[str, Any]:
    return {**found, "csi": {key: value for key, value in found["csi"].items() if key not in NOT_READ}}


@pytest.mark.parametrize("case", cases("persistent"))
def test_persistent_volumes(case: dict[str, Any]) -> None:
    given = msgspec.convert(case["given"], v1.PersistentVolume)
    if "error" in case:
        with pytest.raises(VolumeError) as error:
            migrated_persistent(given)
        assert str(error.value) == PREFIX + case["error"]
    else:
        assert shown(migrated_persistent(given)) == expected(case["found"])


@pytest.mark.parametrize("case", cases("inline"))
def test_volumes_of_pods(case: dict[str, Any]) -> None:
    given = msgspec.convert(case["given"], v1.Volume)
    if "error" in case:
        with pytest.raises(VolumeError) as error:
            migrated_volume(given, case.get("namespace", ""))
        assert str(error.value) == PREFIX + case["error"]
    else:
        found = migrated_volume(given, case.get("namespace", ""))
        assert found is not None
        assert shown(found) == expected(case["found"])


def test_all_kinds_that_the_reference_migrates_are_there() -> None:
    drivers = {case["found"]["csi"]["driver"] for case in GOLDEN["persistent"] if "found" in case}
    assert drivers == {
        "ebs.csi.aws.com",
        "disk.csi.azure.com",
        "file.csi.azure.com",
        "pd.csi.storage.gke.io",
        "cinder.csi.openstack.org",
        "csi.vsphere.vmware.com",
        "pxd.portworx.com",
    }


def test_a_disk_whose_name_leads_out_of_the_pods_directory_is_refused() -> None:
    disk = {"diskName": "d", "diskURI": "/subscriptions/../../../../../etc", "kind": "Managed"}
    volume = msgspec.convert({"name": "own", "azureDisk": disk}, v1.Volume)
    with pytest.raises(VolumeError, match="leads out of its directory"):
        inline_spec(pod_of("p"), volume)


def test_a_storage_policy_of_a_pods_own_disk_is_told() -> None:
    """The reference's translation of this one ends in a nil pointer."""
    disk = {"volumePath": "[ds] b.vmdk", "storagePolicyName": "gold"}
    found = migrated_volume(msgspec.convert({"name": "own", "vsphereVolume": disk}, v1.Volume), "apps")
    assert found is not None
    assert found.spec.csi is not None
    assert found.spec.csi.volume_attributes == {"storagepolicyname": "gold"}
