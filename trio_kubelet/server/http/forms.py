"""Forms as Go's `net/http` reads them, with its words for what is wrong (`Request.ParseForm`)."""

from __future__ import annotations

import re
from typing import Final

from trio_kubelet.common.http_syntax import TOKEN
from trio_kubelet.server.http.messages import Request, parse_query

_WITH_FORM: Final = ("POST", "PUT", "PATCH")
_URL_ENCODED: Final = "application/x-www-form-urlencoded"
_MEDIA: Final = re.compile(f"(?P<kind>{TOKEN})?(?P<slash>/)?(?P<subkind>{TOKEN})?(?P<rest>.*)", re.DOTALL)
_QUOTED: Final = r'"(?:[^"\\]|\\.)*"'
_PARAMETER: Final = re.compile(rf"\s*;\s*{TOKEN}\s*=\s*(?:{TOKEN}|{_QUOTED})", re.DOTALL)


class BadForm(Exception):
    """A form cannot be read; the text is Go's."""


def read_form(request: Request) -> dict[str, list[str]]:
    """The fields of the body, then those of the query. Raises BadForm."""
    found, fault = parse_query(request.target.partition("?")[2])
    if request.method in _WITH_FORM:
        media, media_fault = _media_type(request.header("content-type") or "application/octet-stream")
        body = request.body.decode("utf-8", "replace") if media == _URL_ENCODED else ""
        posted, body_fault = parse_query(body)
        fault = media_fault or body_fault or fault
        found = {name: posted.get(name, []) + found.get(name, []) for name in (posted | found)}
    if fault:
        raise BadForm(fault)
    return found


def _media_type(header: str) -> tuple[str, str]:
    """The media type without parameters, and what is wrong with the header (`mime.ParseMediaType`)."""
    base = header.partition(";")[0]
    match = _MEDIA.fullmatch(base.strip())
    assert match is not None  # all of it may be missing
    if not match["kind"]:
        return "", "mime: no media type"
    if not match["slash"] and match["rest"]:
        return "", "mime: expected slash after first token"
    if match["slash"] and not match["subkind"]:
        return "", "mime: expected token after slash"
    if match["rest"]:
        return "", "mime: unexpected content after media subtype"
    at = len(base)
    while parameter := _PARAMETER.match(header, at):
        at = parameter.end()
    fault = "" if header[at:].strip() in ("", ";") else "mime: invalid media parameter"
    return base.strip().lower(), fault
