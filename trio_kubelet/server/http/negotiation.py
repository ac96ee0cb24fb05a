"""Which form of a z-page a client gets: text, or a versioned object as JSON or YAML.

The Accept header is read as Kubernetes reads it everywhere: parameters may ask for an object of a certain
group, version and kind (`application/json;g=config.k8s.io;v=v1beta1;as=Flagz`). JSON and YAML are only there
for such objects; plain text only without.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from trio_kubelet.server.http.messages import Request

JSON: Final = "application/json"
YAML: Final = "application/yaml"
TEXT: Final = "text/plain"
MEDIA: Final = (JSON, YAML, TEXT)  # in the order in which a wildcard finds them
GROUP: Final = "config.k8s.io"
VERSIONS: Final = ("v1alpha1", "v1beta1")

_PEOPLE: Final = ("curl", "Wget", "Mozilla/5.0")  # user agents that get JSON with line breaks
_TRUE: Final = frozenset({"1", "t", "T", "true", "TRUE", "True"})


class Clause(NamedTuple):
    """One wish of an Accept header."""

    kind: str
    subkind: str
    quality: float
    params: Mapping[str, str]

    def matches(self, media: str) -> bool:
        """Whether this media type is meant."""
        kind, _, subkind = media.partition("/")
        if self.kind == "*":
            return self.subkind == "*"
        return self.kind == kind and self.subkind in (subkind, "*")


class Form(NamedTuple):
    """What is to be sent; `version` is empty for text and for errors."""

    media: str
    version: str = ""
    pretty: bool = False


def parse_accept(header: str) -> list[Clause]:
    """The wishes, best first; what is malformed is left out, a quality of 0 is merely the last."""
    clauses = [clause for part in header.split(",") if (clause := _clause(part)) is not None]
    clauses.sort(key=lambda clause: (-clause.quality, clause.kind == "*", clause.subkind == "*"))
    return clauses


def _clause(part: str) -> Clause | None:
    media, *rest = part.split(";")
    kind, _, subkind = (word.strip(" ") for word in media.partition("/"))
    if not subkind and kind == "*":
        subkind = "*"
    if not subkind or "/" in subkind:
        return None
    quality, params = 1.0, {}
    for item in rest:
        name, _, value = item.partition("=")
        if not value or "=" in value:
            continue
        if name.strip(" ") == "q":
            quality = _quality(value)
        else:
            params[name.strip(" ")] = value.strip(" ")
    return Clause(kind, subkind, quality, params)


def _quality(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def page_form(request: Request, kind: str) -> Form | None:
    """The form of the page whose object is a `kind`; None if the client accepts none there is."""
    accept = request.header("accept") or ""
    if not accept.strip():
        return Form(TEXT)
    for clause in parse_accept(accept):
        version = _version(clause.params, kind)
        if version is None or clause.params.get("sv") or clause.params.get("stream"):
            continue
        for media in MEDIA:
            if clause.matches(media) and (media == TEXT) == (not version):
                return Form(media, version, _is_pretty(request, clause.params))
    return None


def _version(params: Mapping[str, str], kind: str) -> str | None:
    """The version of the object that is asked for, empty for no object; None for one there is not."""
    if not {"g", "v", "as"} & params.keys():
        return ""
    version = params.get("v", "")
    known = (params.get("g"), params.get("as")) == (GROUP, kind) and version in VERSIONS
    return version if known else None


def error_form(request: Request) -> Form:
    """The form of an error: plain JSON or YAML where that is accepted, else JSON with line breaks."""
    for clause in parse_accept(request.header("accept") or ""):
        params = clause.params
        if {"g", "v", "as"} & params.keys() or params.get("sv"):
            continue
        for media in (JSON, YAML):
            streams = media == JSON and params.get("stream") == "watch"
            if clause.matches(media) and (streams or not params.get("stream")):
                return Form(media, "", _is_pretty(request, params))
    return Form(JSON, "", True)


def _is_pretty(request: Request, params: Mapping[str, str]) -> bool:
    if params.get("pretty") == "1":
        return True
    if wish := request.first("pretty"):
        return wish in _TRUE
    return (request.header("user-agent") or "").startswith(_PEOPLE)
