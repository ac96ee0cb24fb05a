"""A directory over HTTP as Go's `http.FileServer` does it: listings, redirects, ranges, 304.

All of it is blocking file work, so each function is called in a thread. Symbolic links are followed, as the
kubelet does for `/logs/`; `resolve_below` is for those who must not leave the directory.
"""

from __future__ import annotations

import errno
import os
import posixpath
import re
import stat
from collections.abc import AsyncGenerator
from email.utils import formatdate, parsedate_to_datetime
from urllib.parse import quote

from trio_kubelet.common.lanes import NODE_FILES
from trio_kubelet.server.http.serve import NOSNIFF, Request, Response, not_found, raw_path, text

PIECE = 64 * 1024
SNIFFED = 512
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".gif": "image/gif",
    ".htm": "text/html; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".jpg": "image/jpeg",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".pdf": "application/pdf",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".xml": "text/xml; charset=utf-8",
}
_BINARY = re.compile(rb"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f]")
_RANGE = re.compile(r"bytes=\s*(\d*)\s*-\s*(\d*)\s*", re.ASCII)


class OutsideRoot(OSError):
    """The path leads out of the directory."""


def resolve_below(root: str, name: str) -> str:
    """The real path of `name` below `root`. Raises OutsideRoot, FileNotFoundError and other OSError."""
    top = os.path.realpath(root)
    real = top
    if "\0" not in name and not name.startswith("/"):
        real = os.path.realpath(os.path.join(top, name))
    if "\0" in name or name.startswith("/") or posixpath.normpath(name).split("/")[0] == "..":
        raise OutsideRoot(errno.EXDEV, "path escapes from parent")
    if real != top and not real.startswith(top + "/"):
        raise OutsideRoot(errno.EXDEV, "path escapes from parent")
    os.stat(real)
    return real


async def serve_file(request: Request, root: str, path: str) -> Response:
    """The answer for `path` (decoded, relative to `root`)."""
    if not path.startswith("/"):
        path = "/" + path
    if path.endswith("/index.html"):
        return _go_to("./", request)
    clean = posixpath.normpath("/" + path.lstrip("/"))
    try:
        opened = await NODE_FILES.run(_open, root + clean)
    except OSError as exc:
        return _file_error(exc)
    except ValueError:
        return text(500, "500 Internal Server Error\n", NOSNIFF)
    try:
        info, name = os.fstat(opened), root + clean
        is_directory = stat.S_ISDIR(info.st_mode)
        if is_directory and not path.endswith("/"):
            return _go_to(posixpath.basename(path) + "/", request)
        if not is_directory and path.endswith("/"):
            return _go_to("../" + posixpath.basename(path.rstrip("/")), request)
        if is_directory and (index := await NODE_FILES.run(_index, opened)) >= 0:
            os.close(opened)
            opened, info, name = index, os.fstat(index), f"{name}/index.html"
            is_directory = stat.S_ISDIR(info.st_mode)
        modified = formatdate(int(info.st_mtime), usegmt=True)
        if _not_modified(request, int(info.st_mtime)):
            return Response(status=304, headers=(("Last-Modified", modified),))
        if is_directory:
            return await _directory(opened, modified)
        if not stat.S_ISREG(info.st_mode):
            return text(500, "seeker can't seek\n", NOSNIFF)
        return await _content(request, opened, name, info.st_size, modified)
    finally:
        os.close(opened)


