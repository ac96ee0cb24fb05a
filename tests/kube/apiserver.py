"""An API server for tests: HTTP, TLS and WebSockets on Trio, over `store` and with faults on demand.

`APIServer.handle` answers a request without any socket, so `door.SimulatedDoor` can stand in for the network;
`serving` puts it on a real port. What it does follows the real server where a node agent could tell.
"""

from __future__ import annotations

import base64
import ssl
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import parse_qs

import msgspec
import trio
import wsproto
import wsproto.events as ws
from cryptography import x509
from cryptography.x509.oid import NameOID

from tests.kube.certs import CA
from tests.kube.quick_server import serve_quickly
from tests.kube.store import KINDS, Refused, Selector, Store, Tree, encode, list_object, selector
from tests.kube.watching import Watch, WatchRequest
from trio_kubelet.api.timestamps import rfc3339
from trio_kubelet.common.clock import NANOSECONDS, Clock, TrioClock
from trio_kubelet.server.http.messages import Hijack, Request, Response, json_body

PATCH_TYPES = {
    "application/strategic-merge-patch+json": True,
    "application/merge-patch+json": False,
}


class User(NamedTuple):
    """Who a request comes from."""

    name: str
    groups: tuple[str, ...] = ("system:authenticated",)
    uid: str = ""


class Route(NamedTuple):
    """A request's path, taken apart."""

    resource: str
    namespace: str
    name: str
    subresource: str


