"""Settings of the kernel, in a directory that only looks like `/proc/sys`."""

from __future__ import annotations

from pathlib import Path

import pytest

from trio_kubelet.common import log as logging
from trio_kubelet.config.flags import KubeletFlags
from trio_kubelet.node import tunables
from trio_kubelet.node.tunables import WANTED, TunablesError, in_user_namespace, settle_tunables


@pytest.fixture
def proc_sys(tmp_path: Path) -> Path:
    """As a machine comes: two settings differ."""
    for name, value in {**WANTED, "vm/overcommit_memory": 0, "kernel/panic": -1}.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(f"{value}\n")
    return tmp_path


def lines(capfd: pytest.CaptureFixture[str]) -> list[str]:
    logging.flush()
    return capfd.readouterr().err.splitlines()


def values(proc_sys: Path) -> dict[str, int]:
    return {name: int((proc_sys / name).read_text()) for name in WANTED}


def test_what_a_kubelet_wants() -> None:
    assert WANTED == {
        "vm/overcommit_memory": 1,
        "vm/panic_on_oom": 0,
        "kernel/panic": 10,
        "kernel/panic_on_oops": 1,
        "kernel/keys/root_maxkeys": 1_000_000,
        "kernel/keys/root_maxbytes": 25_000_000,
    }


def test_what_differs_is_written_and_told(proc_sys: Path, capfd: pytest.CaptureFixture[str]) -> None:
    right = proc_sys / "kernel/panic_on_oops"
    right.chmod(0o400)
    before = right.stat().st_mtime_ns
    settle_tunables(str(proc_sys), protect=False, may_fail=False)
    assert values(proc_sys) == WANTED
    assert right.stat().st_mtime_ns == before
    told = [line.partition("] ")[2] for line in lines(capfd)]
    assert told == [
        '"Updating kernel flag" flag="vm/overcommit_memory" expectedValue=1 actualValue=0',
        '"Updating kernel flag" flag="kernel/panic" expectedValue=10 actualValue=-1',
    ]


def test_protected_settings_stay_and_all_that_differ_are_named(proc_sys: Path) -> None:
    (proc_sys / "vm/panic_on_oom").unlink()
    before = {path: path.read_text() for path in proc_sys.rglob("*") if path.is_file()}
    with pytest.raises(TunablesError) as caught:
        settle_tunables(str(proc_sys), protect=True, may_fail=True)
    assert str(caught.value) == (
        "[invalid kernel flag: vm/overcommit_memory, expected value: 1, actual value: 0, "
        f"open {proc_sys}/vm/panic_on_oom: no such file or directory, "
        "invalid kernel flag: kernel/panic, expected value: 10, actual value: -1]"
    )
    assert {path: path.read_text() for path in proc_sys.rglob("*") if path.is_file()} == before


def test_one_that_cannot_be_written_ends_the_start_unless_it_may(
    proc_sys: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: str, value: int) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(tunables, "_write", refuse)
    with pytest.raises(TunablesError, match=r"open .*/kernel/panic: permission denied\]$"):
        settle_tunables(str(proc_sys), protect=False, may_fail=False)
    settle_tunables(str(proc_sys), protect=False, may_fail=True)
    ignored = [line for line in lines(capfd) if "running in UserNS, ignoring" in line]
    assert [line.partition("flag=")[2].split()[0] for line in ignored] == [
        '"vm/overcommit_memory"',
        '"kernel/panic"',
    ]


def test_a_setting_that_is_no_number_is_an_error(proc_sys: Path) -> None:
    (proc_sys / "kernel/panic").write_text("never\n")
    with pytest.raises(TunablesError, match=r"kernel/panic: .*never"):
        settle_tunables(str(proc_sys), protect=False, may_fail=True)


@pytest.mark.parametrize(
    ("uid_map", "inside"),
    [("         0          0 4294967295\n", False), ("0 100000 65536\n", True), (None, False)],
)
def test_a_user_namespace_is_seen_by_its_ids(tmp_path: Path, uid_map: str | None, inside: bool) -> None:
    path = tmp_path / "uid_map"
    if uid_map is not None:
        path.write_text(uid_map)
    assert in_user_namespace(str(path)) is inside


def test_it_is_on_where_nobody_says_otherwise() -> None:
    assert KubeletFlags().set_kernel_tunables
