"""The code of all modules that a start imports, in one file, which is made when the agent is installed.

A start imports more than eight hundred modules. To look for each of them, and to read its file, takes a sixth
of the whole start; from one file that is mapped into memory it takes next to nothing. The file counts for the
very interpreter and module path it was made with, and what it says of a module as long as the module's source
is as it was then (time and size, as for Python's own files of bytecode). Everything else is imported as ever.
"""

from __future__ import annotations

import importlib.util
import marshal
import mmap
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType
from typing import Final

_MARK: Final = b"trio-kubelet start bundle 1\n"
_LENGTH: Final = 8  # bytes of the number that says how long the index is

_Entry = tuple[str, bool, int, int, int, int]
"""Of a module: the path of its source, whether it is a package, time (ns) and size of the source, and where
its code begins and ends.
"""


def bundle_path(directory: str) -> str:
    """Where a package's bundle is for this interpreter."""
    return os.path.join(directory, "__pycache__", f"start.{sys.implementation.cache_tag}.bundle")


def write_bundle(path: str, modules: Mapping[str, ModuleType]) -> int:
    """Writes the code of those of the modules that have a source; returns how many. Raises OSError."""
    index: dict[str, _Entry] = {}
    codes: list[bytes] = []
    end = 0
    for name, module in modules.items():
        spec: ModuleSpec | None = getattr(module, "__spec__", None)
        if spec is None or spec.name != name or not isinstance(spec.loader, SourceFileLoader):
            continue
        code = spec.loader.get_code(name)
        source = os.stat(spec.loader.path)
        codes.append(marshal.dumps(code))
        start, end = end, end + len(codes[-1])
        is_package = spec.submodule_search_locations is not None
        index[name] = (spec.loader.path, is_package, source.st_mtime_ns, source.st_size, start, end)
    head = marshal.dumps((_made_with(), index))
    temporary = f"{path}.{os.getpid()}"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(temporary, "wb") as file:
        file.write(_MARK + len(head).to_bytes(_LENGTH, "big") + head)
        file.writelines(codes)
    os.replace(temporary, path)
    return len(index)


def use_bundle(path: str) -> bool:
    """Has modules imported from a bundle from now on, until `leave_bundle`; False if it is not for us."""
    try:
        with open(path, "rb") as file:
            content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        begin = len(_MARK) + _LENGTH
        end = begin + int.from_bytes(content[len(_MARK) : begin], "big")
        if bytes(content[: len(_MARK)]) != _MARK:
            return False
        made_with, index = marshal.loads(content[begin:end])
    except (OSError, ValueError, EOFError, TypeError):
        return False
    if made_with != _made_with() or _is_shadowed(index):
        return False
    sys.meta_path.insert(0, _Finder(index, content[end:]))
    return True


def leave_bundle() -> None:
    """Imports as ever from now on; the file is not kept in memory."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]


def _made_with() -> tuple[bytes, int, str, tuple[str, ...]]:
    """What has to be the same. Where a program itself lies, the first entry of the path, may differ."""
    return importlib.util.MAGIC_NUMBER, sys.flags.optimize, sys.prefix, tuple(sys.path[1:])


def _is_shadowed(index: Mapping[str, _Entry]) -> bool:
    """Whether the first entry of the path has modules of the same name that are others."""
    first = sys.path[0] or os.getcwd()
    try:
        found = [name for name in os.listdir(first) if name.partition(".")[0] in index]
    except OSError:
        return False
    for name in found:
        module, suffix = os.path.splitext(name)
        path = os.path.join(first, name)
        # Programs have the names of modules, too: `httpx` lies beside our own.
        if (suffix or os.path.isdir(path)) and not index[module.partition(".")[0]][0].startswith(path):
            return True
    return False


class _Finder:
    """Knows where in the bundle a module's code is (`importlib.abc.MetaPathFinder`)."""

    def __init__(self, index: Mapping[str, _Entry], codes: memoryview) -> None:
        self._index = index
        self._codes = codes

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """What import asks for; None for what is not in the bundle or has changed."""
        entry = self._index.get(name)
        if entry is None:
            return None
        source, is_package, mtime, size, start, end = entry
        try:
            now = os.stat(source)
        except OSError:
            return None
        if now.st_mtime_ns != mtime or now.st_size != size:
            return None
        loader = _Loader(name, source)
        loader.code = self._codes[start:end]
        locations = [os.path.dirname(source)] if is_package else None
        return importlib.util.spec_from_file_location(
            name, source, loader=loader, submodule_search_locations=locations
        )


class _Loader(SourceFileLoader):
    """Loads a module of the bundle, once; who asks for its code again gets it from its own file."""

    code: memoryview | None = None

    def get_code(self, fullname: str) -> CodeType | None:
        """The module's code."""
        code, self.code = self.code, None
        if code is None:
            return super().get_code(fullname)
        loaded: CodeType = marshal.loads(code)
        return loaded
