"""`/logs/`: the node's log directory, and the node log query over journald and files."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import zlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial

import trio

from trio_kubelet.api.errors import aggregate_errors
from trio_kubelet.common.beneath import look_beneath, open_beneath
from trio_kubelet.common.go_words import os_words
from trio_kubelet.common.lanes import NODE_LOGS
from trio_kubelet.common.log import get_logger
from trio_kubelet.common.processes import start_process
from trio_kubelet.common.programs import ProgramFailed, run_program
from trio_kubelet.server.http.files import FileBody, follow_links, serve_file
from trio_kubelet.server.http.messages import NOSNIFF, Hijack, Request, Response, not_found, raw_path, text
from trio_kubelet.server.http.ranges import ByteRange
from trio_kubelet.server.logs.query import NOTHING, LogQuery, journal_arguments, read_query, validate

log = get_logger(__name__)

LOG_DIR = "/var/log"
JOURNAL_SECONDS = 30.0
PIECE = 64 * 1024
_UNITS = 16 << 20  # bytes of the names of all units: hundreds of thousands have room


class SystemLogs:
    """The handler; `queries`: configuration enableSystemLogQuery and the gate NodeLogQuery."""

    def __init__(self, queries: bool, log_dir: str = LOG_DIR, journalctl: str = "journalctl") -> None:
        self._queries = queries
        self._dir = log_dir
        self._journalctl = journalctl

    async def get(self, request: Request) -> Response | Hijack:
        """Answers GET below `/logs/`."""
        if not raw_path(request.target).startswith("/logs/"):
            return not_found()  # as Go's StripPrefix, when the name is encoded
        path = request.path.removeprefix("/logs/")
        if not self._queries:
            return await serve_file(request, path, follow_links(self._dir))
        query, errors = read_query(request.query)
        if errors:
            return text(400, aggregate_errors(errors) + "\n", NOSNIFF)
        if query == NOTHING:
            return await serve_file(request, path, follow_links(self._dir))
        if path:
            return text(406, "path not allowed in query mode\n", NOSNIFF)
        errors = validate(query, await self._file_error(query))
        if errors:
            return text(406, aggregate_errors(errors) + "\n", NOSNIFF)
        if query.files:
            return await serve_file(request, query.files[0], partial(open_beneath, self._dir))
        return _streamed(self._services(query), request)

    async def _file_error(self, query: LogQuery) -> str | None:
        if len(query.files) != 1:
            return None
        try:
            name = query.files[0]
            os.close(await NODE_LOGS.run(look_beneath, self._dir, name, owner=name, discard=os.close))
        except OSError as exc:
            return f"statat {query.files[0]}: {os_words(exc)}"
        return None

    async def _services(self, query: LogQuery) -> AsyncGenerator[bytes, None]:
        """The services' logs: first of those that the journal knows, then from files of the others' names."""
        units = await self._journal_units()
        native = [name for name in query.services if f"{name}.service" in units]
        others = [name for name in query.services if name not in native]
        if native:
            async with aclosing(self._journal(journal_arguments(query, native))) as pieces:
                async for piece in pieces:
                    yield piece
        if others and query.has_options:
            yield (
                f"\noptions present and query resolved to log files for [{' '.join(others)}]\n"
                "try without specifying options\n"
            ).encode()
            return
        for name in others:
            async with aclosing(self._file_of(name)) as pieces:
                async for piece in pieces:
                    yield piece

    async def _journal_units(self) -> str:
        command = [self._journalctl, "--field", "_SYSTEMD_UNIT"]
        try:
            with trio.fail_after(JOURNAL_SECONDS):
                units = await run_program(command, os.environ, b"", most=_UNITS)
        except (OSError, ProgramFailed, trio.TooSlowError):
            return ""  # no journal: services log to files
        return units.decode("utf-8", "replace")

    async def _journal(self, arguments: Sequence[str]) -> AsyncGenerator[bytes, None]:
        try:
            with trio.fail_after(JOURNAL_SECONDS):
                process = await start_process(
                    [self._journalctl, *arguments], os.environ, stderr=subprocess.STDOUT
                )
        except (OSError, trio.TooSlowError) as exc:
            log.error("Cannot run journalctl", err=exc)
            yield b"\nerror: journal output not available\n"
            return
        assert process.stdout is not None
        deadline = trio.current_time() + JOURNAL_SECONDS
        try:
            while True:
                data = b""
                with trio.move_on_at(deadline):
                    data = bytes(await process.stdout.receive_some(PIECE))
                if not data:
                    return
                yield data
        finally:
            await process.kill()
            await process.close()

    async def _file_of(self, name: str) -> AsyncGenerator[bytes, None]:
        for candidate in (name, f"{name}.log", f"{name}/{name}.log"):
            try:
                body = await NODE_LOGS.run(
                    _regular, self._dir, candidate, owner=candidate, discard=FileBody.close
                )
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                continue
            except OSError as exc:
                yield f"\nerror getting log for {name}: openat {candidate}: {os_words(exc)}\n".encode()
                return
            async with aclosing(body):
                async for piece in body:
                    yield piece
            return
        yield f"\nlog not found for {name}\n".encode()


def _regular(root: str, name: str) -> FileBody:
    """The whole of a regular file, as large as it is now. Raises OSError, for anything else as well."""
    opened = open_beneath(root, name)
    info = os.fstat(opened)
    if stat.S_ISREG(info.st_mode):
        return FileBody(opened, name, ByteRange(0, info.st_size))
    os.close(opened)
    if stat.S_ISDIR(info.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    raise OSError(errno.EINVAL, "not a regular file")


def _streamed(pieces: AsyncGenerator[bytes, None], request: Request) -> Response:
    headers = [("Content-Type", "text/plain;charset=UTF-8")]
    if request.header("accept-encoding") == "gzip":
        headers.append(("Content-Encoding", "gzip"))
        pieces = _gzipped(pieces)
    return Response(headers=headers, body=pieces)


async def _gzipped(pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    packer = zlib.compressobj(1, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    async with aclosing(pieces):
        async for piece in pieces:
            yield packer.compress(piece)
    yield packer.flush()
