"""What the kernel's log says of its OOM killer, whatever else is in it."""

from __future__ import annotations

import errno
import os
import tty
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from tests.containerd.harness import wait_until
from tests.node.world import Said
from trio_kubelet.cgroups.files import find_hierarchies
from trio_kubelet.node.oom_watcher import REST, OOMKill, OOMWatcher, kernel_text, read_line

START = "tail invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=1000"
NOISE = ["CPU: 0 PID: 1 Comm: tail", "Mem-Info:", "[  pid  ]   uid  tgid total_vm", " dump_stack+0x1"]
IN_CGROUP = (
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=abc,mems_allowed=0,oom_memcg={cgroup},"
    "task_memcg=/kubepods/besteffort/pod1/abc,task={name},pid=123,uid=0"
)
GLOBAL = (
    "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=abc,mems_allowed=0,global_oom,"
    "task_memcg=/kubepods/besteffort/pod1/abc,task=tail,pid=123,uid=0"
)
KILLED = "Out of memory: Killed process 123 ({name}) total-vm:8234kB, anon-rss:4kB, file-rss:0kB"


def kills(*lines: str) -> list[OOMKill]:
    report, found = None, []
    for line in lines:
        report, kill = read_line(report, line)
        found += [kill] if kill is not None else []
    return found


def test_a_kill_of_the_whole_machine() -> None:
    assert kills(START, *NOISE, GLOBAL, KILLED.format(name="tail")) == [
        OOMKill("/", "tail", 123, "/kubepods/besteffort/pod1/abc")
    ]
    before_5_0 = kills(START, *NOISE, KILLED.format(name="tail"))
    assert before_5_0 == [OOMKill("/", "tail", 123)]


def test_a_kill_in_a_cgroup() -> None:
    line = IN_CGROUP.format(cgroup="/kubepods/pod1/abc", name="tail")
    found = kills(START, *NOISE, line, "Memory cgroup out of memory: Killed process 123 (tail) total-vm:1kB")
    assert found == [OOMKill("/kubepods/pod1/abc", "tail", 123, "/kubepods/besteffort/pod1/abc")]
    old = "Task in /kubepods/pod1/abc killed as a result of limit of /kubepods/pod1"
    found = kills(START, *NOISE, old, "Killed process 7 (tail) total-vm:1kB")
    assert found == [OOMKill("/kubepods/pod1", "tail", 7)]


@pytest.mark.parametrize(
    "name", ["a,pid=1,uid=0", "x) total-vm:1", "(((", "a (b", "", "\\x0aKilled", "é☃", ","]
)
def test_a_process_may_have_any_name(name: str) -> None:
    [kill] = kills(START, IN_CGROUP.format(cgroup="/kubepods/pod1", name=name))
    assert (kill.cgroup, kill.name, kill.pid) == ("/kubepods/pod1", name, 123)
    [kill] = kills(START, GLOBAL.replace("task=tail", f"task={name}"))
    assert (kill.cgroup, kill.name, kill.pid) == ("/", name, 123)
    [kill] = kills(START, KILLED.format(name=name))
    assert (kill.cgroup, kill.pid) == ("/", 123)


def test_what_is_no_report_is_none() -> None:
    assert kills(KILLED.format(name="tail"), GLOBAL, *NOISE) == []
    assert kills(START, "Killed process 99999999999999999999 (x) total-vm:1kB") == []


def test_only_the_kernels_own_records_count() -> None:
    assert kernel_text(b"6,1,2,-;hello\n SUBSYSTEM=x\n") == "hello"
    assert kernel_text(b"14,1,2,-;hello\n") is None  # written by a program
    for junk in (b"", b";", b"x,1;y", b"6,1,2,-", b"9999999999999,1;x", b"-1,1;x", b"\xff;\xff"):
        assert kernel_text(junk) is None


@given(st.lists(st.binary(max_size=200) | st.sampled_from([f"3,1,2,-;{START}\n".encode()])))
def test_no_record_can_do_harm(records: list[bytes]) -> None:
    said = Said()
    watcher = OOMWatcher(said)
    for record in records:
        watcher.take(record)
    watcher.take(f"4,1,2,-;{START}\n".encode())
    watcher.take(f"3,1,2,-;{KILLED.format(name='tail')}\n".encode())
    text = "System OOM encountered, victim process: tail, pid: 123"
    assert said.events[-1] == ("Warning", "SystemOOM", text)