class APIServer:
    """The server. Its attributes are the switches of a test."""

    def __init__(self, store: Store | None = None, clock: Clock | None = None) -> None:
        self.store = store or Store(clock)
        self.clock: Clock = clock or TrioClock(1_763_700_000 * NANOSECONDS)
        self.requests: list[Request] = []
        # Behaviour
        self.bookmark_period = 60.0
        self.watch_list = "supported"
        self.websocket = True
        self.expired_as_status = False
        self.auto_sign: CA | None = None
        # Who may do what
        self.authenticate = False
        self.tokens: dict[str, User] = {}
        self.allow: Callable[[User, str, Route], bool] = lambda user, verb, route: True
        self.review: Callable[[Tree], bool] = lambda attributes: True
        # Faults
        self.down = False
        self.silent = False
        self.latency = 0.0
        self.lose_answers = False
        self.refuse: Callable[[Request], Refused | None] = lambda request: None
        self.watches: set[Watch] = set()
        self._pages: dict[str, tuple[int, list[Tree], int]] = {}

    # --- faults ------------------------------------------------------------------------------------

    def break_watches(self) -> None:
        """Every open watch loses its connection."""
        for watch in list(self.watches):
            watch.disrupt()

    def end_watches(self) -> None:
        """Every open watch ends in good order, as when the server is stopped with grace."""
        for watch in list(self.watches):
            watch.ended = True
        self.store.advance(0)

    # --- requests ----------------------------------------------------------------------------------

    async def handle(self, request: Request) -> Response | Hijack:
        """Answers one request."""
        self.requests.append(request)
        try:
            if self.down:
                raise trio.BrokenResourceError("the test server is down")
            if self.latency:
                await trio.sleep(self.latency)
            if refusal := self.refuse(request):
                raise refusal
            user = self._user(request)
            route = parse_path(request.path)
            if route is None:
                return self._other(request)
            verb = _verb(request, route)
            if not self.allow(user, verb, route):
                message = f'{route.resource} "{route.name}" is forbidden: User "{user.name}" cannot {verb}'
                raise Refused(403, "Forbidden", message)
            if verb == "watch":
                return self._watch(request, route)
            status, thing = self._answer(request, route, verb)
            if self.lose_answers:
                raise trio.BrokenResourceError("the test server loses its answer")
            return json_body(encode(thing), status)
        except Refused as exc:
            return _refusal(exc)

    def _user(self, request: Request) -> User:
        if not self.authenticate:
            return User("test")
        if request.peer_certificate:
            subject = x509.load_der_x509_certificate(request.peer_certificate).subject
            names = [str(a.value) for a in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
            groups = [str(a.value) for a in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)]
            return User(names[0], (*groups, "system:authenticated"))
        scheme, _, token = (request.header("authorization") or "").partition(" ")
        user = self.tokens.get(token) if scheme == "Bearer" else None
        if user is None:
            raise Refused(401, "Unauthorized", "Unauthorized")
        return user

    def _other(self, request: Request) -> Response:
        if request.path in ("/healthz", "/livez", "/readyz"):
            return Response(body=b"ok")
        if request.path == "/version":
            return json_body(encode({"major": "1", "minor": "36", "gitVersion": "v1.36.2"}))
        group_version = request.path.removeprefix("/apis/")
        served = [{"name": name} for name, kind in KINDS.items() if kind.group_version == group_version]
        if served:
            return json_body(encode({"kind": "APIResourceList", "resources": served}))
        if request.method == "POST" and request.path.endswith("/tokenreviews"):
            return json_body(encode(self._token_review(msgspec.json.decode(request.body))), 201)
        if request.method == "POST" and request.path.endswith("/subjectaccessreviews"):
            review = msgspec.json.decode(request.body)
            review["status"] = {"allowed": self.review(review["spec"])}
            return json_body(encode(review), 201)
        raise Refused(404, "NotFound", "the server could not find the requested resource")

    def _answer(self, request: Request, route: Route, verb: str) -> tuple[int, Tree]:
        resource, namespace, name, subresource = route
        store = self.store
        body: Tree = msgspec.json.decode(request.body) if request.body else {}
        match verb:
            case "get":
                return 200, store.get(resource, namespace, name)
            case "list":
                return 200, self._list(request, route)
            case "create" if subresource == "token":
                return 201, self._token(namespace, name, body)
            case "create":
                created = store.create(resource, namespace, body)
                return 201, self._signed(created) if resource == "certificatesigningrequests" else created
            case "update":
                return 200, store.update(resource, namespace, name, body, subresource)
            case "patch":
                kind = (request.header("content-type") or "").partition(";")[0]
                if kind not in PATCH_TYPES:
                    raise Refused(415, "UnsupportedMediaType", f"the patch type {kind} is not supported")
                return 200, store.patch(resource, namespace, name, body, PATCH_TYPES[kind], subresource)
            case "delete" if not name:
                return 200, self._delete_all(request, route)
            case "delete":
                return 200, store.delete(resource, namespace, name, body)
        raise Refused(405, "MethodNotAllowed", "the server does not allow this method")

    # --- lists and watches -------------------------------------------------------------------------

    def _list(self, request: Request, route: Route) -> Tree:
        version, asked = self.store.version, request.first("resourceVersion")
        if asked and int(asked) > version:
            message = f"Too large resource version: {asked}, current: {version}"
            raise Refused(504, "Timeout", message, retry_after=1)
        token, start = request.first("continue"), 0
        if token:
            version, items, start = self._pages.get(token, (0, [], 0))
            if version < max(self.store.compacted, 1):
                raise Refused(410, "Expired", "The provided continue parameter is too old")
        else:
            items = self.store.list(_selector(request, route))
        limit = int(request.first("limit") or 0) or len(items)
        metadata: Tree = {"resourceVersion": str(version)}
        if len(items) > start + limit:
            token = base64.b64encode(uuid.uuid4().bytes).decode()
            self._pages[token] = (version, items, start + limit)
            metadata |= {"continue": token, "remainingItemCount": len(items) - start - limit}
        return list_object(route.resource, items[start : start + limit], metadata)

    def open_watch(self, request: Request, route: Route) -> Watch:
        """The watch a request asks for; raises Refused. The caller takes it out of `watches` at its end."""
        watch = Watch(self.store, _selector(request, route), WatchRequest(request.query, self), self)
        if watch.ended and self.expired_as_status:
            raise Refused(410, "Expired", "too old resource version")
        self.watches.add(watch)
        return watch

    def _watch(self, request: Request, route: Route) -> Response | Hijack:
        if (request.header("upgrade") or "").lower() == "websocket":
            if not self.websocket or request.header("origin") is None:
                return Response(status=403, body=b"")
            watch = self.open_watch(request, route)

            async def take(stream: trio.abc.Stream, already: bytes) -> None:
                try:
                    await _speak_websocket(stream, already, request, watch, self)
                finally:
                    self.watches.discard(watch)

            return Hijack(take)
        return Response(
            headers=(("Content-Type", "application/json"),), body=self._lines(self.open_watch(request, route))
        )

    async def _lines(self, watch: Watch) -> AsyncIterator[bytes]:
        try:
            while (event := await watch.next_event()) is not None:
                yield event + b"\n"
        finally:
            self.watches.discard(watch)

    # --- what is no plain object -------------------------------------------------------------------

    def _delete_all(self, request: Request, route: Route) -> Tree:
        """Everything that the selector fits (`deletecollection`)."""
        found = self.store.list(_selector(request, route))
        for thing in found:
            self.store.delete(route.resource, route.namespace, thing["metadata"]["name"])
        return list_object(route.resource, found, {})

    def _token(self, namespace: str, name: str, body: Tree) -> Tree:
        """A TokenRequest, bound to a pod."""
        spec = body.get("spec") or {}
        seconds = int(spec.get("expirationSeconds") or 3600)
        if seconds < 600:
            raise Refused(422, "Invalid", "may not specify a duration less than 10 minutes")
        self.store.get("serviceaccounts", namespace, name)
        bound = spec.get("boundObjectRef")
        if bound:
            pod = self.store.get("pods", namespace, bound["name"])
            if bound.get("uid") and bound["uid"] != pod["metadata"]["uid"]:
                raise Refused(409, "Conflict", "the UID in the bound object reference does not match")
        token = f"token-{namespace}-{name}-{uuid.uuid4().hex}"
        self.tokens[token] = User(f"system:serviceaccount:{namespace}:{name}", ("system:serviceaccounts",))
        expires = rfc3339(self.clock.now_ns() + seconds * NANOSECONDS)
        return body | {"status": {"token": token, "expirationTimestamp": expires}}

    def _token_review(self, review: Tree) -> Tree:
        user = self.tokens.get(review["spec"]["token"])
        if user is None:
            return review | {"status": {"authenticated": False, "error": "invalid bearer token"}}
        about = {"username": user.name, "uid": user.uid, "groups": list(user.groups)}
        return review | {"status": {"authenticated": True, "user": about}}

    def _signed(self, request: Tree) -> Tree:
        """Approves and signs a certificate signing request at once, if a test wants that."""
        if self.auto_sign is None:
            return request
        return self.sign(request["metadata"]["name"], self.auto_sign)

    def sign(self, name: str, ca: CA) -> Tree:
        """What an approver and the signer do for a CertificateSigningRequest."""
        spec = self.store.get("certificatesigningrequests", "", name)["spec"]
        certificate = ca.sign_request(base64.b64decode(spec["request"]))
        status: dict[str, Any] = {
            "certificate": base64.b64encode(certificate).decode(),
            "conditions": [{"type": "Approved", "status": "True", "reason": "AutoApproved"}],
        }
        return self.store.set_status("certificatesigningrequests", "", name, **status)


