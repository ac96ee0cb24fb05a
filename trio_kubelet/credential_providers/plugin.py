"""One run of a plugin: a request on its standard input, the answer on its standard output.

Programs of others are not trusted to end or to be brief: they have a minute and some output. What they print
is not shown, apart from the beginning of their standard error, from which the token is taken out.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec
import trio

from trio_kubelet.common.duration import parse_duration
from trio_kubelet.common.log import get_logger
from trio_kubelet.credential_providers.config import V1, ProviderConfig
from trio_kubelet.credential_providers.keyring import Login
from trio_kubelet.credential_providers.metrics import ProviderMetrics

log = get_logger(__name__)

TIMEOUT: Final = 60.0
"""Seconds for one run, as with the kubelet."""
MAX_ANSWER: Final = 1 << 20
MAX_COMPLAINT: Final = 1024
MAX_RUNS: Final = 16
"""Runs of one plugin at a time."""
_KILL_DEADLINE: Final = 5.0
CACHE_KEY_TYPES: Final = ("Image", "Registry", "Global")


class PluginError(Exception):
    """A plugin gave nothing to go by. The text has nothing secret."""


class Question(NamedTuple):
    """What a plugin is asked: an image without tag and, in token mode, who the pod runs as."""

    image: str
    token: str = ""
    annotations: Mapping[str, str] = {}

    def __repr__(self) -> str:
        return f"Question({self.image!r})"


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a plugin said. `cache_seconds` None: the configured duration."""

    cache_key_type: str
    cache_seconds: float | None
    logins: Mapping[str, Login]


class _Auth(msgspec.Struct, forbid_unknown_fields=True):
    username: str | None = None
    password: str | None = None


class _Response(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    kind: str
    api_version: str
    cache_key_type: str | None = None
    cache_duration: str | None = None
    auth: dict[str, _Auth | None] | None = None


class _Version(msgspec.Struct, rename="camel"):
    api_version: str | None = None


class Plugin:
    """Runs one plugin of the node."""

    def __init__(self, config: ProviderConfig, directory: str, metrics: ProviderMetrics) -> None:
        self._config = config
        self._command = [os.path.join(directory, config.name), *(config.args or ())]
        self._metrics = metrics
        self._turns = trio.CapacityLimiter(MAX_RUNS)

    async def ask(self, question: Question) -> Answer:
        """Runs the plugin once. Raises PluginError."""
        name, version = self._config.name, self._config.api_version
        async with self._turns:
            began = trio.current_time()
            try:
                output = await self._run(encode_request(version, question), question)
            except PluginError as error:
                self._metrics.errors.labels(name).inc()
                raise PluginError(
                    f"error execing credential provider plugin {name} for image {question.image}: {error}"
                ) from error
            finally:
                self._metrics.duration.labels(name).observe(trio.current_time() - began)
        return decode_response(version, output)

    async def _run(self, request: bytes, question: Question) -> bytes:
        environment = {**os.environ, **{v.name: v.value for v in self._config.env or () if v.name}}
        with trio.move_on_after(TIMEOUT):
            try:
                return await run_bounded(self._command, environment, request)
            except ProgramFailed as failed:
                said = failed.complaint.replace(question.token, "…") if question.token else failed.complaint
                raise PluginError(f"{failed}: {said}") from None
            except OSError as exc:
                raise PluginError(str(exc)) from exc
        raise PluginError("context deadline exceeded")


class ProgramFailed(Exception):
    """A program failed or said too much; `complaint` is the beginning of its standard error."""

    def __init__(self, text: str, complaint: str = "") -> None:
        super().__init__(text)
        self.complaint = complaint


async def run_bounded(command: list[str], environment: Mapping[str, str], request: bytes) -> bytes:
    """What a program prints when it reads `request`. It and its children are killed if this is given up.

    Raises ProgramFailed, and OSError if it cannot be started.
    """
    process = await trio.lowlevel.open_process(
        command,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    if process.stdin is None or process.stdout is None or process.stderr is None:
        raise AssertionError("all three are pipes")
    output, complaint = bytearray(), bytearray()
    ended = False
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_write, process.stdin, request)
            nursery.start_soon(_read, process.stderr, complaint, MAX_COMPLAINT)
            async for some in process.stdout:
                output += some
                if len(output) > MAX_ANSWER:
                    nursery.cancel_scope.cancel()
        if len(output) > MAX_ANSWER:
            raise ProgramFailed(f"more than {MAX_ANSWER} bytes of output")
        code = await process.wait()
        ended = True
    finally:
        if not ended:
            await _kill(process)
        with trio.CancelScope(shield=True):  # closing a pipe does not wait
            for stream in (process.stdin, process.stdout, process.stderr):
                await stream.aclose()
    if code != 0:
        how = f"exit status {code}" if code > 0 else f"signal: {signal.Signals(-code).name}"
        raise ProgramFailed(how, complaint.decode("utf-8", "replace").strip())
    return bytes(output)


async def _write(stream: trio.abc.SendStream, data: bytes) -> None:
    try:
        async with stream:
            await stream.send_all(data)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return  # it does not want to know: its answer says whether that was right


async def _read(stream: trio.abc.ReceiveStream, into: bytearray, limit: int) -> None:
    """Keeps the first `limit` bytes and reads on, so that the program is not held up."""
    async for some in stream:
        into += some[: limit - len(into)]


async def _kill(process: trio.Process) -> None:
    """Ends a program and what it started; it has a session of its own, and is not waited for before."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    with trio.move_on_after(_KILL_DEADLINE, shield=True):
        await process.wait()


def encode_request(version: str, question: Question) -> bytes:
    """A CredentialProviderRequest; older versions know the image only. Pure."""
    request: dict[str, object] = {
        "kind": "CredentialProviderRequest",
        "apiVersion": version,
        "image": question.image,
    }
    if version == V1 and question.token:
        request["serviceAccountToken"] = question.token
    if version == V1 and question.annotations:
        request["serviceAccountAnnotations"] = dict(question.annotations)
    return msgspec.json.encode(request) + b"\n"


def decode_response(version: str, output: bytes) -> Answer:
    """Reads a CredentialProviderResponse, strictly. Pure. Raises PluginError without its content."""
    try:
        said = msgspec.json.decode(output, type=_Version).api_version or ""
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise PluginError("error reading GVK from response: no JSON object with an apiVersion") from None
    if said != version:
        raise PluginError(
            "apiVersion from credential plugin response did not match expected "
            f"apiVersion:{version}, actual apiVersion:{said[:100]}"
        )
    try:
        response = msgspec.json.decode(output, type=_Response)
        seconds = None if response.cache_duration is None else parse_duration(response.cache_duration)
        if response.kind != "CredentialProviderResponse":
            raise ValueError
    except (msgspec.DecodeError, ValueError):
        raise PluginError("error decoding credential provider plugin response from stdout") from None
    logins = {
        location: Login(auth.username or "", auth.password or "") if auth else Login("", "")
        for location, auth in (response.auth or {}).items()
    }
    return Answer(cache_key_type=response.cache_key_type or "", cache_seconds=seconds, logins=logins)
