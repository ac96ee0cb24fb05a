"""Which manifests are in force: what editors, scripts and operators do to a directory, second by second."""

from __future__ import annotations

import math
import random

import pytest

from tests.sources.pods import pod
from trio_kubelet.sources.manifest_files import (
    CONTENT_SETTLES,
    FIRST_SET_WITHIN,
    REMOVAL_SETTLES,
    Content,
    DirectorySnapshot,
    DirectoryState,
    FileReport,
    SettlingStep,
    Signature,
    Writes,
    advance,
    to_read,
)

BAD = "!bad"
UNREADABLE = "!unreadable"


class Directory:
    """A directory of texts and the source that looks at it. A text `web:2` is version 2 of the pod `web`, and
    one of `web:2#u` names its UID, `u`.

    `BAD…` is no manifest, `UNREADABLE` gives an error when it is read.
    """

    def __init__(self, **files: str) -> None:
        self.files: dict[str, tuple[str, int]] = {}
        self.now = 100.0
        self.state = DirectoryState()
        self.reports: list[FileReport] = []
        self.sets: list[list[str]] = []
        self.error = ""
        self.skipped: dict[str, str] = {}
        self.unfinished: set[str] = set()
        self._moved: set[str] = set()
        self._deleted: set[str] = set()
        self._inode = 0
        self.reads = 0
        for name, text in files.items():
            self.write(name, text)

    def write(self, name: str, text: str) -> None:
        self._inode += 1
        self.files[name] = text, self._inode

    def remove(self, name: str) -> None:
        """An event tells of it."""
        del self.files[name]
        self._deleted.add(name)

    def take_away(self, name: str) -> None:
        """Moved away, or removed with nobody to tell of it."""
        del self.files[name]

    def move(self, old: str, new: str) -> None:
        self.files[new] = self.files.pop(old)
        self._moved.add(new)

    def look(self, after: float = 0.0) -> SettlingStep:
        """Let time pass and look once."""
        self.now += after
        files = {name: Signature(1, inode, len(text), 0, 0) for name, (text, inode) in self.files.items()}
        snapshot = DirectorySnapshot(
            files={**files, **dict.fromkeys(self.skipped)}, skipped=self.skipped, error=self.error
        )
        contents = {name: self._content(name) for name in to_read(self.state, snapshot)}
        writes = Writes(
            moved_in=frozenset(self._moved),
            unfinished=frozenset(self.unfinished),
            deleted=frozenset(self._deleted),
        )
        step = advance(self.state, snapshot, contents, writes, self.now)
        self._moved.clear()
        self._deleted.clear()
        self.state = step.state
        self.reports += step.reports
        self.sets += [[each.metadata.uid for each in pods] for pods in step.sets]
        return step

    def settle(self) -> None:
        """Look whenever the source wants to by itself, until it waits for events only."""
        while (step := self.look()).wake_at < math.inf:
            self.now = step.wake_at

    def in_force(self) -> list[str]:
        return [each.metadata.uid for each in self.state.pods]

    def errors(self) -> list[tuple[str, str]]:
        return [(report.path, report.error) for report in self.reports if report.error]

    def shadows(self) -> list[tuple[str, str]]:
        return [(report.path, report.shadowed_by) for report in self.reports if report.shadowed_by]

    def _content(self, name: str) -> Content:
        self.reads += 1
        text = self.files[name][0]
        if text == UNREADABLE:
            return Content(digest=b"EIO", error="cannot be read", again=True)
        if text.startswith(BAD):
            return Content(digest=text.encode(), error=text)
        # Like the real UID of a manifest that names none, this one depends on the content and on the file.
        uid = text.partition("#")[2] or f"{text}@{name}"
        return Content(digest=text.encode(), pod=pod(uid, text.partition(":")[0]))


def running(**files: str) -> Directory:
    """A directory that was settled long ago."""
    directory = Directory(**files)
    directory.settle()
    directory.now += 1000
    directory.sets.clear()
    return directory


def test_the_first_look_delivers_at_once() -> None:
    directory = Directory(b="db:1", a="web:1")
    directory.look()
    assert directory.sets == [["web:1@a", "db:1@b"]]


def test_an_empty_directory_is_an_empty_set_told_once() -> None:
    directory = Directory()
    directory.look()
    directory.look(20)
    assert directory.sets == [[]]


