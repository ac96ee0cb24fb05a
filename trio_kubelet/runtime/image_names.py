"""References to images: are they well formed, and with which tag are they asked for. Pure.

Follows the grammar of the distribution project's `reference` package, through which the kubelet
reads them: a name without a registry belongs to Docker Hub, a name without tag and digest means
`latest`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_COMPONENT = r"[a-z0-9]+(?:(?:[._]|__|[-]+)[a-z0-9]+)*"
_PATH = rf"{_COMPONENT}(?:/{_COMPONENT})*"
_LABEL = r"(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])"
_HOST = rf"(?:{_LABEL}(?:\.{_LABEL})*|\[(?:[a-fA-F0-9:]+)\])(?::[0-9]+)?"
_DIGEST = r"[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}"
_REFERENCE = re.compile(
    rf"(?:(?P<host>{_HOST})/)?(?P<path>{_PATH})(?::(?P<tag>[0-9A-Za-z_][0-9A-Za-z_.-]{{0,127}}))?(?:@(?P<digest>{_DIGEST}))?",
    re.ASCII,
)
_DIGEST_LENGTHS = {"sha256": 64, "sha384": 96, "sha512": 128}
_NAME_MAX = 255
_HUB = "docker.io"


class InvalidImageName(ValueError):
    """The reference is not well formed; the text says why, as the kubelet words it."""


class ImageName(NamedTuple):
    """The parts of a reference; `repository` with its registry, `tag` and `digest` "" when not given."""

    repository: str
    tag: str
    digest: str


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
    path, digest = match["path"], match["digest"] or ""
    if len(path) > _NAME_MAX:
        raise _invalid(image, f"repository name must not be more than {_NAME_MAX} characters")
    if digest:
        _check_digest(image, digest)
    tag = match["tag"] or ""
    return ImageName(f"{match['host']}/{path}", tag if tag or digest else "latest", digest)


def with_default_tag(image: str) -> str:
    """The reference as it is asked for at the runtime: as given, with `:latest` where nothing was said.

    The registry is not added: what a short name means is the runtime's business. Raises InvalidImageName.
    """
    name = parse_image_name(image)
    if not name.digest and name.tag and not image.endswith(":" + name.tag):
        return f"{image}:{name.tag}"
    return image


def _invalid(image: str, reason: str) -> InvalidImageName:
    return InvalidImageName(f'couldn\'t parse image name "{image}": {reason}')


def _split_host(image: str) -> tuple[str, str]:
    """Registry and the rest; a first part counts as registry if it looks like a host."""
    first, slash, rest = image.partition("/")
    if not slash:
        return _HUB, f"library/{image}"
    if first == "index.docker.io":
        host, remainder = _HUB, rest
    elif first == "localhost" or "." in first or ":" in first or first.lower() != first:
        host, remainder = first, rest
    else:
        host, remainder = _HUB, image
    if host == _HUB and "/" not in remainder:
        remainder = f"library/{remainder}"
    return host, remainder


def _check_digest(image: str, digest: str) -> None:
    algorithm, _, encoded = digest.partition(":")
    length = _DIGEST_LENGTHS.get(algorithm)
    if length is None:
        raise _invalid(image, "unsupported digest algorithm")
    if len(encoded) != length:
        raise _invalid(image, "invalid checksum digest length")
    if encoded.lower() != encoded:
        raise _invalid(image, "invalid checksum digest format")
