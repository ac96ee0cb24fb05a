"""Which handler answers a path: the two layers a kubelet has, because clients see the difference.

The outer layer is Go's `http.ServeMux`: patterns that end in `/` hold everything below them, an unclean path
is redirected, and what matches nothing is a 404 that nobody has to authenticate for. Behind a pattern stands
either one handler for every method, or a `WebService` of routes with path parameters, which tells 404, 405
and 406 apart in go-restful's words. Whatever the outer layer found passes the guard before anything is said.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from urllib.parse import quote, unquote, unquote_to_bytes

import msgspec

from trio_kubelet.server.http.messages import Handler, Hijack, Request, Response, not_found, raw_path, text

Guard = Callable[[Request], Awaitable[Request | Response]]
"""Decides before a handler runs: a response ends it, else the handler gets the request that is returned."""
Around = Callable[[str, Handler], Handler]
"""Makes of a route's handler what is called in its place once the guard has let a request through. Routes
are named as go-restful does: `/pods/`, `/exec/{podNamespace}/{podID}/{containerName}`.
"""

JSON = ("application/json",)
_VALID = re.compile(r"[A-Za-z0-9\-_.~!$&'()*+,;=:@\[\]%/]*")


class Route(msgspec.Struct, frozen=True):
    """One method and path below a service's root: `/{podNamespace}/{podID}`, the last part may be `{name:*}`.

    The handler finds the values in `Request.params`.
    """

    method: str
    path: str
    handler: Handler


class WebService(msgspec.Struct, frozen=True):
    """Routes with a common root; `produces` are the media types a client's Accept has to allow for."""

    root: str
    routes: Sequence[Route]
    produces: Sequence[str] = ()


class Router:
    """Services and plain handlers behind one guard; itself a handler."""

    def __init__(self, guard: Guard | None = None, around: Around | None = None) -> None:
        self._guard = guard
        self._around = around
        self._patterns: dict[str, Handler] = {}
        self._services: set[str] = set()

    def handle(self, pattern: str, handler: Handler) -> None:
        """`handler` answers every method on `pattern`, and all paths below it if it ends in `/`."""
        self._patterns[pattern] = self._placed(pattern, handler)

    def handled(self) -> list[str]:
        """The patterns of plain handlers, services left out."""
        return [pattern for pattern in self._patterns if pattern not in self._services]

    def add(self, service: WebService) -> None:
        """The routes of `service` answer on its root and below."""
        root = service.root.rstrip("/")
        handlers = {
            route: self._placed(f"{root}/{route.path.lstrip('/')}", route.handler) for route in service.routes
        }

        async def dispatch(request: Request) -> Response | Hijack:
            found = select(service, request.method, request.path, request.header("accept") or "*/*")
            if isinstance(found, Response):
                return found
            route, params = found
            return await handlers[route](msgspec.structs.replace(request, params=params))

        roots = {service.root, service.root.rstrip("/") + "/"}
        self._services |= roots
        self._patterns |= dict.fromkeys(roots, dispatch)

    def _placed(self, route: str, handler: Handler) -> Handler:
        return handler if self._around is None else self._around(route, handler)

    async def __call__(self, request: Request) -> Response | Hijack:
        pattern = find_pattern(self._patterns, request)
        if isinstance(pattern, Response):
            return pattern
        if self._guard is not None:
            passed = await self._guard(request)
            if isinstance(passed, Response):
                return passed
            request = passed
        return await self._patterns[pattern](request)


def find_pattern(patterns: Mapping[str, Handler], request: Request) -> str | Response:
    """The pattern a request belongs to, or the answer if there is none (Go's `http.ServeMux`).

    Paths are cleaned before they are decoded, and decoded part by part: an encoded dot or slash separates
    nothing.
    """
    if request.target == "*":  # the server itself
        return Response(status=200 if request.method == "OPTIONS" else 400)
    path = escaped_path(request.target)
    clean = clean_path(path)
    parts = [unquote(part) for part in clean.split("/")]
    names = {pattern: pattern.split("/") for pattern in patterns}
    if parts not in names.values() and [*parts, ""] in names.values():
        return _redirect(clean + "/", request)
    if clean != path:
        return _redirect(clean, request)
    fitting = [pattern for pattern, wanted in names.items() if parts == wanted or _is_below(parts, wanted)]
    return max(fitting, key=len) if fitting else not_found()


def _is_below(parts: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether a pattern ends in a slash and has the path, in parts, below it."""
    return wanted[-1] == "" and len(parts) >= len(wanted) and parts[: len(wanted) - 1] == wanted[:-1]


def escaped_path(target: str) -> str:
    """The path of a request as it was sent, or encoded anew if it holds what may not stand in a path."""
    raw = raw_path(target)
    return raw if _VALID.fullmatch(raw) else quote(unquote_to_bytes(raw), safe="/$&+,:;=@~")


def clean_path(path: str) -> str:
    """The path without `.`, `..` and doubled slashes; a slash at the end stays."""
    clean = "/" + posixpath.normpath("/" + path).lstrip("/")
    return clean + "/" if path.endswith("/") and clean != "/" else clean


def _redirect(path: str, request: Request) -> Response:
    """Sends the client to another path, which is encoded."""
    query = request.target.partition("?")[2]
    place = f"{path}?{query}" if query else path
    headers = [("Location", place)]
    if request.method not in ("GET", "HEAD"):
        return Response(status=307, headers=headers)
    headers.append(("Content-Type", "text/html; charset=utf-8"))
    shown = place.replace("&", "&amp;").replace('"', "&#34;").replace("'", "&#39;")
    return Response(
        status=307, headers=headers, body=f'<a href="{shown}">Temporary Redirect</a>.\n\n'.encode()
    )


def select(
    service: WebService, method: str, path: str, accept: str
) -> tuple[Route, dict[str, str]] | Response:
    """The route for a request with its path parameters, or go-restful's refusal."""
    matching = [
        (route, params)
        for route in service.routes
        if (params := match(service.root.rstrip("/") + route.path, path)) is not None
    ]
    if not matching:
        return text(404, "404: Page Not Found")
    allowed = [(route, params) for route, params in matching if route.method == method]
    if not allowed:
        methods = ", ".join(dict.fromkeys(route.method for route, _ in matching))
        return text(405, "405: Method Not Allowed", (("Allow", methods),))
    if not _acceptable(accept, service.produces or ("*/*",)):
        available = ", ".join(list(service.produces) * len(allowed))
        return text(406, f"406: Not Acceptable\n\nAvailable representations: {available}")
    return allowed[0]


def match(template: str, path: str) -> dict[str, str] | None:
    """The parameters of `path` by the names in `template`; None when it does not match."""
    wanted, given = template.strip("/").split("/"), path.strip("/").split("/")
    rest = wanted[-1].endswith(":*}")
    if len(given) < len(wanted) or (len(given) > len(wanted) and not rest):
        return None
    params: dict[str, str] = {}
    for index, (want, have) in enumerate(zip(wanted, given, strict=False)):
        if want.startswith("{"):
            is_rest = want.endswith(":*}")
            name = want[1:-1].removesuffix(":*")
            params[name] = "/".join(given[index:]) if is_rest else have
        elif want != have:
            return None
    return params


def _acceptable(accept: str, produces: Sequence[str]) -> bool:
    wanted = [part.partition(";")[0].strip(" ") for part in accept.split(",")]
    return "*/*" in wanted or "*/*" in produces or any(kind in produces for kind in wanted)
