"""One run of a plugin: a request on its standard input, the answer on its standard output.

Programs of others are not trusted to end or to be brief: they have a minute and some output. What they print
is not shown, apart from the beginning of their standard error, from which the token is taken out.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec
import trio
from prometheus_client import CollectorRegistry

from trio_kubelet.common.deep_json import decode_deep
from trio_kubelet.common.duration import parse_duration
from trio_kubelet.common.go_words import error_words
from trio_kubelet.common.log import get_logger
from trio_kubelet.common.metrics import MetricMaker
from trio_kubelet.common.programs import ProgramFailed, redacted, run_program
from trio_kubelet.credential_providers.config import V1, ProviderConfig
from trio_kubelet.credential_providers.keyring import Login

log = get_logger(__name__)


class ProviderMetrics:
    """How plugins did, and which configuration they have."""

    def __init__(self, registry: CollectorRegistry, config_hash: str) -> None:
        make = MetricMaker(registry)
        self.errors = make.counter(
            "kubelet_credential_provider_plugin_errors", "Runs of a plugin that failed.", ["plugin_name"]
        )
        self.duration = make.histogram(
            "kubelet_credential_provider_plugin_duration", "Seconds a plugin ran.", ["plugin_name"]
        )
        make.gauge(
            "kubelet_credential_provider_config_info",
            "Hash of the configuration of the plugins; always 1.",
            ["hash"],
        ).labels(config_hash).set(1)


TIMEOUT: Final = 60.0
"""Seconds for one run, as with the kubelet."""
MAX_RUNS: Final = 16
"""Runs of one plugin at a time."""
CACHE_KEY_TYPES: Final = ("Image", "Registry", "Global")


class CredentialPluginError(Exception):
    """A plugin gave nothing to go by. The text has nothing secret."""


class CredentialProviderRequest(NamedTuple):
    """What a plugin is asked: an image without tag and, in token mode, who the pod runs as."""

    image: str
    token: str = ""
    annotations: Mapping[str, str] = {}

    def __repr__(self) -> str:
        return f"CredentialProviderRequest({self.image!r})"


class CredentialProviderResponse(msgspec.Struct, frozen=True, kw_only=True):
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


_decode_version: Final = msgspec.json.Decoder(_Version).decode
_decode_response: Final = msgspec.json.Decoder(_Response).decode


class Plugin:
    """Runs one plugin of the node."""

    def __init__(self, config: ProviderConfig, directory: str, metrics: ProviderMetrics) -> None:
        self._config = config
        self._command = [os.path.join(directory, config.name), *(config.args or ())]
        self._metrics = metrics
        self._turns = trio.CapacityLimiter(MAX_RUNS)

    async def ask(self, question: CredentialProviderRequest) -> CredentialProviderResponse:
        """Runs the plugin once. Raises CredentialPluginError."""
        name, version = self._config.name, self._config.api_version
        async with self._turns:
            began = trio.current_time()
            try:
                output = await self._run(encode_request(version, question), question)
            except CredentialPluginError as error:
                self._metrics.errors.labels(name).inc()
                raise CredentialPluginError(
                    f"error execing credential provider plugin {name} for image {question.image}: {error}"
                ) from error
            finally:
                self._metrics.duration.labels(name).observe(trio.current_time() - began)
        return decode_response(version, output)

    async def _run(self, request: bytes, question: CredentialProviderRequest) -> bytes:
        environment = {**os.environ, **{v.name: v.value for v in self._config.env or () if v.name}}
        with trio.move_on_after(TIMEOUT):
            try:
                return await run_program(self._command, environment, request)
            except ProgramFailed as failed:
                raise CredentialPluginError(
                    f"{failed}: {redacted(failed.complaint, [question.token])}"
                ) from None
            except OSError as exc:
                raise CredentialPluginError(error_words(exc, "fork/exec")) from exc
        raise CredentialPluginError("context deadline exceeded")


def encode_request(version: str, question: CredentialProviderRequest) -> bytes:
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


def decode_response(version: str, output: bytes) -> CredentialProviderResponse:
    """Reads what a plugin printed, strictly. Pure. Raises CredentialPluginError without its content."""
    try:
        said = decode_deep(_decode_version, output).api_version or ""
    except msgspec.DecodeError:
        raise CredentialPluginError(
            "error reading GVK from response: no JSON object with an apiVersion"
        ) from None
    if said != version:
        raise CredentialPluginError(
            "apiVersion from credential plugin response did not match expected "
            f"apiVersion:{version}, actual apiVersion:{said[:100]}"
        )
    try:
        response = decode_deep(_decode_response, output)
        seconds = None if response.cache_duration is None else parse_duration(response.cache_duration)
        if response.kind != "CredentialProviderResponse":
            raise ValueError
    except (msgspec.DecodeError, ValueError):
        raise CredentialPluginError(
            "error decoding credential provider plugin response from stdout"
        ) from None
    logins = {
        location: Login(auth.username or "", auth.password or "") if auth else Login("", "")
        for location, auth in (response.auth or {}).items()
    }
    return CredentialProviderResponse(
        cache_key_type=response.cache_key_type or "", cache_seconds=seconds, logins=logins
    )