def test_a_new_manifest_counts_at_once() -> None:
    directory = running(a="web:1")
    directory.write("b", "db:1")
    directory.look(0.01)
    assert directory.sets == [["web:1@a", "db:1@b"]]


def test_a_deleted_one_is_gone_at_once() -> None:
    directory = running(a="web:1", b="db:1")
    directory.remove("a")
    directory.look()
    assert directory.sets == [["db:1@b"]]


def test_deleted_and_put_back_between_two_looks_is_gone_and_comes_back() -> None:
    directory = running(a="web:1", b="db:1")
    directory.remove("a")
    directory.write("a", "web:1")
    directory.look()
    assert directory.sets == [["db:1@b"], ["web:1@a", "db:1@b"]]
    directory.settle()
    assert len(directory.sets) == 2


def test_deleted_and_put_back_half_written_is_gone_until_it_is_whole() -> None:
    directory = running(a="web:1")
    directory.remove("a")
    directory.write("a", f"{BAD} half")
    directory.unfinished.add("a")
    directory.look()
    directory.write("a", "web:2")
    directory.look(0.01)
    directory.unfinished.clear()
    directory.look(0.01)
    assert directory.sets == [[], ["web:2@a"]]


def test_a_deletion_that_is_told_late_does_not_hit_the_successor() -> None:
    """The event of what happened during a look may come with the next one."""
    directory = running(a="web:1")
    directory.remove("a")
    directory.write("a", "web:2")
    directory.look()
    directory._deleted.add("a")
    directory.look(0.01)
    assert directory.sets == [[], ["web:2@a"]]


def test_deleted_after_it_was_moved_away_and_written_anew() -> None:
    directory = running(a="web:1")
    directory.take_away("a")
    directory.look()
    directory.write("a", "web:2")
    directory.remove("a")
    directory.look(0.01)
    assert directory.sets == [[]]


def test_one_moved_away_goes_after_a_moment() -> None:
    directory = running(a="web:1", b="db:1")
    directory.take_away("a")
    step = directory.look()
    assert directory.sets == []
    assert step.wake_at - directory.now == pytest.approx(REMOVAL_SETTLES)
    directory.look(REMOVAL_SETTLES)
    assert directory.sets == [["db:1@b"]]


def test_moved_away_and_written_again_is_no_removal() -> None:
    directory = running(a="web:1")
    directory.take_away("a")
    directory.look()
    directory.write("a", "web:1")
    directory.look(REMOVAL_SETTLES / 2)
    directory.settle()
    assert directory.sets == []


def test_a_replacement_in_place_waits_until_it_settles() -> None:
    directory = running(a="web:1")
    directory.write("a", "web:2")
    directory.look()
    directory.look(CONTENT_SETTLES - 0.1)
    assert directory.sets == []
    directory.look(0.2)
    assert directory.sets == [["web:2@a"]]


def test_a_replacement_moved_into_place_counts_at_once() -> None:
    directory = running(a="web:1")
    directory.write(".a.tmp", "web:2")
    directory.move(".a.tmp", "a")
    directory.look()
    assert directory.sets == [["web:2@a"]]


def test_touching_a_file_changes_nothing() -> None:
    directory = running(a="web:1")
    directory.write("a", "web:1")
    directory.settle()
    assert directory.sets == []


def test_three_chunks_over_two_seconds_end_nothing() -> None:
    directory = running(a="web:1")
    for text in (BAD, "web:half", "web:2"):
        directory.write("a", text)
        directory.look(0.7)
    assert directory.sets == []
    directory.settle()
    assert directory.sets == [["web:2@a"]]
    assert directory.errors() == []


def test_chunks_with_long_pauses_end_nothing_while_the_file_is_open() -> None:
    directory = running(a="web:1", b="db:1")
    directory.unfinished = {"a", "c"}
    for text in ("web:half", BAD, "web:most", "web:2"):
        directory.write("a", text)
        directory.write("c", text.replace("web", "new"))
        for _ in range(4):
            directory.look(1)
    assert (directory.sets, directory.errors()) == ([], [])
    directory.unfinished = set()
    directory.settle()
    assert directory.sets[-1] == ["web:2@a", "db:1@b", "new:2@c"]
    assert directory.errors() == []