def parse_path(path: str) -> Route | None:
    """Resource, namespace, name and subresource of a path; None for what is no resource of the store."""
    parts = path.strip("/").split("/")
    if parts[:2] == ["api", "v1"]:
        group, rest = "v1", parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, rest = f"{parts[1]}/{parts[2]}", parts[3:]
    else:
        return None
    namespace = ""
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    rest += [""] * (3 - len(rest))
    kind = KINDS.get(rest[0])
    if kind is None or kind.group_version != group:
        return None
    return Route(rest[0], namespace, rest[1], "/".join(filter(None, rest[2:])))


def _verb(request: Request, route: Route) -> str:
    if request.method == "GET":
        if route.name:
            return "get"
        return "watch" if request.first("watch") in ("1", "true") else "list"
    verbs = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
    return verbs.get(request.method, request.method)


def _selector(request: Request, route: Route) -> Selector:
    fields, labels = request.first("fieldSelector"), request.first("labelSelector")
    return selector(route.resource, route.namespace, fields, labels)


def _refusal(error: Refused) -> Response:
    answer = json_body(encode(error.status), error.code)
    seconds = error.status["details"].get("retryAfterSeconds")
    extra = (("Retry-After", str(seconds)),) if seconds else ()
    return Response(status=error.code, headers=(*answer.headers, *extra), body=answer.body)


async def _speak_websocket(
    stream: trio.abc.Stream, already: bytes, request: Request, watch: Watch, server: APIServer
) -> None:
    """The server's side of a WebSocket: events out, pings answered, until one side ends it."""
    connection = wsproto.WSConnection(wsproto.ConnectionType.SERVER)
    headers = [(key.encode(), value.encode("latin-1")) for key, value in request.headers]
    connection.initiate_upgrade_connection(headers, request.target)
    await stream.send_all(connection.send(ws.AcceptConnection()))
    connection.receive_data(already)

    async def listen() -> None:
        while True:
            for event in connection.events():
                if isinstance(event, ws.Ping) and not server.silent:
                    await send(event.response())
                elif isinstance(event, ws.CloseConnection):
                    watch.ended = True
                    nursery.cancel_scope.cancel()
                    return
            data = await stream.receive_some(65536)
            if not data:
                nursery.cancel_scope.cancel()
                return
            connection.receive_data(bytes(data))

    lock = trio.Lock()

    async def send(event: ws.Event) -> None:
        async with lock:
            await stream.send_all(connection.send(event))

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen)
            while (event := await watch.next_event()) is not None:
                await send(ws.TextMessage(data=event.decode()))
            await send(ws.CloseConnection(code=1000))
            nursery.cancel_scope.cancel()
    except* (trio.BrokenResourceError, trio.ClosedResourceError):
        pass


@asynccontextmanager
async def serving(
    server: APIServer, tls: ssl.SSLContext | None = None, port: int = 0, host: str = "127.0.0.1"
) -> AsyncIterator[str]:
    """Serves on a port, of the loopback interface by default; gives the URL. Leaving stops it, connections
    included.
    """
    listeners = await trio.open_tcp_listeners(port, host=host)
    port = listeners[0].socket.getsockname()[1]
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_quickly, listeners, server.handle, tls)
        try:
            yield f"{'https' if tls else 'http'}://{host}:{port}"
        finally:
            nursery.cancel_scope.cancel()


def request_of(
    method: str, path: str, query: str = "", body: bytes = b"", headers: Mapping[str, str] | None = None
) -> Request:
    """A Request without a connection."""
    return Request(
        method=method, path=path, target=f"{path}?{query}", query=parse_qs(query, keep_blank_values=True),
        headers=tuple((k.lower(), v) for k, v in (headers or {}).items()), body=body,
    )  # fmt: skip