async def test_without_the_right_to_read_it_says_so_and_ends(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with trio.fail_after(30):
        await OOMWatcher(Said(), str(tmp_path / "none")).run()
    assert capfd.readouterr().err.count("kernel's log cannot be read") == 1


async def test_records_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal hands on what is written to it in pieces, as the kernel's log does its records."""
    primary, secondary = os.openpty()
    tty.setraw(secondary)
    monkeypatch.setattr(os, "lseek", lambda *_: 0)
    said = Said()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(OOMWatcher(said, os.ttyname(secondary)).run)
        for line in (START, GLOBAL, KILLED.format(name="tail")):
            await trio.sleep(0.05)
            os.write(primary, f"4,1,2,-;{line}\n".encode())
        await wait_until(lambda: said.events, 5, "the event")
        nursery.cancel_scope.cancel()
    os.close(primary)
    os.close(secondary)
    assert [reason for _, reason, _ in said.events] == ["SystemOOM"]


async def test_a_ring_that_overran_costs_what_it_held_and_no_more(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Half a report is none: its other half may be of another kill."""
    lines = [START, None, KILLED.format(name="half"), START, KILLED.format(name="whole")]
    records = [f"4,1,2,-;{each}\n".encode() if each is not None else None for each in lines]
    read, write = os.pipe2(os.O_NONBLOCK)
    real, said = os.read, Said()

    def read_record(file: int, size: int) -> bytes:
        if file == read or not news.is_set() or not records:
            return real(file, size)
        record = records.pop(0)
        if record is None:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        return record

    news = trio.Event()
    async with trio.open_nursery() as nursery:
        await nursery.start(OOMWatcher(said, f"/proc/self/fd/{read}").run)
        monkeypatch.setattr(os, "read", read_record)
        news.set()
        os.write(write, b"something to read")
        await wait_until(lambda: said.events, 5, "the event")
        nursery.cancel_scope.cancel()
    for number in (read, write):
        os.close(number)
    assert [text for _, _, text in said.events] == ["System OOM encountered, victim process: whole, pid: 123"]
    assert "Some of the kernel's log was missed" in capfd.readouterr().err


ID = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("cgroup", "container"),
    [
        (f"/kubepods/besteffort/pod1/{ID}", ID),
        (f"/kubepods.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope", ID),
        (f"/kubepods.slice/kubepods-pod1.slice/crio-{ID}.scope/container", ID),
        (f"/kubepods/pod1/{ID}/init.scope", ID),
        ("/kubepods/pod1", ""),
        (f"/kubepods/pod1/x{ID}", ""),
        ("/", ""),
    ],
)
def test_whose_container_it_was(cgroup: str, container: str) -> None:
    assert OOMKill("/", "tail", 1, cgroup).container == container


def report(container: str) -> list[bytes]:
    line = IN_CGROUP.replace("pod1/abc", f"pod1/{container}").format(cgroup="/kubepods", name="tail")
    return [f"4,1,2,-;{each}\n".encode() for each in (START, line)]


async def test_what_was_there_before_says_who_ended_but_is_no_news() -> None:
    """A pipe in packets hands on one record after the other, as the kernel's log does."""
    read, write = os.pipe2(os.O_DIRECT | os.O_NONBLOCK)
    said = Said()
    system = [f"4,1,2,-;{each}\n".encode() for each in (START, GLOBAL)]
    for record in (*report("a" * 64), *system):
        os.write(write, record)
    watcher = OOMWatcher(said, f"/proc/self/fd/{read}")
    async with trio.open_nursery() as nursery:
        await nursery.start(watcher.run)
        assert watcher.ended("a" * 64)
        assert not watcher.ended("b" * 64)
        assert said.events == []
        for record in (*report("b" * 64), *system):
            os.write(write, record)
        await wait_until(lambda: said.events, 5, "the event")
        assert watcher.ended("b" * 64)
        nursery.cancel_scope.cancel()
    os.close(read)
    os.close(write)
    assert len(said.events) == 1


async def test_who_asks_hears_what_the_log_says_by_now() -> None:
    """The watcher rests between two looks; a container that has ended just now is not told of too late."""
    read, write = os.pipe2(os.O_DIRECT | os.O_NONBLOCK)
    watcher = OOMWatcher(Said(), f"/proc/self/fd/{read}")
    async with trio.open_nursery() as nursery:
        await nursery.start(watcher.run)
        for container in ("a" * 64, "b" * 64):
            for record in report(container):
                os.write(write, record)
            assert watcher.ended(container)
        nursery.cancel_scope.cancel()
    assert not watcher.ended("c" * 64)  # nothing is read any more
    os.close(read)
    os.close(write)


async def test_what_others_make_the_kernel_say_does_not_keep_the_loop_busy(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    read, write = os.pipe2(os.O_DIRECT | os.O_NONBLOCK)
    real, looks = os.read, []

    def read_record(file: int, size: int) -> bytes:
        try:
            return real(file, size)
        except BlockingIOError:
            looks.append(file)
            raise

    said = Said()
    async with trio.open_nursery() as nursery:
        await nursery.start(OOMWatcher(said, f"/proc/self/fd/{read}").run)
        monkeypatch.setattr(os, "read", read_record)
        for number in range(50):
            os.write(write, b"6,%d,3,-;veth1: entered promiscuous mode\n" % number)
            await trio.sleep(REST / 10)
        for line in (START, GLOBAL):
            os.write(write, f"4,1,2,-;{line}\n".encode())
        await trio.sleep(2 * REST)
        nursery.cancel_scope.cancel()
    assert len(looks) <= 50 / 10 + 3
    assert len(said.events) == 1
    os.close(read)
    os.close(write)


def test_it_remembers_so_many() -> None:
    watcher = OOMWatcher(Said())
    ids = [f"{number:064x}" for number in range(10_050)]
    for each in ids:
        for record in report(each):
            watcher.take(record)
    assert [each for each in ids if watcher.ended(each)] == ids[-10_000:]


@pytest.mark.node
async def test_the_kernel_names_the_container() -> None:
    """A process really ended by the kernel, in a cgroup named as a container's."""
    hierarchies = find_hierarchies()
    v2 = "memory" not in hierarchies
    parent = Path(hierarchies.get("memory") or hierarchies.get("") or "/none")
    cgroup = parent / f"tk-oom-{ID}"
    try:
        cgroup.mkdir()
        (cgroup / ("memory.max" if v2 else "memory.limit_in_bytes")).write_text(str(8 << 20))
    except OSError as error:
        pytest.skip(f"no cgroup with a memory limit can be made here: {error}")
    watcher = OOMWatcher(Said())
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(watcher.run)
            script = f"echo $$ > {cgroup}/cgroup.procs; exec tail /dev/zero"
            done = await trio.run_process(["sh", "-c", script], check=False)
            assert done.returncode == -9
            await wait_until(lambda: watcher.ended(ID), 5, "the container is named")
            nursery.cancel_scope.cancel()
    finally:
        cgroup.rmdir()