def test_a_new_file_that_is_still_written_waits() -> None:
    directory = running(a="web:1")
    directory.unfinished = {"b"}
    directory.write("b", "db:half")
    directory.look()
    directory.write("b", "db:1")
    directory.look(1)
    assert directory.sets == []
    directory.unfinished = set()
    directory.look(0.1)
    assert directory.sets == [["web:1@a", "db:1@b"]]


def test_a_new_file_left_open_for_ever_counts_when_it_settles() -> None:
    directory = running()
    directory.unfinished = {"b"}
    directory.write("b", "db:1")
    directory.settle()
    assert directory.sets == [["db:1@b"]]


def vim_saves(directory: Directory, name: str, text: str) -> None:
    """Probe file, backup by rename, new file, backup removed; a look after each step."""
    directory.write("4913", BAD)
    directory.look(0.01)
    directory.remove("4913")
    directory.move(name, f"{name}~")
    directory.look(0.01)
    directory.write(name, "")
    directory.files[name] = (BAD, directory.files[name][1])
    directory.look(0.01)
    directory.write(name, text)
    directory.look(0.01)
    directory.remove(f"{name}~")
    directory.look(0.01)


def test_vim_saves_without_a_change() -> None:
    directory = running(a="web:1")
    vim_saves(directory, "a", "web:1")
    directory.settle()
    assert (directory.sets, directory.reports) == ([], [])


def test_vim_saves_a_change_once() -> None:
    directory = running(a="web:1")
    vim_saves(directory, "a", "web:2")
    directory.settle()
    assert (directory.sets, directory.reports) == ([["web:2@a"]], [])


def test_a_bad_manifest_leaves_the_last_good_version() -> None:
    directory = running(a="web:1", b="db:1")
    directory.write("a", BAD)
    directory.settle()
    for _ in range(5):
        directory.look(20)
    assert directory.in_force() == ["web:1@a", "db:1@b"]
    assert directory.errors() == [("a", BAD)]
    directory.write("a", f"{BAD} otherwise")
    directory.settle()
    assert directory.errors() == [("a", BAD), ("a", f"{BAD} otherwise")]
    directory.remove("a")
    directory.settle()
    assert directory.sets == [["db:1@b"]]


def test_a_bad_manifest_does_not_hold_up_the_others() -> None:
    directory = running(a="web:1")
    directory.write("bad", BAD)
    directory.write("b", "db:1")
    directory.look()
    assert directory.sets == [["web:1@a", "db:1@b"]]


def test_a_transient_bad_state_is_not_told() -> None:
    directory = running(a="web:1")
    directory.write("a", BAD)
    directory.look()
    directory.write("a", "web:2")
    directory.settle()
    assert (directory.errors(), directory.sets) == ([], [["web:2@a"]])


def test_a_file_that_cannot_be_read_is_tried_again() -> None:
    directory = running(a="web:1")
    directory.files["a"] = (UNREADABLE, 99)
    directory.settle()
    directory.look(20)
    directory.look(20)
    assert directory.errors() == [("a", "cannot be read")]
    assert directory.in_force() == ["web:1@a"]
    assert len("web:2000000") == len(UNREADABLE)
    directory.files["a"] = ("web:2000000", 99)  # the same inode and size: only reading again can tell
    directory.settle()
    assert directory.sets == [["web:2000000@a"]]


def test_what_cannot_even_be_looked_at_keeps_its_pod() -> None:
    directory = running(a="web:1")
    directory.remove("a")
    directory.skipped = {"a": "cannot be read: Too many levels of symbolic links"}
    directory.settle()
    directory.look(20)
    assert directory.sets == []
    assert directory.errors() == [("a", "cannot be read: Too many levels of symbolic links")]


def test_unchanged_files_are_not_read_again() -> None:
    directory = running(**{f"f{number}": f"p{number}:1" for number in range(50)})
    directory.reads = 0
    for _ in range(10):
        directory.look(20)
    assert directory.reads == 0


def test_a_directory_that_cannot_be_read_keeps_all_pods() -> None:
    directory = running(a="web:1")
    directory.error = "Input/output error"
    for _ in range(3):
        directory.look(20)
    assert (directory.sets, directory.errors()) == ([], [("", "Input/output error")])
    directory.error = ""
    assert directory.look().recovered
    assert not directory.look().recovered
    assert directory.sets == []


def test_a_directory_never_read_delivers_nothing() -> None:
    directory = Directory()
    directory.error = "Permission denied"
    directory.look()
    assert directory.sets == []


