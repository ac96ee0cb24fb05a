"""The checkpoint of devices, against files of kubelet v1.36."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.devices.checkpoint import Data, DeviceCheckpointError, PodDevicesEntry, decode, encode

GOLDEN = json.loads((pathlib.Path(__file__).parents[1] / "golden" / "device-checkpoints.json").read_text())
FILES = GOLDEN["files"]


@pytest.mark.parametrize("text", FILES)
def test_a_kubelets_file_is_read_and_written_as_it_is(text: str) -> None:
    data = decode(text.encode())
    assert json.loads(encode(data)) == json.loads(text)


@pytest.mark.parametrize("text", FILES)
def test_a_file_that_was_cut_off_or_changed_is_refused(text: str) -> None:
    with pytest.raises(DeviceCheckpointError):
        decode(text[: len(text) // 2].encode())
    file = json.loads(text)
    file["Data"]["RegisteredDevices"] = {"example.com/other": None}
    with pytest.raises(DeviceCheckpointError, match="corrupted"):
        decode(json.dumps(file).encode())


@pytest.mark.parametrize("case", GOLDEN["newer"], ids=lambda case: case["what"])
def test_files_of_newer_kubelets_are_taken_as_by_the_kubelet(case: dict[str, Any]) -> None:
    """What nobody knows is passed over; a file that says something else does not count. What comes of that:
    test_what_a_damaged_checkpoint_says_is_not_believed.
    """
    if case["error"]:
        with pytest.raises(DeviceCheckpointError):
            decode(case["file"].encode())
        return
    data, (entries, registered) = decode(case["file"].encode()), case["read"]
    assert json.loads(encode(data))["Data"] == {"PodDeviceEntries": entries, "RegisteredDevices": registered}


TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
IDS = st.none() | st.lists(TEXT, max_size=3)
ENTRIES = st.builds(
    PodDevicesEntry,
    pod_uid=TEXT,
    container_name=TEXT,
    resource_name=TEXT,
    device_ids=st.none() | st.dictionaries(st.integers(-1, 2**40), IDS, max_size=3),
    alloc_resp=st.sampled_from([None, "", "CgoKA0ZPTxIDYmFy"]),
)


@given(
    st.builds(
        Data,
        pod_device_entries=st.none() | st.lists(ENTRIES, max_size=3),
        registered_devices=st.none() | st.dictionaries(TEXT, IDS, max_size=3),
    )
)
def test_what_is_written_is_read(data: Data) -> None:
    assert msgspec.to_builtins(decode(encode(data))) == msgspec.to_builtins(data)
