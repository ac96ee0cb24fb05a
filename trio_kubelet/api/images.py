"""Image references, read as the runtimes read them: `nginx` means `docker.io/library/nginx:latest`."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_DOMAIN: Final = (
    r"(?:(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])"
    r"(?:\.(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9]))*|\[(?:[a-fA-F0-9:]+)\])(?::[0-9]+)?"
)
_PATH_PART: Final = r"[a-z0-9]+(?:(?:[._]|__|[-]+)[a-z0-9]+)*"
_REFERENCE: Final = re.compile(
    rf"(?P<name>(?:{_DOMAIN}/)?(?P<path>{_PATH_PART}(?:/{_PATH_PART})*))"
    r"(?::(?P<tag>\w[\w.-]{0,127}))?"
    r"(?:@(?P<digest>[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}))?",
    re.ASCII,
)
_DIGEST_LENGTHS: Final = {"sha256": 64, "sha384": 96, "sha512": 128}
_LONGEST_PATH: Final = 255


class ImageReference(NamedTuple):
    """A reference taken apart; a missing tag is "latest" unless there is a digest."""

    name: str
    tag: str
    digest: str


def parse_image(image: str) -> ImageReference | None:
    """The parts of a reference, None if it is malformed."""
    if re.fullmatch(r"[a-f0-9]{64}", image):
        return None
    domain, rest = _split_domain(image)
    remote = rest.partition(":")[0]
    if remote.lower() != remote:
        return None
    match = _REFERENCE.fullmatch(f"{domain}/{rest}")
    if match is None or len(match["path"]) > _LONGEST_PATH:
        return None
    tag, digest = match["tag"] or "", match["digest"] or ""
    if digest and not _is_digest(digest):
        return None
    return ImageReference(match["name"], tag if tag or digest else "latest", digest)


def default_pull_policy(image: str) -> str:
    """Always for `:latest` (written or implied), else IfNotPresent, also for a malformed reference."""
    reference = parse_image(image)
    return "Always" if reference is not None and reference.tag == "latest" else "IfNotPresent"


def _split_domain(image: str) -> tuple[str, str]:
    first, slash, rest = image.partition("/")
    if not slash:
        return "docker.io", f"library/{image}"
    if first in ("index.docker.io", "docker.io"):
        return "docker.io", rest if "/" in rest else f"library/{rest}"
    if first == "localhost" or "." in first or ":" in first or first.lower() != first:
        return first, rest
    return "docker.io", image


def _is_digest(digest: str) -> bool:
    algorithm, _, encoded = digest.partition(":")
    length = _DIGEST_LENGTHS.get(algorithm)
    return length is not None and re.fullmatch(rf"[a-f0-9]{{{length}}}", encoded) is not None