def test_a_directory_that_is_gone_empties_the_source() -> None:
    directory = running(a="web:1", b="db:1")
    files = directory.files
    directory.files = {}
    directory.settle()
    directory.files = files
    directory.settle()
    assert directory.sets == [[], ["web:1@a", "db:1@b"]]


def test_a_directory_exchanged_within_a_moment_is_no_change() -> None:
    directory = running(a="web:1", b="db:1")
    files = dict(directory.files)
    directory.files = {}
    directory.look()
    for name, (text, _) in files.items():
        directory.write(name, text)
    directory.look(REMOVAL_SETTLES / 2)
    directory.settle()
    assert directory.sets == []


@pytest.mark.parametrize("copy", ["a.bak", "a~", "z"])
def test_a_copy_after_the_original_changes_nothing_and_is_told_once(copy: str) -> None:
    directory = running(a="web:1")
    directory.write(copy, "web:1")
    directory.settle()
    for _ in range(3):
        directory.look(20)
    assert directory.sets == []
    assert directory.shadows() == [(copy, "a")]


def test_a_copy_before_the_original_takes_over_when_it_settles() -> None:
    directory = running(b="web:1")
    directory.write("a", "web:1")
    directory.look()
    directory.look(CONTENT_SETTLES - 0.1)
    assert directory.sets == []
    directory.settle()
    directory.look(20)
    assert directory.sets == [["web:1@a"]]
    assert directory.shadows() == [("b", "a")]


def test_a_copy_that_is_gone_in_a_moment_takes_nothing_over() -> None:
    directory = running(b="web:1")
    directory.write("#b#", "web:1")
    directory.look()
    directory.remove("#b#")
    directory.look(0.3)
    directory.settle()
    assert (directory.sets, directory.reports) == ([], [])


def test_a_copy_with_another_name_and_the_same_uid_is_told_and_takes_nothing_over() -> None:
    directory = running(web="web:1#u", db="db:1")
    directory.write("web.new", "new:1#u")
    directory.settle()
    directory.write("db", "db:2")
    directory.settle()
    assert directory.in_force() == ["db:2@db", "u"]
    assert [each.metadata.name for each in directory.state.pods] == ["db", "web"]
    assert directory.shadows() == [("web.new", "web")]
    directory.remove("web")
    directory.settle()
    assert [each.metadata.name for each in directory.state.pods] == ["db", "new"]


def test_of_two_copies_at_the_start_the_first_name_wins() -> None:
    directory = Directory(b="web:1", a="web:2")
    directory.settle()
    assert directory.sets == [["web:2@a"]]


def test_a_file_that_never_settles_holds_up_the_first_set_for_a_while_only() -> None:
    directory = Directory(a="web:1")
    seconds = 0.0
    while not directory.sets:
        directory.write("log", f"{BAD} {seconds}")
        directory.look(0.5)
        seconds += 0.5
        assert seconds < 20
    assert directory.sets == [["web:1@a"]]
    assert seconds == pytest.approx(FIRST_SET_WITHIN, abs=1)


def random_life(seed: int) -> None:
    """Whatever happened: once it is quiet, what is in force is what the directory says."""
    rng = random.Random(seed)
    directory = Directory()
    for _ in range(rng.randint(1, 25)):
        name = rng.choice("abc")
        text = f"p{name}:{rng.randint(1, 3)}"
        match rng.randint(0, 5):
            case 0 if name in directory.files:
                (directory.remove if rng.random() < 0.5 else directory.take_away)(name)
            case 1:
                directory.write(".tmp", text)
                directory.move(".tmp", name)
            case 2:
                directory.write(name, BAD)
            case _:
                directory.write(name, text)
        directory.error = "EIO" if rng.random() < 0.1 else ""
        directory.look(rng.choice([0.01, 0.3, 2]))
    directory.error = ""
    directory.settle()
    force = {uid.partition("@")[2]: uid.partition("@")[0] for uid in directory.in_force()}
    texts = {name: text for name, (text, _) in directory.files.items()}
    assert {name: text for name, text in texts.items() if text != BAD}.items() <= force.items(), seed
    assert set(force) <= set(texts), seed
    assert directory.sets[-1] == directory.in_force(), seed


def test_random_lives() -> None:
    for seed in range(500):
        random_life(seed)
