"""References to images: are they well formed, with which tag are they asked for, when are they pulled.

Follows the grammar of the distribution project's `reference` package, through which the kubelet and the
runtimes read them: a name without a registry belongs to Docker Hub, a name without tag and digest means
`latest`. So `nginx` is `docker.io/library/nginx:latest`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

_HUB: Final = "docker.io"
_HOST_PART: Final = r"(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])"
_HOST: Final = rf"(?:{_HOST_PART}(?:\.{_HOST_PART})*|\[(?:[a-fA-F0-9:]+)\])(?::[0-9]+)?"
_PATH_PART: Final = r"[a-z0-9]+(?:(?:[._]|__|[-]+)[a-z0-9]+)*"
_REFERENCE: Final = re.compile(
    rf"(?P<name>(?:{_HOST}/)?(?P<path>{_PATH_PART}(?:/{_PATH_PART})*))"
    r"(?::(?P<tag>\w[\w.-]{0,127}))?"
    r"(?:@(?P<digest>[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}))?",
    re.ASCII,
)
_DIGEST_LENGTHS: Final = {"sha256": 64, "sha384": 96, "sha512": 128}
_LONGEST_PATH: Final = 255


class InvalidImageName(ValueError):
    """The reference is not well formed; the text says why, as the kubelet words it."""


class ImageName(NamedTuple):
    """The parts of a reference; `repository` with its registry, `tag` and `digest` "" when not given."""

    repository: str
    tag: str
    digest: str


@lru_cache(maxsize=1024)
def parse_image_name(image: str) -> ImageName:
    """Splits a reference; tag `latest` when neither tag nor digest is given. Raises InvalidImageName."""
    if re.fullmatch(r"[a-f0-9]{64}", image):
        raise _invalid(
            image, f"invalid repository name ({image}), cannot specify 64-byte hexadecimal strings"
        )
    host, remainder = _split_host(image)
    remote = remainder.partition(":")[0]
    if remote.lower() != remote:
        raise _invalid(image, f"invalid reference format: repository name ({remote}) must be lowercase")
    match = _REFERENCE.fullmatch(f"{host}/{remainder}")
    if match is None:
        raise _invalid(image, "invalid reference format")
    if len(match["path"]) > _LONGEST_PATH:
        raise _invalid(image, f"repository name must not be more than {_LONGEST_PATH} characters")
    tag, digest = match["tag"] or "", match["digest"] or ""
    if digest:
        _check_digest(image, digest)
    return ImageName(match["name"], tag if tag or digest else "latest", digest)


def with_default_tag(image: str) -> str:
    """The reference as it is asked for at the runtime: as given, with `:latest` where nothing was said.

    The registry is not added: what a short name means is the runtime's business. Raises InvalidImageName.
    """
    name = parse_image_name(image)
    if not name.digest and name.tag and not image.endswith(":" + name.tag):
        return f"{image}:{name.tag}"
    return image


def default_pull_policy(image: str) -> str:
    """Always for `:latest` (written or implied), else IfNotPresent, also for a malformed reference."""
    try:
        return "Always" if parse_image_name(image).tag == "latest" else "IfNotPresent"
    except InvalidImageName:
        return "IfNotPresent"


def _invalid(image: str, reason: str) -> InvalidImageName:
    return InvalidImageName(f'couldn\'t parse image name "{image}": {reason}')


def _split_host(image: str) -> tuple[str, str]:
    """Registry and the rest; a first part counts as registry if it looks like a host."""
    first, slash, rest = image.partition("/")
    if not slash:
        return _HUB, f"library/{image}"
    if first in (_HUB, f"index.{_HUB}"):
        return _HUB, rest if "/" in rest else f"library/{rest}"
    if first == "localhost" or "." in first or ":" in first or first.lower() != first:
        return first, rest
    return _HUB, image


def _check_digest(image: str, digest: str) -> None:
    algorithm, _, encoded = digest.partition(":")
    if algorithm.lower() != algorithm:
        raise _invalid(image, "invalid checksum digest format")
    length = _DIGEST_LENGTHS.get(algorithm)
    if length is None:
        raise _invalid(image, "unsupported digest algorithm")
    if len(encoded) != length:
        raise _invalid(image, "invalid checksum digest length")
    if encoded.lower() != encoded:
        raise _invalid(image, "invalid checksum digest format")
