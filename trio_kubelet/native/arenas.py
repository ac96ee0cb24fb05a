"""The interpreter's small objects side by side, so that they can be in huge pages (`csrc/arena.h`)."""

from __future__ import annotations

import ctypes
from typing import Final

from trio_kubelet.native.library import core

ROOM: Final = 1024
"""Arenas of a mebibyte each. It takes addresses, not memory; what needs more gets it as without them."""


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
