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
from collections import deque
from collections.abc import Callable, Sequence
from email.utils import formatdate, mktime_tz, parsedate_tz
from urllib.parse import quote

from trio_kubelet.common.lanes import NODE_LOGS
from trio_kubelet.server.http.messages import NOSNIFF, Request, Response, not_found, raw_path, text
from trio_kubelet.server.http.ranges import ByteRange, InvalidRange, parts_of, wanted_ranges

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
    condition = request.header("if-range")
    asked = request.header("range") if not condition or _moment(condition) == modified else None
    try:
        ranges = wanted_ranges(asked or "", size)
    except InvalidRange as exc:
        extra = () if exc.overlaps else (("Content-Range", f"bytes */{size}"),)
        return text(416, f"{exc}\n", (*extra, *NOSNIFF))
    parts: Sequence[bytes | ByteRange] = ranges or [ByteRange(0, size)]
    headers = [("Accept-Ranges", "bytes"), _last_modified(modified)]
    if len(ranges) == 1:
        headers.append(("Content-Range", ranges[0].shown(size)))
    elif ranges:
        kind, parts = parts_of(ranges, kind, size)
    body = FileBody(file.descriptor, name, *parts)
    headers += [("Content-Type", kind), ("Content-Length", str(body.size))]
    return Response(status=206 if ranges else 200, headers=headers, body=body)


def sniff(data: bytes) -> str:
    """What kind of content begins with `data`, of the kinds that logs have."""
    if data.startswith(b"\x1f\x8b\x08"):
        return "application/x-gzip"
    return "application/octet-stream" if _BINARY.search(data) else "text/plain; charset=utf-8"


class FileBody:
    """Parts of a file, and what stands between them; less when it was cut short meanwhile, which ends the
    connection. `size` is that of all of it.

    The file is its to close.
    """

    def __init__(self, descriptor: int, name: str, *parts: bytes | ByteRange) -> None:
        # An object of Python's closes what nobody closed.
        self._file = os.fdopen(descriptor, "rb", buffering=0)
        self._name = name
        self._parts = deque(parts)
        self.size = sum(len(part) if isinstance(part, bytes) else part.length for part in parts)

    def __aiter__(self) -> FileBody:
        return self

    async def __anext__(self) -> bytes:
        while self._parts:
            part = self._parts.popleft()
            if isinstance(part, bytes):
                return part
            if part.length > 0:
                count = min(PIECE, part.length)
                data = await NODE_LOGS.run(os.pread, self._file.fileno(), count, part.first, owner=self._name)
                if not data:
                    break
                self._parts.appendleft(ByteRange(part.first + len(data), part.length - len(data)))
                return data
        raise StopAsyncIteration

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    async def aclose(self) -> None:
        """As `close`."""
        self.close()
