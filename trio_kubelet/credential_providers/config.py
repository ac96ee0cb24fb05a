"""Which plugins there are: CredentialProviderConfig (kubelet.config.k8s.io), a file or a directory of files.

A configuration that cannot be used keeps the agent from starting; the error names everything that is wrong,
in the words of the kubelet's validation. The hash that metrics show is the kubelet's, so that nodes can be
compared.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from trio_kubelet.api.errors import DecodeError
from trio_kubelet.api.validation.formats import any_case_name
from trio_kubelet.api.yaml import load_document
from trio_kubelet.common.duration import format_duration, parse_duration
from trio_kubelet.common.go_words import error_words, os_words
from trio_kubelet.common.http_syntax import broken_escape
from trio_kubelet.config.decode import Findings, decode_struct

V1: Final = "credentialprovider.kubelet.k8s.io/v1"
_API_VERSIONS: Final = (V1, f"{V1}alpha1", f"{V1}beta1")
_GROUP: Final = "kubelet.config.k8s.io"
_KIND: Final = "CredentialProviderConfig"
_CACHE_TYPES: Final = ("ServiceAccount", "Token")
_EXTENSIONS: Final = (".json", ".yaml", ".yml")


class InvalidProviderConfig(Exception):
    """The plugins cannot be used; the text is one clear line."""


class TokenAttributes(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """That a plugin gets a service account token of the pod, and for what."""

    service_account_token_audience: str = ""
    cache_type: str = ""
    require_service_account: bool | None = None
    required_service_account_annotation_keys: list[str] | None = None
    optional_service_account_annotation_keys: list[str] | None = None


class Variable(msgspec.Struct, frozen=True, kw_only=True):
    """An environment variable of a plugin."""

    name: str = ""
    value: str = ""

    def __repr__(self) -> str:  # values may be secret
        return f"Variable(name={self.name!r})"


class ProviderConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One plugin. `default_cache_duration` is Go's text for a duration."""

    name: str = ""
    match_images: list[str] | None = None
    default_cache_duration: str | None = None
    api_version: str = msgspec.field(default="", name="apiVersion")
    args: list[str] | None = None
    env: list[Variable] | None = None
    token_attributes: TokenAttributes | None = None

    @property
    def cache_seconds(self) -> float:
        """For how long an answer is good that does not say so itself."""
        return parse_duration(self.default_cache_duration or "0")


class _File(msgspec.Struct, kw_only=True, rename="camel"):
    kind: str = ""
    api_version: str = ""
    providers: list[ProviderConfig] | None = None


class Providers(msgspec.Struct, frozen=True, kw_only=True):
    """All plugins in their order, and the hash of what the files say."""

    providers: tuple[ProviderConfig, ...]
    hash: str


def load_providers(path: str, directory: str, *, tokens: bool) -> Providers:
    """Reads and checks the configuration at `path`; the plugins have to be in `directory`. Blocking.

    `tokens`: whether plugins may get tokens (feature gate KubeletServiceAccountTokenForCredentialProviders).
    Raises InvalidProviderConfig.
    """
    try:
        os.stat(directory)
    except FileNotFoundError:
        raise InvalidProviderConfig(f"plugin binary directory {directory} did not exist") from None
    except OSError as exc:
        text = f"error inspecting binary directory {directory}: {error_words(exc)}"
        raise InvalidProviderConfig(text) from exc
    read = read_providers(path)
    if errors := list(problems(read.providers, tokens=tokens)):
        text = errors[0] if len(errors) == 1 else f"[{', '.join(dict.fromkeys(errors))}]"
        raise InvalidProviderConfig(f"failed to validate credential provider config: {text}")
    for provider in read.providers:
        _check_executable(os.path.join(directory, provider.name))
    return read


