"""A directory over HTTP as Go's `http.FileServer` does it: listings, redirects, ranges, 304.

All of it is blocking file work, so each function is called in a thread, on account of the file it is about.
Which names lead where is up to an opener: `follow_links` as the kubelet does for `/logs/`, or one that stays
below the directory.
"""

from __future__ import annotations

import os
import posixpath
import re
import stat
from collections.abc import Callable
from email.utils import formatdate, mktime_tz, parsedate_tz
from urllib.parse import quote

from trio_kubelet.common.lanes import NODE_LOGS
from trio_kubelet.server.http.messages import NOSNIFF, Request, Response, not_found, raw_path, text

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
_RANGE = re.compile(r"bytes=\s*(\d{0,99})\s*-\s*(\d{0,99})\s*", re.ASCII)


Opener = Callable[[str], int]
"""Opens a clean name below the directory that is served, without waiting. Raises OSError, ValueError."""


async def serve_file(request: Request, path: str, opener: Opener) -> Response:
    """The answer for `path` (decoded, relative to the directory). What is opened is what is answered from."""
    if not path.startswith("/"):
        path = "/" + path
    if path.endswith("/index.html"):
        return _go_to("./", request)
    name = posixpath.normpath("/" + path.lstrip("/")).lstrip("/")
    try:
        opened = await NODE_LOGS.run(opener, name, owner=name, discard=os.close)
    except OSError as exc:
        return _file_error(exc)
    except ValueError:
        return text(500, "500 Internal Server Error\n", NOSNIFF)
    file = _File(opened)
    try:
        if file.is_directory and not path.endswith("/"):
            return _go_to(posixpath.basename(path) + "/", request)
        if not file.is_directory and path.endswith("/"):
            return _go_to("../" + posixpath.basename(path.rstrip("/")), request)
        if file.is_directory:
            index = await NODE_LOGS.run(_index, opener, name, owner=name, discard=_File.close)
            if index.descriptor >= 0:
                file.close()
                file, name = index, "index.html"
        modified = int(file.info.st_mtime)
        if (status := _precondition(request, modified)) is not None:
            return Response(status=status, headers=(_last_modified(modified),))
        if file.is_directory:
            return await _directory(file.descriptor, name, modified)
        if not stat.S_ISREG(file.info.st_mode):
            return text(500, "seeker can't seek\n", NOSNIFF)
        answer = await _content(request, file, name, modified)
        if isinstance(answer.body, FileBody):
            file = _File(-1)  # the answer closes it
        return answer
    finally:
        file.close()


class _File:
    """What was opened; -1 for nothing."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        if descriptor >= 0:
            self.info = os.fstat(descriptor)
            self.is_directory = stat.S_ISDIR(self.info.st_mode)

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


def follow_links(root: str) -> Opener:
    """Opens whatever the names below `root` lead to, as Go's `http.Dir`."""

    def opener(name: str) -> int:
        # A FIFO would wait for a writer.
        return os.open(f"{root}/{name}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    return opener


def _index(opener: Opener, directory: str) -> _File:
    """The file that stands for the listing of a directory; nothing, if there is none."""
    try:
        return _File(opener(f"{directory}/index.html".lstrip("/")))
    except OSError:
        return _File(-1)


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


def _precondition(request: Request, modified: int) -> int | None:
    """The status of an answer without the content, where the request's conditions want it so (Go:
    `checkPreconditions`). No file has an entity tag, so of those only `*` fits.
    """
    tags = request.header("if-match")
    if tags:
        if tags != "*":
            return 412
    elif (unmodified := _moment(request.header("if-unmodified-since"))) is not None and modified > unmodified:
        return 412
    others = request.header("if-none-match")
    if others:
        return 304 if others == "*" else None
    since = _moment(request.header("if-modified-since"))
    return 304 if since is not None and modified <= since else None


def _last_modified(modified: int) -> tuple[str, str]:
    return ("Last-Modified", formatdate(modified, usegmt=True))


def _moment(date: str | None) -> int | None:
    """A date of a header in seconds; None for what is none."""
    try:
        parsed = parsedate_tz(date or "")
        return None if parsed is None else mktime_tz(parsed)
    except (ValueError, TypeError, OverflowError):
        return None


async def _directory(opened: int, name: str, modified: int) -> Response:
    try:
        body = await NODE_LOGS.run(_listing, opened, owner=name)
    except OSError:
        return text(500, "Error reading directory\n", NOSNIFF)
    headers = (("Content-Type", "text/html; charset=utf-8"), _last_modified(modified))
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


async def _content(request: Request, file: _File, name: str, modified: int) -> Response:
    kind = TYPES.get(posixpath.splitext(name)[1]) or sniff(
        await NODE_LOGS.run(os.pread, file.descriptor, SNIFFED, 0, owner=name)
    )
    size = file.info.st_size
    first, count = 0, size
    status = 200
    headers = [("Accept-Ranges", "bytes"), ("Content-Type", kind), _last_modified(modified)]
    condition = request.header("if-range")
    if not condition or _moment(condition) == modified:
        wanted = wanted_range(request.header("range"), size)
        if wanted == ():
            extra = (("Content-Range", f"bytes */{size}"), *NOSNIFF)
            return text(416, "invalid range: failed to overlap\n", extra)
        if wanted:
            first, count, status = wanted[0], wanted[1], 206
            headers.append(("Content-Range", f"bytes {first}-{first + count - 1}/{size}"))
    headers.append(("Content-Length", str(count)))
    return Response(status=status, headers=headers, body=FileBody(file.descriptor, name, first, count))


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


class FileBody:
    """`count` bytes of a file from `first`; fewer when it was cut short meanwhile, which ends the connection.

    The file is its to close.
    """

    def __init__(self, descriptor: int, name: str, first: int, count: int) -> None:
        # An object of Python's closes what nobody closed.
        self._file = os.fdopen(descriptor, "rb", buffering=0)
        self._name = name
        self._first = first
        self._count = count

    def __aiter__(self) -> FileBody:
        return self

    async def __anext__(self) -> bytes:
        if self._count <= 0:
            raise StopAsyncIteration
        size = min(PIECE, self._count)
        data = await NODE_LOGS.run(os.pread, self._file.fileno(), size, self._first, owner=self._name)
        if not data:
            raise StopAsyncIteration
        self._first, self._count = self._first + len(data), self._count - len(data)
        return data

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    async def aclose(self) -> None:
        """As `close`."""
        self.close()
