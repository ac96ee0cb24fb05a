"""`/containerLogs/{namespace}/{pod}/{container}`: what a container wrote.

The answer takes the connection over: while a log is followed, nobody but a reader of the connection learns
that the client has left, and a client may pause for as long as the streaming idle timeout allows. As with the
kubelet an answer begins as soon as it is known whose log it is; what goes wrong then stands in the body.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from email.utils import formatdate

import trio

from trio_kubelet.api import v1
from trio_kubelet.common.clock import NANOSECONDS, Clock
from trio_kubelet.common.lanes import CONTAINER_FILES, WorkHangs
from trio_kubelet.common.log import get_logger
from trio_kubelet.cri.errors import CRIError, NotFound
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.cri.services import RuntimeService
from trio_kubelet.observed.types import ContainerState, ContainerStatus
from trio_kubelet.server.doors import ObservedStatuses, PodsByName, Statuses, has_container
from trio_kubelet.server.http.messages import Hijack, Request, Response, text
from trio_kubelet.server.logs.file import LogError, LogFile
from trio_kubelet.server.logs.options import (
    BadLogOptions,
    PodLogOptions,
    check_both_streams,
    read_log_options,
)
from trio_kubelet.server.logs.reader import follow_log, read_log
from trio_kubelet.server.logs.watch import LogWatch

log = get_logger(__name__)


class NoLog(Exception):
    """There is no log to show; the text says why."""


def choose_container(pod_name: str, status: v1.PodStatus, name: str, previous: bool) -> str:
    """The id (`containerd://…`) of the container whose log to show: the one that runs, else the last that
    ran; with `previous` the one before. Raises NoLog.
    """
    found = _status_of(status, name)
    where = f'container "{name}" in pod "{pod_name}"'
    if found is None:
        raise NoLog(f"{where} is not available")
    state, last = found.state, found.last_state.terminated
    last_id = last.container_id if last is not None else ""
    if previous:
        if not last_id:
            raise NoLog(f'previous terminated container "{name}" in pod "{pod_name}" not found')
        return last_id
    if state.running is not None:
        return found.container_id
    if state.terminated is not None or last is not None:
        # A container whose successor could not be created is terminated without an id.
        own = state.terminated.container_id if state.terminated is not None else ""
        if not (own or last_id):
            raise NoLog(f"{where} is terminated")
        return own or last_id
    raise NoLog(f"{where} is waiting to start{_why_waiting(state.waiting)}")


def _status_of(status: v1.PodStatus, name: str) -> v1.ContainerStatus | None:
    groups = (
        status.container_statuses,
        status.init_container_statuses,
        status.ephemeral_container_statuses,
    )
    for group in groups:
        for container in group or ():
            if container.name == name:
                return container
    return None


def _why_waiting(waiting: v1.ContainerStateWaiting | None) -> str:
    if waiting is None:
        return " - no logs yet"
    words = {
        "ErrImagePull": "image can't be pulled",
        "ImagePullBackOff": "trying and failing to pull image",
    }
    return f": {words.get(waiting.reason, waiting.reason)}"


_CLOSE_SECONDS = 5.0
_ASK_RUNTIME_SECONDS = 1.0


class ContainerLogs:
    """The handler; see the module. `write_seconds`: how long a client may take none of it, 0 for ever."""

    def __init__(
        self,
        *,
        pods: PodsByName,
        statuses: Statuses,
        observed: ObservedStatuses,
        runtime: RuntimeService,
        watch: LogWatch,
        clock: Clock,
        split_streams: bool = True,
        write_seconds: float = 4 * 3600.0,
    ) -> None:
        self._pods = pods
        self._statuses = statuses
        self._observed = observed
        self._runtime = runtime
        self._watch = watch
        self._clock = clock
        self._split_streams = split_streams
        self._write_seconds = write_seconds

    async def get(self, request: Request) -> Response | Hijack:
        """Answers GET; path parameters podNamespace, podID, containerName."""
        params = request.params
        namespace, name, container = params["podNamespace"], params["podID"], params["containerName"]
        try:
            options = read_log_options(request.query)
            pod = self._pods.get_by_name(namespace, name)
            if pod is None:
                return text(404, f'pod "{name}" does not exist')
            if not has_container(pod, container):
                return text(404, f'container "{container}" not found in pod "{name}"')
            if not self._split_streams:
                check_both_streams(options)
        except BadLogOptions as exc:
            return text(exc.status, str(exc))
        status = self._statuses.get(pod.metadata.uid) or pod.status
        try:
            full_id = choose_container(name, status, container, options.previous)
        except NoLog as exc:
            return _no_log(exc)
        reading = _Reading(
            observed=self._observed,
            runtime=self._runtime,
            watch=self._watch,
            clock=self._clock,
            write_seconds=self._write_seconds,
            uid=pod.metadata.uid,
            full_id=full_id,
            options=options,
            chunked=request.http_version != "1.0",
        )
        if options.stream == "Stderr":  # the kubelet begins the answer by writing to stdout
            try:
                await reading.open()
            except (LogError, WorkHangs) as exc:
                return _no_log(exc)
        return Hijack(reading.send)


def _no_log(error: Exception) -> Response:
    """The kubelet has made up its mind to answer in chunks when it finds that there is no log."""

    async def said() -> AsyncGenerator[bytes, None]:
        yield str(error).encode()

    return Response(status=400, body=said())


class _Reading:
    """One client reading one log; one of HTTP/1.0 knows no chunks, but the end of the connection."""

    def __init__(
        self,
        *,
        observed: ObservedStatuses,
        runtime: RuntimeService,
        watch: LogWatch,
        clock: Clock,
        write_seconds: float,
        uid: str,
        full_id: str,
        options: PodLogOptions,
        chunked: bool,
    ) -> None:
        self._statuses, self._runtime, self._watch, self._clock = observed, runtime, watch, clock
        self._write_seconds = write_seconds
        self._uid = uid
        self._full_id = full_id
        self._id = full_id.rpartition("//")[2]
        self._options = options
        self._chunked = chunked
        self._file: LogFile | None = None
        self._asked = float("-inf")  # when the runtime was last asked

    async def open(self) -> LogFile:
        """Opens the log once. Raises LogError."""
        if self._file is None:
            path = await self._path()
            options = self._options.line_options(self._clock.now_ns())
            self._file = await CONTAINER_FILES.run(
                LogFile, path, options, self._options.tail_lines, owner=self._uid, discard=LogFile.close
            )
        return self._file

    async def send(self, stream: trio.abc.Stream, already_read: bytes) -> None:
        """Writes the answer, until its end or until the client leaves."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_watch_client, stream, nursery.cancel_scope)
                try:
                    await self._answer(stream)
                except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError) as exc:
                    log.v(4).info("Log reader left", containerID=self._full_id, err=exc)
                    return
                finally:
                    nursery.cancel_scope.cancel()
            with trio.move_on_after(_CLOSE_SECONDS):
                await stream.aclose()
        finally:
            if self._file is not None:
                self._file.close()

    async def _answer(self, stream: trio.abc.Stream) -> None:
        version, coding = ("1.1", "Transfer-Encoding: chunked\r\n") if self._chunked else ("1.0", "")
        head = (
            f"HTTP/{version} 200 OK\r\nConnection: close\r\n"
            f"Date: {formatdate(self._clock.now_ns() / NANOSECONDS, usegmt=True)}\r\n"
            f"{coding}\r\n"
        )
        await self._write(stream, head.encode())
        try:
            async with aclosing(self._pieces(await self.open())) as pieces:
                async for piece in pieces:
                    await self._write_piece(stream, piece)
        except (LogError, WorkHangs) as exc:
            await self._write_piece(stream, str(exc).encode())
        if self._chunked:
            await self._write(stream, b"0\r\n\r\n")

    def _pieces(self, file: LogFile) -> AsyncGenerator[bytes, None]:
        if self._options.follow:
            return follow_log(file, self._uid, self._watch, self._is_running)
        return read_log(file, self._uid)

    async def _write_piece(self, stream: trio.abc.Stream, piece: bytes) -> None:
        await self._write(stream, b"%x\r\n%b\r\n" % (len(piece), piece) if self._chunked else piece)

    async def _write(self, stream: trio.abc.Stream, data: bytes) -> None:
        with trio.fail_after(self._write_seconds or float("inf")):
            await stream.send_all(data)

    async def _path(self) -> str:
        """Where the log is. Raises LogError."""
        observed = self._observed()
        if observed is not None and observed.log_path:
            return observed.log_path
        try:
            answer = await self._runtime.container_status(self._id)
        except CRIError as exc:
            log.v(4).info("Failed to get container status", containerID=self._full_id, err=exc)
            raise LogError(f"unable to retrieve container logs for {self._full_id}") from exc
        if not answer.HasField("status"):
            raise LogError("container status is nil")
        return answer.status.log_path

    async def _is_running(self) -> bool:
        observed = self._observed()
        if observed is not None:
            return observed.state is ContainerState.RUNNING
        if trio.current_time() < self._asked + _ASK_RUNTIME_SECONDS:
            return True
        self._asked = trio.current_time()
        try:
            answer = await self._runtime.container_status(self._id)
        except NotFound:
            return False
        except CRIError:  # containers may well run while the runtime cannot be asked
            return True
        return answer.status.state == cri.CONTAINER_RUNNING

    def _observed(self) -> ContainerStatus | None:
        status = self._statuses.get(self._uid)
        containers = status.containers if status is not None else ()
        return next((container for container in containers if container.id == self._id), None)


async def _watch_client(stream: trio.abc.Stream, scope: trio.CancelScope) -> None:
    """Ends the answer when the client is gone; what else it says is of no interest."""
    try:
        while await stream.receive_some(4096):
            pass
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass
    scope.cancel()