def read_providers(path: str) -> Providers:
    """The plugins that files name, not checked. Blocking. Raises InvalidProviderConfig."""
    if not path:
        raise InvalidProviderConfig("credential provider config path is empty")
    digest = hashlib.sha256()
    found: dict[str, ProviderConfig] = {}
    for name in _files(path):
        try:
            with open(name, "rb") as file:
                data = file.read()
        except OSError as exc:
            raise InvalidProviderConfig(f'unable to read file "{name}": {os_words(exc)}') from exc
        digest.update(len(data).to_bytes(8, "big") + data)
        try:
            providers = decode(data)
        except ValueError as exc:
            raise InvalidProviderConfig(f'error decoding config "{name}": {exc}') from exc
        for provider in providers:
            if provider.name in found:
                raise InvalidProviderConfig(
                    f'duplicate provider name "{provider.name}" found in configuration file(s)'
                )
            found[provider.name] = provider
    return Providers(providers=tuple(found.values()), hash=f"sha256:{digest.hexdigest()}")


def _files(path: str) -> list[str]:
    try:
        if not os.path.isdir(path):
            os.stat(path)
            return [path]
        with os.scandir(path) as entries:
            names = [e.name for e in entries if not e.is_dir(follow_symlinks=False)]
    except OSError as exc:
        raise InvalidProviderConfig(f'unable to access path "{path}": {os_words(exc)}') from exc
    found = sorted(name for name in names if os.path.splitext("x" + name)[1] in _EXTENSIONS)
    if not found:
        raise InvalidProviderConfig(f'no configuration files found in directory "{path}"')
    return [os.path.join(path, name) for name in found]


def decode(data: bytes) -> Sequence[ProviderConfig]:
    """The plugins in one file. Strict: unknown and repeated fields are errors. Raises ValueError."""
    try:
        document = load_document(data)
        if document.duplicates:
            raise ValueError(f'strict decoding error: key "{document.duplicates[0].key}" already set in map')
    except DecodeError as exc:
        raise ValueError(str(exc)) from None
    _check_kind(document.value)
    findings = Findings()
    file = decode_struct(_File, document.value, "", findings)
    if file is None or findings.errors:
        # What is there instead may be secret.
        raise ValueError("; ".join(error.partition(", got ")[0] for error in findings.errors))
    providers = file.providers or []
    unknown = list(findings.unknown)
    for index, provider in enumerate(providers):
        if provider.default_cache_duration is not None:
            parse_duration(provider.default_cache_duration)
        if provider.token_attributes is not None and file.api_version != f"{_GROUP}/v1":
            unknown.append(f"providers[{index}].tokenAttributes")
    if unknown:
        raise ValueError("strict decoding error: " + ", ".join(f'unknown field "{path}"' for path in unknown))
    return providers


def _check_kind(tree: Any) -> None:
    kind, version = (tree.get("kind"), tree.get("apiVersion")) if isinstance(tree, dict) else (None, None)
    if not kind:
        raise ValueError("Object 'Kind' is missing")
    if not version:
        raise ValueError("Object 'apiVersion' is missing")
    if kind != _KIND or version not in {f"{_GROUP}/{v}" for v in ("v1", "v1beta1", "v1alpha1")}:
        raise ValueError(f'no kind "{kind}" is registered for version "{version}"')


def problems(providers: Sequence[ProviderConfig], *, tokens: bool) -> Iterator[str]:
    """What is wrong with the plugins, in the kubelet's words. Pure."""
    if not providers:
        yield "providers: Required value: at least 1 item in plugins is required"
    for provider in providers:
        yield from _name_problems(provider.name)
        version = provider.api_version
        if not version:
            yield "providers.apiVersion: Required value"
        elif version not in _API_VERSIONS:
            known = _quoted(_API_VERSIONS)
            yield f'providers.apiVersion: Unsupported value: "{version}": supported values: {known}'
        if not provider.match_images:
            yield "providers.matchImages: Required value: at least 1 item in matchImages is required"
        for image in provider.match_images or ():
            if problem := _address_problem(image):
                yield (
                    f"providers.matchImages: Invalid value: {json.dumps(image)}: match image is invalid: "
                    f"parse {json.dumps('https://' + image)}: {problem}"
                )
        if provider.default_cache_duration is None:
            yield "providers.defaultCacheDuration: Required value"
        elif provider.cache_seconds < 0:
            shown = format_duration(provider.cache_seconds)
            yield (
                f'providers.defaultCacheDuration: Invalid value: "{shown}": '
                "must be greater than or equal to 0"
            )
        if provider.token_attributes is not None:
            yield from _token_problems(provider.token_attributes, version, tokens=tokens)


