"""Ids for pods with user namespaces: which are the machine's to give, and who gets which."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from trio_kubelet.api import v1
from trio_kubelet.node import subids
from trio_kubelet.node.subids import IDRange, every_id, kubelet_ids, parse_getsubids, range_problem
from trio_kubelet.node.userns import UserNamespaceRanges, free_part
from trio_kubelet.podinfo.context import RuntimeHandler
from trio_kubelet.podinfo.doors import ConfigError

UNIT = 65536


def test_what_getsubids_says() -> None:
    assert parse_getsubids("0: kubelet 65536 7208960\n") == (65536, 7208960)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "invalid line"),
        ("0: kubelet 65536\n", "invalid line"),
        ("0: kubelet 65536 x\n", "error parsing line"),
        ("0: kubelet 4294967296 65536\n", "error parsing line"),
        ("0: kubelet 65536 65536\n1: kubelet 131072 65536\n", "must contain only one line"),
    ],
)
def test_what_cannot_be_understood(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_getsubids(text)


@pytest.mark.parametrize(
    ("ids", "problem"),
    [
        (every_id(), ""),
        (IDRange(UNIT, 110 * UNIT), ""),
        (IDRange(UNIT, 109 * UNIT), "kubelet user assigned IDs are not enough to support 110 pods"),
        (IDRange(0, 200 * UNIT), "kubelet user assigned ID 0 must be greater or equal to 65536"),
        (IDRange(UNIT + 1, 200 * UNIT), "kubelet user assigned ID 65537 is not a multiple of 65536"),
        (
            IDRange(UNIT, 200 * UNIT + 1),
            "kubelet user assigned IDs length 13107201 is not a multiple of 65536",
        ),
        (IDRange(100, 200 * UNIT, 100), "kubelet user namespace length 100 is not a multiple of 65536"),
    ],
)
def test_what_cannot_be_given_out(ids: IDRange, problem: str) -> None:
    assert range_problem(ids, 110) == problem


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo 0: kubelet 131072 7208960", IDRange(131072, 7208960)),
        ("exit 1", 'error retrieving additional uids for user "kubelet"'),
        ('[ "$1" = -g ] && echo 0: kubelet 65536 7208960 || echo 0: kubelet 131072 7208960', "mismatched"),
        ("echo 0: kubelet 131072 65536", "not enough to support 110 pods"),
    ],
)
async def test_the_machine_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, expected: IDRange | str
) -> None:
    program = tmp_path / "getsubids"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(subids, "_program", lambda: str(program))
    if isinstance(expected, IDRange):
        assert await kubelet_ids(UNIT, 110) == expected
    else:
        with pytest.raises(ValueError, match=expected):
            await kubelet_ids(UNIT, 110)


async def test_without_a_user_kubelet_all_ids_but_the_first_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subids, "_USER", "nobody-of-that-name")
    assert await kubelet_ids(UNIT, 110) == IDRange(UNIT, 2**32 - UNIT)


def test_any_free_part_is_taken() -> None:
    ids = IDRange(4 * UNIT, 4 * UNIT)
    assert free_part((), ids, lambda parts: 2) == 6 * UNIT
    assert free_part({6 * UNIT, 7 * UNIT, 4 * UNIT}, ids, lambda parts: 2) == 5 * UNIT
    with pytest.raises(ConfigError, match=r"^create user namespace: could not find an empty slot"):
        free_part(range(4 * UNIT, 8 * UNIT, UNIT), ids)


def test_the_range_up_to_the_last_id_of_all_is_given_to_nobody() -> None:
    """kubernetes 139916: Linux maps no range that ends there, so its pod never starts."""
    assert free_part((), every_id(), lambda parts: parts - 1) == UNIT


def ranges(root: Path, ids: IDRange | None = None) -> UserNamespaceRanges:
    handler = RuntimeHandler(user_namespaces=True)
    return UserNamespaceRanges(str(root), lambda: {"": handler}, ids)


def pod(uid: str) -> v1.Pod:
    return msgspec.convert({"metadata": {"uid": uid}, "spec": {"hostUsers": False}}, v1.Pod)


async def test_a_pod_keeps_its_ids_and_shares_them_with_nobody(tmp_path: Path) -> None:
    ids = IDRange(8 * UNIT, 3 * UNIT)
    taken = set()
    for uid in ("a", "b", "c"):
        mapping = await ranges(tmp_path, ids).mapping(pod(uid), "")
        assert mapping is not None
        taken.add(mapping.uids[0].host_id)
        text = f'{{"hostId":{mapping.uids[0].host_id},"containerId":0,"length":65536}}'
        expected = f'{{"uidMappings":[{text}],"gidMappings":[{text}]}}'
        assert (tmp_path / f"pods/{uid}/userns").read_text() == expected
        assert await ranges(tmp_path, ids).mapping(pod(uid), "") == mapping
    assert taken == {8 * UNIT, 9 * UNIT, 10 * UNIT}
    with pytest.raises(ConfigError, match=r"^create user namespace: could not find an empty slot"):
        await ranges(tmp_path, ids).mapping(pod("d"), "")


async def test_ids_that_would_overlap_with_those_of_others_are_refused(tmp_path: Path) -> None:
    await ranges(tmp_path).mapping(pod("a"), "")
    mapping = {"hostId": UNIT + 1, "containerId": 0, "length": UNIT}
    record = msgspec.json.encode({"uidMappings": [mapping], "gidMappings": [mapping]})
    (tmp_path / "pods/a/userns").write_bytes(record)
    with pytest.raises(ConfigError, match="wrong user namespace offset specified 65537"):
        await ranges(tmp_path).mapping(pod("a"), "")


@pytest.mark.parametrize(
    ("uids", "gids"),
    [
        ([(8, 0)], [(9, 0)]),  # users and groups are others
        ([(8, 1)], [(8, 1)]),  # root of the pod is nobody
        ([(8, 0), (9, 1)], [(8, 0), (9, 1)]),
        ([], []),
    ],
)
async def test_ids_that_no_agent_gave_are_refused(
    uids: list[tuple[int, int]], gids: list[tuple[int, int]], tmp_path: Path
) -> None:
    def mappings(parts: list[tuple[int, int]]) -> list[dict[str, int]]:
        return [{"hostId": host * UNIT, "containerId": at * UNIT, "length": UNIT} for host, at in parts]

    await ranges(tmp_path).mapping(pod("a"), "")
    record = msgspec.json.encode({"uidMappings": mappings(uids), "gidMappings": mappings(gids)})
    (tmp_path / "pods/a/userns").write_bytes(record)
    with pytest.raises(ConfigError, match="mappings file of pod a is not one of the agent's"):
        await ranges(tmp_path).mapping(pod("a"), "")


async def test_ids_outside_of_the_machines_are_refused(tmp_path: Path) -> None:
    await ranges(tmp_path, IDRange(UNIT, UNIT)).mapping(pod("a"), "")
    with pytest.raises(ConfigError, match="id 65536 is out of range"):
        await ranges(tmp_path, IDRange(8 * UNIT, UNIT)).mapping(pod("a"), "")


@pytest.mark.parametrize(
    ("was", "free"),
    [
        (IDRange(UNIT, UNIT), {8, 10, 12}),  # elsewhere
        (IDRange(8 * UNIT, UNIT), {10, 12}),  # half a part
        (IDRange(9 * UNIT, 3 * UNIT, 3 * UNIT), {12}),  # one and a half
        (IDRange(12 * UNIT, 4 * UNIT, 4 * UNIT), {8, 10}),  # more than there is
    ],
)
async def test_a_pod_from_before_the_ids_were_changed_keeps_its_own_and_nobody_from_starting(
    tmp_path: Path, was: IDRange, free: set[int]
) -> None:
    """kubernetes 137912, 141941: the kubelet did not start."""
    await ranges(tmp_path, was).mapping(pod("old"), "")
    now = ranges(tmp_path, IDRange(8 * UNIT, 6 * UNIT, 2 * UNIT))
    found = [await now.mapping(pod(f"new{number}"), "") for number in range(len(free))]
    assert {each.uids[0].host_id // UNIT for each in found if each is not None} == free
    with pytest.raises(ConfigError, match="could not find an empty slot"):
        await now.mapping(pod("more"), "")
    with pytest.raises(ConfigError):
        await now.mapping(pod("old"), "")


@pytest.mark.parametrize(
    ("handlers", "handler", "said"),
    [
        ({}, "", "runtime does not support user namespaces"),
        ({"": RuntimeHandler()}, "", "runtime does not support user namespaces"),
        ({}, "kata", 'RuntimeClass handler "kata" does not support user namespaces'),
        (
            {"": RuntimeHandler(user_namespaces=True)},
            "kata",
            'RuntimeClass handler "kata" does not support user namespaces: the handler "kata" is not known',
        ),
    ],
)
async def test_a_runtime_that_cannot_is_told_in_the_kubelets_words(
    tmp_path: Path, handlers: dict[str, RuntimeHandler], handler: str, said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        await UserNamespaceRanges(str(tmp_path), lambda: handlers).mapping(pod("a"), handler)
    assert str(caught.value) == f"can't set `spec.hostUsers: false`, {said}"
    assert not (tmp_path / "pods").exists()
