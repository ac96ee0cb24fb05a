"""The simulated runtime's images: a list, and pulls that need no registry.

Any name can be pulled, except where the name says otherwise: a repository path that contains `missing` does
not exist, one with `denied` needs credentials that nobody has, one with `slow-N` takes N seconds.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Final

from trio_kubelet.cri.errors import CRIError, NotFound, Unknown
from trio_kubelet.cri.proto import api_pb2 as cri

_SLOW: Final = re.compile(r"slow-(\d+(?:\.\d+)?)")
_DOMAIN: Final = "docker.io"


def full_reference(name: str) -> str:
    """An image name with registry and tag, as containerd keeps it: `nginx` is
    `docker.io/library/nginx:latest`.
    """
    first, slash, _ = name.partition("/")
    if not slash:
        name = f"{_DOMAIN}/library/{name}"
    elif not ("." in first or ":" in first or first == "localhost"):
        name = f"{_DOMAIN}/{name}"
    last = name.rpartition("/")[2]
    return name if ":" in last or "@" in last else f"{name}:latest"


def _digest(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def make_image(reference: str, pinned: bool = False) -> cri.Image:
    """What a pull of a full reference leaves on the node."""
    name = reference.partition("@")[0]
    repository = name.rpartition(":")[0] if ":" in name.rpartition("/")[2] else name
    digest = reference.partition("@")[2] or _digest("manifest " + reference)
    image = cri.Image(
        id=_digest("config " + digest),
        repo_tags=[] if "@" in reference else [reference],
        repo_digests=[f"{repository}@{digest}"],
        size=1_000_000 + int(digest[-6:], 16),
        pinned=pinned,
    )
    image.uid.value = 0
    return image


class ImageStore:
    """The images on the simulated node."""

    def __init__(self, initial: Iterator[str] | tuple[str, ...] = (), pinned: tuple[str, ...] = ()) -> None:
        self._by_id: dict[str, cri.Image] = {}
        for name in initial:
            self._add(make_image(full_reference(name)))
        for name in pinned:
            self._add(make_image(full_reference(name), pinned=True))

    def _add(self, image: cri.Image) -> None:
        known = self._by_id.setdefault(image.id, image)
        for tag in image.repo_tags:
            if tag not in known.repo_tags:
                known.repo_tags.append(tag)

    def find(self, name: str) -> cri.Image | None:
        """The image of an id, tag or digest reference, or None."""
        if name in self._by_id:
            return self._by_id[name]
        if not name:
            return None
        if re.fullmatch(r"[0-9a-f]{64}", name):
            return self._by_id.get("sha256:" + name)
        reference = full_reference(name)
        return next((i for i in self if reference in i.repo_tags or reference in i.repo_digests), None)

    def __iter__(self) -> Iterator[cri.Image]:
        return iter(self._by_id.values())

    def pull_seconds(self, name: str) -> float:
        """How long a pull takes."""
        match = _SLOW.search(name)
        return float(match[1]) if match else 0.0

    def pull(self, name: str) -> str:
        """Pulls an image and returns its id; raises as containerd does for one that cannot be had."""
        if not name or name != name.strip() or any(c.isspace() for c in name):
            raise Unknown(f'failed to parse image reference "{name}": invalid reference format')
        reference = full_reference(name)
        if problem := _refusal(reference):
            raise problem
        image = make_image(reference)
        self._add(image)
        return image.id

    def remove(self, name: str) -> None:
        """Removes an image with all its names; nothing happens if there is none."""
        if (image := self.find(name)) is not None:
            del self._by_id[image.id]

    def used_bytes(self) -> int:
        """What all images take on disk."""
        return sum(image.size for image in self)


def _refusal(reference: str) -> CRIError | None:
    prefix = f'failed to pull and unpack image "{reference}": '
    if "missing" in reference:
        return NotFound(f'{prefix}failed to resolve reference "{reference}": {reference}: not found')
    if "denied" in reference:
        return Unknown(
            f'{prefix}failed to resolve reference "{reference}": pull access denied, repository does not '
            "exist or may require authorization: server message: insufficient_scope: authorization failed"
        )
    return None
