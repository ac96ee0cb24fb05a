"""An image registry on loopback for tests of real pulls: the read side of the OCI distribution protocol.

It serves the images of an OCI archive under their names without `localhost/`; containerd speaks plain HTTP to
a loopback address by itself. What was asked for and what was served is kept; a repository can be told to fail
or to want a login.
"""

from __future__ import annotations

import base64
import io
import json
import re
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"


class Registry:
    """Images by repository and tag, and the failures a test asks for. `address` is `127.0.0.1:PORT`."""

    def __init__(self, archive: bytes) -> None:
        self.address = ""
        self.requests: list[str] = []
        self.served: list[str] = []
        """Paths of the requests that got an image's manifest or blob."""
        self.failing: dict[str, int] = {}
        """Repository -> HTTP status it answers with instead."""
        self.private: dict[str, str] = {}
        """Repository -> `user:password` without which it says 401."""
        self.stalling: set[str] = set()
        """Repositories of which no blob is sent to its end before `go_on` is set."""
        self.go_on = threading.Event()
        self._blobs: dict[str, bytes] = {}
        self._tags: dict[tuple[str, str], str] = {}
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            files = {m.name: handle.read() for m in tar if (handle := tar.extractfile(m)) is not None}
        for name, data in files.items():
            if name.startswith("blobs/sha256/"):
                self._blobs["sha256:" + name.rpartition("/")[2]] = data
        for entry in json.loads(files["index.json"])["manifests"]:
            name = entry["annotations"]["io.containerd.image.name"].removeprefix("localhost/")
            repository, _, tag = name.partition(":")
            self._tags[repository, tag] = entry["digest"]

    def reference(self, name: str) -> str:
        """What a manifest names to pull `name` (such as `busybox:1`) from here."""
        return f"{self.address}/{name}"

    def stalls(self, path: str) -> bool:
        """Whether the answer to this is not sent to its end."""
        return "/blobs/" in path and any(path.startswith(f"/v2/{each}/") for each in self.stalling)

    def answer(self, path: str, authorization: str = "") -> tuple[int, str, bytes, str]:
        """Status, content type, body and digest for a GET or HEAD."""
        self.requests.append(path)
        if path.rstrip("/") == "/v2":
            return 200, "application/json", b"{}", ""
        match = re.fullmatch(r"/v2/(.+)/(manifests|blobs)/([^/]+)", path.partition("?")[0])
        if match is None:
            return 404, "text/plain", b"", ""
        repository, kind, name = match.groups()
        if repository in self.failing:
            return self.failing[repository], "text/plain", b"asked to fail", ""
        if repository in self.private:
            wanted = "Basic " + base64.b64encode(self.private[repository].encode()).decode()
            if authorization != wanted:
                return 401, "application/json", b'{"errors": [{"code": "UNAUTHORIZED"}]}', ""
        digest = self._tags.get((repository, name), name)
        if digest not in self._blobs:
            return 404, "text/plain", b"", ""
        self.served.append(path)
        return (
            200,
            _MANIFEST if kind == "manifests" else "application/octet-stream",
            self._blobs[digest],
            digest,
        )


@contextmanager
def running_registry(archive: bytes) -> Iterator[Registry]:
    """Serve the images of `archive` on a free loopback port for the length of the block."""
    registry = Registry(archive)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._reply(with_body=True)

        def do_HEAD(self) -> None:
            self._reply(with_body=False)

        def _reply(self, with_body: bool) -> None:
            authorization = self.headers.get("Authorization", "")
            status, content_type, body, digest = registry.answer(self.path, authorization)
            self.send_response(status)
            if status == 401:
                self.send_header("WWW-Authenticate", 'Basic realm="tests"')
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            if digest:
                self.send_header("Docker-Content-Digest", digest)
            self.end_headers()
            if with_body and registry.stalls(self.path):
                self.wfile.write(body[: len(body) // 2])
                registry.go_on.wait()
                self.close_connection = True
            elif with_body:
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: `requests` has it."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        registry.address = f"127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield registry
        finally:
            registry.go_on.set()
            server.shutdown()
            thread.join()
