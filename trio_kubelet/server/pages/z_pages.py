"""`/flagz` and `/statusz`: how this agent was started and since when it runs, as text or as an object.

Text is for people; the kubelet makes up its separators anew each time, so that nobody takes it apart.
"""

from __future__ import annotations

import datetime
import json
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from trio_kubelet.common.clock import NANOSECONDS, Clock
from trio_kubelet.server.http.messages import Handler, Hijack, Request, Response, text
from trio_kubelet.server.http.negotiation import GROUP, MEDIA, TEXT, YAML, Form, error_form, page_form

COMPONENT: Final = "kubelet"
OLD: Final = "v1alpha1"
# What clients look for to recognise the page.
_HEAD: Final = """
{component} {page}
Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees \
and is for debugging purposes only.
"""


def flagz(flags: Callable[[], Mapping[str, str]]) -> Handler:
    """All flags with their values; bytes of the command line that are no UTF-8 become U+FFFD."""

    def shown() -> dict[str, str]:
        given = flags().items()
        return {
            name: value.encode(errors="surrogateescape").decode(errors="replace") for name, value in given
        }

    def lines() -> str:
        return "".join(f"{name}={value}\n" for name, value in shown().items())

    return _z_page("flagz", lines, lambda: {"flags": shown()})


def statusz(clock: Clock, version: str, began_ns: int, paths: Sequence[str]) -> Handler:
    """Since when this agent runs, which kubelet it stands for, and under which paths there is more."""
    number = version.removeprefix("v")

    def fields() -> dict[str, Any]:
        began = datetime.datetime.fromtimestamp(began_ns // NANOSECONDS, datetime.UTC)
        return {
            "startTime": f"{began:%Y-%m-%dT%H:%M:%SZ}",
            "uptimeSeconds": max(0, clock.now_ns() - began_ns) // NANOSECONDS,
            "goVersion": f"python{platform.python_version()}",
            "binaryVersion": number,
            "emulationVersion": number.rpartition(".")[0],
            "paths": folders(paths),
        }

    def lines() -> str:
        shown = fields()
        seconds = shown["uptimeSeconds"]
        began = datetime.datetime.fromisoformat(shown["startTime"])
        return (
            f"\nStarted: {began:%a %b %e %H:%M:%S UTC %Y}\n"
            f"Up: {seconds // 3600} hr {seconds // 60 % 60:02d} min {seconds % 60:02d} sec\n"
            f"Go version: {shown['goVersion']}\n"
            f"Binary version: {shown['binaryVersion']}\n"
            f"Emulation version: {shown['emulationVersion']}\n"
            f"Paths: {' '.join(shown['paths'])}\n"
        )

    return _z_page("statusz", lines, fields)


def folders(paths: Iterable[str]) -> list[str]:
    """The first part of each path, once."""
    return sorted({f"/{first}" for path in paths if (first := path.split("/")[1])})


def _z_page(name: str, lines: Callable[[], str], fields: Callable[[], Mapping[str, Any]]) -> Handler:
    kind = name.capitalize()

    async def page(request: Request) -> Response | Hijack:
        form = page_form(request, kind)
        if form is None:
            return not_acceptable(request)
        if form.media == TEXT:
            return text(200, _HEAD.format(component=COMPONENT, page=name) + lines())
        shown = {
            "kind": kind,
            "apiVersion": f"{GROUP}/{form.version}",
            "metadata": {"name": COMPONENT},
            **fields(),
        }
        headers = [("Content-Type", f"{form.media};g={GROUP};v={form.version};as={kind}")]
        if form.version == OLD:
            said = f"This version of the {name} endpoint is deprecated. Please use a newer version."
            headers.append(("Warning", f'299 - "{said}"'))
        return Response(headers=headers, body=encoded(shown, form))

    return page


def not_acceptable(request: Request) -> Response:
    """No form of the page is what the client accepts."""
    status = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": f"only the following media types are accepted: {', '.join(MEDIA)}",
        "reason": "NotAcceptable",
        "code": 406,
    }
    form = error_form(request)
    return Response(status=406, headers=(("Content-Type", form.media),), body=encoded(status, form))


def encoded(shown: Mapping[str, Any], form: Form) -> bytes:
    """An object as Go's encoders write it."""
    if form.media == YAML:
        from trio_kubelet.api.yaml_writer import yaml_bytes  # seldom asked for

        return yaml_bytes(shown)
    written = (
        json.dumps(shown, ensure_ascii=False, indent=2)
        if form.pretty
        else json.dumps(shown, ensure_ascii=False, separators=(",", ":")) + "\n"
    )
    for character in "<>&\u2028\u2029":
        written = written.replace(character, f"\\u{ord(character):04x}")
    return written.encode()