def _name_problems(name: str) -> Iterator[str]:
    for wrong, reason in (
        ("/" in name, "contain '/'"),
        (" " in name, "contain spaces"),
        (name == ".", "be '.'"),
        (name == "..", "be '..'"),
    ):
        if wrong:
            yield f"providers.name: Invalid value: {json.dumps(name)}: provider name cannot {reason}"


def _token_problems(token: TokenAttributes, version: str, *, tokens: bool) -> Iterator[str]:
    path = "providers.tokenAttributes"
    required = token.required_service_account_annotation_keys or []
    optional = token.optional_service_account_annotation_keys or []
    if not tokens:
        yield (
            f"{path}: Forbidden: tokenAttributes is not supported when "
            "KubeletServiceAccountTokenForCredentialProviders feature gate is disabled"
        )
    if not token.service_account_token_audience:
        yield f"{path}.serviceAccountTokenAudience: Required value"
    if token.require_service_account is None:
        yield f"{path}.requireServiceAccount: Required value"
    if version != V1:
        yield f"{path}: Forbidden: tokenAttributes is only supported for {V1} API version"
    if token.require_service_account is False and required:
        yield (
            f"{path}.requiredServiceAccountAnnotationKeys: Forbidden: requireServiceAccount cannot be false "
            "when requiredServiceAccountAnnotationKeys is set"
        )
    for name, keys in (("required", required), ("optional", optional)):
        field = f"{path}.{name}ServiceAccountAnnotationKeys"
        seen = set()
        for key in keys:
            for problem in any_case_name(key):
                yield f"{field}: Invalid value: {json.dumps(key)}: {problem}"
            if key in seen:
                yield f"{field}: Duplicate value: {json.dumps(key)}"
            seen.add(key)
    if both := sorted(set(required) & set(optional)):
        shown = json.dumps(both, separators=(",", ":"))
        yield f"{path}: Invalid value: {shown}: annotation keys cannot be both required and optional"
    if not token.cache_type:
        yield (
            f"{path}.cacheType: Required value: cacheType is required to be set when tokenAttributes is "
            f"specified. Supported values are: {', '.join(_CACHE_TYPES)}"
        )
    elif token.cache_type not in _CACHE_TYPES:
        yield (
            f'{path}.cacheType: Unsupported value: "{token.cache_type}": supported values: '
            f"{_quoted(_CACHE_TYPES)}"
        )


def _address_problem(address: str) -> str:
    """Why Go would not read `https://<address>` as a URL; "" if it would."""
    host = re.split(r"[/?#]", address, maxsplit=1)[0].rpartition("@")[2]
    if re.search(r"[\x00-\x1f\x7f]", address):
        return "net/url: invalid control character in URL"
    if host.startswith("[") and "]" not in host:
        return "missing ']' in host"
    if bad := re.search(r'[ "<>\\^`{|}]', host):
        return f"invalid character {json.dumps(bad.group())} in host name"
    if broken := broken_escape(address.partition("?")[0]):
        return f"invalid URL escape {json.dumps(broken)}"
    _, colon, port = host.rpartition("]")[2].partition(":")
    if colon and not re.fullmatch("[0-9]*", port, re.ASCII):
        return f"invalid port {json.dumps(':' + port.rpartition(':')[2])} after host"
    return ""


def _quoted(values: Sequence[str]) -> str:
    return ", ".join(f'"{value}"' for value in values)


def _check_executable(path: str) -> None:
    if not os.path.exists(path):
        raise InvalidProviderConfig(f"plugin binary executable {path} did not exist")
    if os.path.isdir(path):
        raise InvalidProviderConfig(f"error inspecting binary executable {path}: is a directory")
    if not os.access(path, os.X_OK):
        raise InvalidProviderConfig(f"error inspecting binary executable {path}: permission denied")
