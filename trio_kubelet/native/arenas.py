"""What the agent has in memory lies side by side, so that it can be in huge pages (`common/memory.py`): the
interpreter's small objects (`csrc/arena.h`), and the heap of the C library, which has all else.
"""

from __future__ import annotations

import ctypes
from typing import Final

from trio_kubelet.native.library import core

ROOM: Final = 1024
"""Arenas of a mebibyte each. It takes addresses, not memory; what needs more gets it as without them."""

SPARE: Final = 8 << 20
"""Bytes that may lie free at the end of the heap. A page of many megabytes is written in pieces of half a
megabyte: to get memory for each from the system and to give it back took a quarter of the page's time. What
nobody takes again goes back all the same (`common/memory.py`).
"""
LARGE: Final = 2 << 20
"""Bytes of what lies outside of the heap, and goes back to the system as soon as it is free."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8


class _ArenaAllocator(ctypes.Structure):
    """CPython's `PyObjectArenaAllocator`."""

    _fields_ = (("ctx", ctypes.c_void_p), ("alloc", ctypes.c_void_p), ("free", ctypes.c_void_p))


def keep_objects_together() -> bool:
    """From now on, for as long as this process lives; to be called once. False without the C extension, and
    where there are not as many addresses.
    """
    if core is None:
        return False
    ffi, lib = core.ffi, core.lib
    arenas = lib.tk_arenas_new(ROOM)
    if arenas == ffi.NULL:
        return False
    parts = (arenas, ffi.addressof(lib, "tk_arena_alloc"), ffi.addressof(lib, "tk_arena_free"))
    allocator = _ArenaAllocator(*(int(ffi.cast("uintptr_t", part)) for part in parts))
    ctypes.pythonapi.PyObject_SetArenaAllocator(ctypes.byref(allocator))
    return True


def share_one_heap() -> None:
    """Threads that are started from now on take what they need from the heap of all, where the C library is
    glibc: one of their own each lies scattered, mostly empty. They hardly ever want memory at once, for they
    share the interpreter. What is free at the heap's end stays there for what comes next.
    """
    found = getattr(ctypes.CDLL(None), "mallopt", None)
    if found is not None:
        for what, value in ((_M_ARENA_MAX, 1), (_M_TRIM_THRESHOLD, SPARE), (_M_MMAP_THRESHOLD, LARGE)):
            found(ctypes.c_int(what), ctypes.c_int(value))
