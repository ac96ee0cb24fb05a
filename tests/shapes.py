"""What code may raise that nobody thought of, for the tests of walls: they have to hold against all of it."""

from __future__ import annotations

from collections.abc import Callable

SHAPES: dict[str, Callable[[], Exception]] = {
    "a plain error": lambda: ValueError("nobody thought of it"),
    "of a text": lambda: UnicodeEncodeError("idna", "x" * 64, 0, 64, "label too long"),
    "with bytes that are no text": lambda: OSError(2, "No such file", "\udcff"),
    "of depth": lambda: RecursionError("maximum recursion depth exceeded"),
    "of size": lambda: OverflowError("int too big to convert"),
    "of memory": lambda: MemoryError(),
    "of several tasks": lambda: ExceptionGroup(
        "tasks", [KeyError("a"), ExceptionGroup("more", [IndexError()])]
    ),
    "of an assertion": lambda: AssertionError(),
    "that looks like the end": lambda: StopAsyncIteration(),
}
