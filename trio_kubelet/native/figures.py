"""Numbers out of the kernel's small text files, those of many directories in one call of C.

Python opens, reads and closes a file in three calls, each of which lets go of the interpreter and has to get
it back, and takes half of the time they cost; a node has tens of thousands of such files.
"""

from __future__ import annotations

from collections.abc import Sequence

from trio_kubelet.native.library import core
from trio_kubelet.native.pure_figures import TEXT, DirectoryFigures, Figure, PureFigureReader

_ROOM = 1 << 20
"""Bytes for texts; only those used cost anything."""

FigureReader: type[PureFigureReader]
"""What reads figures here: the C one where the extension is built."""

if core is not None:
    _ffi, _lib = core.ffi, core.lib
    _new_room = _ffi.new_allocator(should_clear_after_alloc=False)

    class CFigureReader(PureFigureReader):
        """See `PureFigureReader`."""

        def __init__(self, figures: Sequence[Figure]) -> None:
            super().__init__(figures)
            self._kept: list[object] = []  # C does not count who uses a text
            self._plan = _ffi.new("tk_figure[]", len(figures))
            before: tuple[str, str] | None = None
            for each, entry in zip(figures, self._plan, strict=True):
                entry.base = self._text(each.base)
                entry.name = self._text(each.name)
                entry.line = self._text("\n" + each.line if each.line else "")
                entry.field = self._text(each.field)
                entry.kind = each.kind
                entry.same = (each.base, each.name) == before
                before = each.base, each.name
            self._texts = [index for index, each in enumerate(figures) if each.kind == TEXT]
            if not self._read_some(["/"]):
                raise ValueError("more figures, or texts among them, than there is room for")

        def _text(self, text: str) -> object:
            if "\0" in text:
                raise ValueError(f"a zero byte in {text!r}")
            self._kept.append(_ffi.new("char[]", text.encode("utf-8", "surrogateescape")))
            return self._kept[-1]

        def read(self, directories: Sequence[str]) -> list[DirectoryFigures]:
            found: list[DirectoryFigures] = []
            while len(found) < len(directories):
                found += self._read_some(directories[len(found) :])
            return found

        def _read_some(self, directories: Sequence[str]) -> list[DirectoryFigures]:
            """The figures of the first directories, as many as there is room for; of one at least."""
            # A zero byte would end a directory's name: no file has one in its path.
            names = "\0".join([each.replace("\0", "/\n/") for each in directories])
            count, size = len(directories), len(self.figures)
            values, there = _ffi.new("uint64_t[]", count * size), _ffi.new("uint64_t[]", count)
            room = _new_room("uint8_t[]", _ROOM)
            done = _lib.tk_read_figures(
                self._plan,
                size,
                _ffi.from_buffer(names.encode("utf-8", "surrogateescape") + b"\0"),
                count,
                values,
                there,
                room,
                _ROOM,
            )
            numbers, bits = _ffi.unpack(values, done * size), _ffi.unpack(there, done)
            found, used = [], 0
            for each in range(done):
                of_directory = numbers[each * size : (each + 1) * size]
                texts = []
                for index in self._texts:
                    if bits[each] >> index & 1:
                        texts.append(_ffi.unpack(_ffi.cast("char *", room + used), of_directory[index]))
                        used += of_directory[index]
                found.append(DirectoryFigures(of_directory, bits[each], texts))
            return found

    FigureReader = CFigureReader
else:
    FigureReader = PureFigureReader
