"""Registry credentials: docker's configuration files, and which of their entries fit an image. Pure.

Rules of the kubelet's `credentialprovider`: an entry names a host, with wildcards for its parts, perhaps a
port, perhaps the beginning of a path; entries that sort last, so those with longer paths of a host, are
tried first; Docker Hub's historic name fits images without a host.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import unquote

import msgspec

from trio_kubelet.api.tree import json_text
from trio_kubelet.api.yaml_scalars import decode_base64
from trio_kubelet.common.deep_json import decode_deep
from trio_kubelet.common.http_syntax import broken_escape

_HUB: Final = "index.docker.io"
_HUB_NAMES: Final = ("docker.io", _HUB)
_NAME: Final = re.compile(rb'"(?:auths?|username|password|email)"(?=[ \t\r\n]*:)', re.IGNORECASE)


class InvalidDockerConfig(Exception):
    """A docker configuration that cannot be read. Its text never has anything of the content."""


class Login(NamedTuple):
    """User and password for a registry."""

    username: str
    password: str
    email: str = ""

    def __repr__(self) -> str:
        return "Login(…)"

    @property
    def hash(self) -> str:
        """The hash by which records of pulls know a login again, the same as the kubelet's."""
        fields = {name: value for name, value in self._asdict().items() if value}
        return hashlib.sha256(json_text(fields).encode()).hexdigest()


class SecretSource(NamedTuple):
    """The pull secret a login is from."""

    uid: str
    namespace: str
    name: str


class AccountSource(NamedTuple):
    """The service account for whose token a plugin gave a login."""

    uid: str
    namespace: str
    name: str


Source: TypeAlias = SecretSource | AccountSource


class Credential(NamedTuple):
    """A login to try, and whose it is; without a source it is for all pods of the node."""

    login: Login
    source: Source | None = None


class _Entry(msgspec.Struct):
    username: str | None = None
    password: str | None = None
    email: str | None = None
    auth: str | None = None


_Entries: TypeAlias = dict[str, _Entry | None]


class _Config(msgspec.Struct):
    auths: _Entries | None = None


def parse_docker_config(data: bytes) -> dict[str, Login]:
    """Logins by registry of a `config.json` (secrets of type kubernetes.io/dockerconfigjson).

    Raises InvalidDockerConfig.
    """
    try:
        entries = decode_deep(msgspec.json.Decoder(_Config | None).decode, _in_lower_case(data))
    except msgspec.DecodeError:
        raise InvalidDockerConfig("not a docker config.json") from None
    return _logins((entries.auths if entries is not None else None) or {})


def parse_legacy_docker_config(data: bytes) -> dict[str, Login]:
    """The same of a `.dockercfg` (secrets of type kubernetes.io/dockercfg)."""
    try:
        entries = decode_deep(msgspec.json.Decoder(_Entries | None).decode, _in_lower_case(data))
    except msgspec.DecodeError:
        raise InvalidDockerConfig("not a .dockercfg") from None
    return _logins(entries or {})


def _in_lower_case(data: bytes) -> bytes:
    """The same with the names of fields as they are looked for; Go takes them in any case."""
    return _NAME.sub(lambda found: found[0].lower(), data)


def _logins(entries: _Entries) -> dict[str, Login]:
    return {registry: _login(entry or _Entry()) for registry, entry in entries.items()}


def _login(entry: _Entry) -> Login:
    if not entry.auth:
        return Login(entry.username or "", entry.password or "", entry.email or "")
    auth = re.sub(r"[\r\n]", "", entry.auth)
    padded = auth if auth.endswith("=") else auth + "=" * (-len(auth) % 4)
    try:
        told = decode_base64(padded)
    except ValueError:
        told = b""
    username, colon, password = told.decode("utf-8", "replace").partition(":")
    if not colon:
        raise InvalidDockerConfig(
            "unable to parse auth field, must be formatted as base64(username:password)"
        )
    return Login(username, password, entry.email or "")


class Keyring:
    """Logins of several configurations together (implements `doors.PullSecret`)."""

    def __init__(self, configs: Iterable[Mapping[str, Login]] = ()) -> None:
        self._found: dict[str, list[Credential]] = {}
        for config in configs:
            self.add(config)

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, config: Mapping[str, Login], source: Source | None = None) -> None:
        """Adds logins by registry, all of them from `source`."""
        for registry, login in config.items():
            self._found.setdefault(_location(registry), []).append(Credential(login, source))

    def lookup(self, image: str) -> Sequence[Credential]:
        """What to try for an image without tag and digest, best first."""
        found = [
            credential
            for location in sorted(self._found, key=str.encode, reverse=True)
            if matches(location, image)
            for credential in self._found[location]
        ]
        if not found and is_hub_image(image):
            found = self._found.get(_HUB, [])
        return found

    async def credentials(self, image: str) -> Sequence[Credential]:
        """`lookup`, for those who may have to wait with other kinds of secrets."""
        return self.lookup(image)


def matches(location: str, image: str) -> bool:
    """Whether an entry's location (`*.example.org:5000/team`) fits an image."""
    wanted, given = _split(location), _split(image)
    if wanted is None or given is None:
        return False
    if (
        wanted.port != given.port
        or len(wanted.host) != len(given.host)
        or not given.path.startswith(wanted.path)
    ):
        return False
    return all(_part_matches(pattern, part) for pattern, part in zip(wanted.host, given.host, strict=True))


def is_hub_image(image: str) -> bool:
    """Whether the image is Docker Hub's, judging by its name."""
    first, slash, _ = image.partition("/")
    if not first:
        return False
    return not slash or first in _HUB_NAMES or not any(sign in first for sign in ".:")


def _location(registry: str) -> str:
    """An entry's name without scheme; `/v1/` and `/v2/` stand for the host itself."""
    for scheme in ("https://", "http://"):
        registry = registry.removeprefix(scheme)
    host, slash, path = re.split(r"[?#]", registry, maxsplit=1)[0].partition("/")
    path = slash + path
    if path.startswith(("/v1/", "/v2/")):
        path = path[3:]
    return host if path == "/" else host + path


class _Place(NamedTuple):
    """Host by its parts, port and path."""

    host: list[str]
    port: str
    path: str


# What Go takes for a host and a port, behind what could be a user.
_AUTHORITY: Final = re.compile(
    r"(?:[^@]*@)?(?P<host>\[[^\[\]]*\]|[\w.~!$&'()*+,;=<>\"\x80-\U0010ffff-]*)(?P<port>:[0-9]*)?",
    re.ASCII,
)


def _split(location: str) -> _Place | None:
    """The parts of a location, None for one that is no URL."""
    address, slash, path = location.partition("/")
    match = _AUTHORITY.fullmatch(address)
    if match is None or broken_escape(path):
        return None
    host = match["host"]
    if match["port"]:
        host = host.removeprefix("[").removesuffix("]")
    return _Place(host.split("."), (match["port"] or "").removeprefix(":"), unquote(slash + path))


def _part_matches(pattern: str, part: str) -> bool:
    """Go's `filepath.Match` with what can stand in a host of its URLs: `*`, any number of any characters.

    Patterns come from pods' secrets: what this takes grows with the length of both and no more.
    """
    first, *rest = pattern.split("*")
    if not rest:
        return pattern == part
    *between, last = rest
    at, end = len(first), len(part) - len(last)
    if at > end or not (part.startswith(first) and part.endswith(last)):
        return False
    for piece in between:
        found = part.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True