def _open(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO would wait for a writer


def _index(directory: int) -> int:
    """The file that stands for the listing of a directory, opened; -1 if there is none."""
    try:
        return os.open("index.html", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return -1


def _file_error(exc: OSError) -> Response:
    if isinstance(exc, FileNotFoundError | NotADirectoryError):
        return not_found()
    if isinstance(exc, PermissionError):
        return text(403, "403 Forbidden\n", NOSNIFF)
    return text(500, "500 Internal Server Error\n", NOSNIFF)


def _go_to(place: str, request: Request) -> Response:
    if "%2f" in raw_path(request.target).lower():
        return not_found()  # where to is not to be known
    query = request.target.partition("?")[2]
    location = f"{_escape(place)}?{query}" if query else _escape(place)
    return Response(status=301, headers=(("Location", location),))


def _escape(path: str) -> str:
    return quote(path, safe="/$&+,:;=@~", errors="surrogateescape")


def _not_modified(request: Request, modified: int) -> bool:
    asked = request.header("if-modified-since")
    if asked is None:
        return False
    try:
        return modified <= parsedate_to_datetime(asked).timestamp()
    except (ValueError, TypeError, OverflowError):
        return False


async def _directory(opened: int, modified: str) -> Response:
    try:
        body = await NODE_FILES.run(_listing, opened)
    except OSError:
        return text(500, "Error reading directory\n", NOSNIFF)
    headers = (("Content-Type", "text/html; charset=utf-8"), ("Last-Modified", modified))
    return Response(headers=headers, body=body)


def _listing(opened: int) -> bytes:
    with os.scandir(opened) as entries:
        names = sorted(e.name + ("/" if e.is_dir(follow_symlinks=False) else "") for e in entries)
    lines = ['<!doctype html>\n<meta name="viewport" content="width=device-width">\n<pre>\n']
    for name in names:
        place = _escape(name)
        if ":" in place.split("/")[0]:
            place = "./" + place
        lines.append(f'<a href="{place}">{_html(name)}</a>\n')
    lines.append("</pre>\n")
    return "".join(lines).encode("utf-8", "surrogateescape")


def _html(name: str) -> str:
    for char, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&#34;"), ("'", "&#39;")):
        name = name.replace(char, entity)
    return name


async def _content(request: Request, opened: int, path: str, size: int, modified: str) -> Response:
    kind = TYPES.get(posixpath.splitext(path)[1]) or sniff(await NODE_FILES.run(os.pread, opened, SNIFFED, 0))
    first, count = 0, size
    status = 200
    headers = [("Accept-Ranges", "bytes"), ("Content-Type", kind), ("Last-Modified", modified)]
    if request.header("if-range") in (None, modified):
        wanted = wanted_range(request.header("range"), size)
        if wanted == ():
            extra = (("Content-Range", f"bytes */{size}"), *NOSNIFF)
            return text(416, "invalid range: failed to overlap\n", extra)
        if wanted:
            first, count, status = wanted[0], wanted[1], 206
            headers.append(("Content-Range", f"bytes {first}-{first + count - 1}/{size}"))
    headers.append(("Content-Length", str(count)))
    return Response(status=status, headers=headers, body=_pieces(path, first, count))


def wanted_range(header: str | None, size: int) -> tuple[int, int] | tuple[()] | None:
    """First byte and count; () when nothing overlaps, None for everything (also for several ranges)."""
    found = _RANGE.fullmatch(header or "")
    if found is None or not any(found.groups()):
        return None
    first, last = found.groups()
    if not first:
        count = min(int(last), size)
        return (size - count, count) if count else ()
    start = int(first)
    end = min(int(last), size - 1) if last else size - 1
    if last and int(last) < start:
        return None
    return (start, end - start + 1) if start < size else ()


def sniff(data: bytes) -> str:
    """What kind of content begins with `data`, of the kinds that logs have."""
    if data.startswith(b"\x1f\x8b\x08"):
        return "application/x-gzip"
    return "application/octet-stream" if _BINARY.search(data) else "text/plain; charset=utf-8"


async def _pieces(path: str, first: int, count: int) -> AsyncGenerator[bytes, None]:
    """`count` bytes of a file; fewer, when it was cut short meanwhile, which ends the connection.

    The file is opened here, as a generator that nobody begins could not close it.
    """
    opened = await NODE_FILES.run(_open, path)
    try:
        while count > 0:
            data = await NODE_FILES.run(os.pread, opened, min(PIECE, count), first)
            if not data:
                return
            first, count = first + len(data), count - len(data)
            yield data
    finally:
        os.close(opened)
