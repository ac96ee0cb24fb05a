"""Arenas for the interpreter's objects, against a model, and that it uses them; one heap for all threads."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet import native
from trio_kubelet.common.memory import resident
from trio_kubelet.native.library import core

pytestmark = pytest.mark.skipif(not native.HAVE_C, reason="the C extension is not built")

SIZE = 1 << 20
ROOM = 7


class Arenas:
    """The C arenas, each known by its number; None is one that the system gave."""

    def __init__(self) -> None:
        assert core is not None
        self.lib, self.ffi = core.lib, core.ffi
        self.arenas = self.lib.tk_arenas_new(ROOM)
        self.first = self.lib.tk_arena_alloc(self.arenas, SIZE)
        self.lib.tk_arena_free(self.arenas, self.first, SIZE)

    def take(self, size: int) -> tuple[object, int | None]:
        taken = self.lib.tk_arena_alloc(self.arenas, size)
        assert taken != self.ffi.NULL
        distance = int(self.ffi.cast("intptr_t", taken)) - int(self.ffi.cast("intptr_t", self.first))
        if not 0 <= distance < ROOM * SIZE:
            return taken, None
        assert distance % SIZE == 0
        return taken, distance // SIZE


@pytest.fixture
def arenas() -> Iterator[Arenas]:
    made = Arenas()
    yield made
    made.lib.tk_arenas_free(made.arenas)


@given(st.data())
def test_the_first_free_one_is_taken_and_nobody_s_bytes_change(data: st.DataObject) -> None:
    arenas = Arenas()
    held: list[tuple[object, int | None, int, int]] = []  # with its size, and what was written into it
    for step in range(data.draw(st.integers(1, 40))):
        if data.draw(st.booleans()) and held:
            block, _, size, mark = held.pop(data.draw(st.integers(0, len(held) - 1)))
            whole = arenas.ffi.buffer(arenas.ffi.cast("char *", block), size)
            assert whole[0] == whole[size - 1] == bytes([mark])
            arenas.lib.tk_arena_free(arenas.arenas, block, size)
            continue
        size = data.draw(st.sampled_from([SIZE, SIZE, SIZE, SIZE // 4, 2 * SIZE]))
        block, number = arenas.take(size)
        taken = {each for _, each, _, _ in held}
        free = [each for each in range(ROOM) if each not in taken]
        assert number == (free[0] if free and size == SIZE else None)
        whole = arenas.ffi.buffer(arenas.ffi.cast("char *", block), size)
        whole[0] = whole[size - 1] = bytes([step])
        held.append((block, number, size, step))
    for block, _, size, _ in held:
        arenas.lib.tk_arena_free(arenas.arenas, block, size)
    arenas.lib.tk_arenas_free(arenas.arenas)


def test_memory_goes_back_once_both_halves_of_a_huge_page_are_free(arenas: Arenas) -> None:
    blocks = [arenas.take(SIZE)[0] for _ in range(ROOM)]
    for block in blocks:
        arenas.ffi.memmove(block, b"x" * SIZE, SIZE)
    full = resident()
    for block in (blocks[0], blocks[2], blocks[4]):
        arenas.lib.tk_arena_free(arenas.arenas, block, SIZE)
    assert abs(resident() - full) < SIZE
    arenas.lib.tk_arena_free(arenas.arenas, blocks[1], SIZE)  # completes the first pair
    arenas.lib.tk_arena_free(arenas.arenas, blocks[6], SIZE)  # the last has no other half
    assert resident() < full - 2.5 * SIZE


USED = """
import gc
from trio_kubelet.native.arenas import ROOM, keep_objects_together
before = [str(number) * 3 for number in range(100_000)]  # in arenas of the system's
print(keep_objects_together())
after = [(number, str(number)) for number in range(100_000)]
lines = open("/proc/self/maps").read().splitlines()
spans = [[int(end, 16) for end in line.split()[0].split("-")] for line in lines]
begin, end = next(span for span in spans if span[0] <= id(after[-1]) < span[1])
rest = max(end - begin for begin, end in spans)
print(end - begin > 8 << 20, rest > (ROOM // 2) << 20)
del before
gc.collect()  # its arenas go back to the system
print(after[0], after[-1])
"""


def test_the_interpreter_s_objects_lie_in_them() -> None:
    done = subprocess.run([sys.executable, "-c", USED], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["True", "True True", "(0, '0') (99999, '99999')"]
    assert done.stderr == ""


ONE_HEAP = """
import ctypes, re, threading
from trio_kubelet.native.arenas import share_one_heap
library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
share_one_heap()
found = []
thread = threading.Thread(target=lambda: found.append(library.malloc(ctypes.c_size_t(100))))
thread.start()
thread.join()
spans = re.findall(r"^(\\w+)-(\\w+) .*\\[heap\\]$", open("/proc/self/maps").read(), re.M)
print(any(int(begin, 16) <= found[0] < int(end, 16) for begin, end in spans))
"""


def test_threads_have_no_heaps_of_their_own() -> None:
    said = subprocess.run(
        [sys.executable, "-c", ONE_HEAP], check=True, stdout=subprocess.PIPE, timeout=60
    ).stdout
    assert said == b"True\n"


PIECES = """
import resource
from trio_kubelet.native.arenas import share_one_heap
share_one_heap()
lines = ["x" * 300 for _ in range(1500)]
def pieces(number):
    for _ in range(number):
        "".join([line + "y" for line in lines]).encode()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
before = pieces(10)
print(pieces(100) - before)
"""


def test_pieces_of_a_page_are_written_where_those_before_them_were() -> None:
    """Where the heap gives back what is free, each piece of half a megabyte costs some 100 faults."""
    said = subprocess.run(
        [sys.executable, "-c", PIECES], check=True, stdout=subprocess.PIPE, timeout=60
    ).stdout
    assert int(said) < 1000
