"""The checkpoint of claims, against files of kubelet v1.36."""

from __future__ import annotations

import json
import pathlib
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.dra.checkpoint import ClaimCheckpointError, decode, encode
from trio_kubelet.dra.states import Claim, PreparedDevice

GOLDEN = json.loads((pathlib.Path(__file__).parents[1] / "golden" / "dra-checkpoints.json").read_text())
FILES = GOLDEN["files"]


def test_a_kubelets_file_is_read() -> None:
    claims = [decode(text.encode()) for text in FILES]
    assert claims[:2] == [[], []]
    [claim, empty] = claims[2]
    assert (claim.uid, claim.name, claim.namespace) == ("uid-1", "claim", "default")
    assert claim.pods == {"pod-a", "pod-b"}
    gpu = claim.drivers["gpu.example.com"]
    assert gpu[0] == PreparedDevice(
        pool="node-1", name="gpu-0", requests=("req",), cdi_ids=("example.com/gpu=0", "a<b>&")
    )
    assert gpu[1].share_id == "5f0a"
    assert claim.drivers["nic.example.com"] == ()
    assert not claim.prepared
    assert empty.drivers == {}


def test_a_file_is_written_as_the_kubelet_does() -> None:
    text = FILES[2]
    ours, theirs = (json.loads(each) for each in (encode(decode(text.encode())), text))
    assert ours["Checksum"] == zlib.crc32(ours["Data"].encode())
    wanted = json.loads(theirs["Data"])
    for claim in wanted["ClaimInfoStateList"]:
        claim["DriverState"] = claim["DriverState"] or {}  # none and empty are one to a reader
    assert json.loads(ours["Data"]) == wanted


def test_a_damaged_file_is_refused() -> None:
    text = FILES[2]
    for damaged in (text[:40], text.replace("claim", "Claim", 1).replace("uid-1", "uid-9")):
        with pytest.raises(ClaimCheckpointError):
            decode(damaged.encode())


@pytest.mark.parametrize("case", GOLDEN["newer"], ids=lambda case: case["what"])
def test_files_of_newer_kubelets_are_taken_as_by_the_kubelet(case: dict[str, Any]) -> None:
    """Whatever version it says: it is read if it can be, and else ends the start."""
    if case["error"]:
        with pytest.raises(ClaimCheckpointError):
            decode(case["file"].encode())
        return
    claims = decode(case["file"].encode())
    assert [claim.uid for claim in claims] == [each["ClaimUID"] for each in case["read"] or ()]
    assert [set(claim.drivers) for claim in claims] == [
        set(each["DriverState"]) for each in case["read"] or ()
    ]


TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
DEVICES = st.builds(
    PreparedDevice,
    pool=TEXT,
    name=TEXT,
    share_id=st.none() | TEXT,
    requests=st.lists(TEXT, max_size=2).map(tuple),
    cdi_ids=st.lists(TEXT, max_size=2).map(tuple),
)
CLAIMS = st.builds(
    Claim,
    uid=TEXT,
    name=TEXT,
    namespace=TEXT,
    pods=st.frozensets(TEXT, max_size=3),
    drivers=st.dictionaries(TEXT, st.lists(DEVICES, max_size=2).map(tuple), max_size=2),
)


@given(st.lists(CLAIMS, max_size=3))
def test_what_is_written_is_read(claims: list[Claim]) -> None:
    assert decode(encode(claims)) == claims
