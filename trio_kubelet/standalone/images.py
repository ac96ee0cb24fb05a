"""The images of a private node, made on the spot: no registry is needed.

Everything is an OCI image archive written with `tarfile`. Equal input gives equal bytes (fixed times, owners
and order), so an image keeps its ID between runs and importing it again changes nothing.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from trio_kubelet.common.lanes import STANDALONE
from trio_kubelet.config.version import go_architecture
from trio_kubelet.standalone.run import command

PAUSE_IMAGE = "localhost/pause:1"
BUSYBOX_IMAGE = "localhost/busybox:1"
WEB_IMAGE = "localhost/web:1"
NONROOT_IMAGE = "localhost/nonroot:1"
REFERENCES = (PAUSE_IMAGE, BUSYBOX_IMAGE, WEB_IMAGE, NONROOT_IMAGE)

_PAUSE_SOURCE = r"""
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void leave(int number) { _exit(number == SIGINT ? 1 : 0); }
static void reap(int number) { (void)number; while (waitpid(-1, 0, WNOHANG) > 0) {} }

/* Holds a sandbox's namespaces open, and reaps orphans when the pod shares its process namespace. */
int main(void) {
    struct sigaction action = {.sa_handler = leave};
    sigaction(SIGINT, &action, 0);
    sigaction(SIGTERM, &action, 0);
    action.sa_handler = reap;
    action.sa_flags = SA_NOCLDSTOP;
    sigaction(SIGCHLD, &action, 0);
    for (;;) pause();
}
"""

_PASSWD = "root:x:0:0:root:/root:/bin/sh\nweb:x:1000:1000:web:/home:/bin/sh\n"
_GROUP = "root:x:0:\nweb:x:1000:\n"
_INDEX_PAGE = "<!doctype html><title>trio-kubelet</title><p>Served from a pod.</p>\n"

_OCI = "application/vnd.oci.image"


@dataclass(frozen=True)
class File:
    """A regular file of a layer, or with `link` a symbolic link."""

    data: bytes = b""
    mode: int = 0o644
    link: str = ""


@dataclass(frozen=True)
class Image:
    """One image: its reference, file tree (directories end in `/`), and the OCI image spec's `config`."""

    reference: str
    files: Mapping[str, File]
    config: Mapping[str, object] = field(default_factory=dict)


def layer(files: Mapping[str, File]) -> bytes:
    """An uncompressed layer. Parent directories come before their children, everything belongs to root."""
    entries = dict(files)
    for name in files:
        for parent in list(Path(name.rstrip("/")).parents)[:-1]:
            entries.setdefault(f"{parent}/", File(mode=0o755))
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in sorted(entries):
            entry = entries[name]
            info = tarfile.TarInfo(name.rstrip("/"))
            info.mode = entry.mode
            if name.endswith("/"):
                info.type = tarfile.DIRTYPE
            elif entry.link:
                info.type, info.linkname, info.mode = tarfile.SYMTYPE, entry.link, 0o777
            else:
                info.size = len(entry.data)
            archive.addfile(info, io.BytesIO(entry.data))
    return out.getvalue()


def archive(images: Sequence[Image], machine: str) -> bytes:
    """One OCI archive with all `images` for a `uname -m` machine; equal layers are stored once."""
    blobs: dict[str, bytes] = {}

    def store(data: bytes, media_type: str) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = data
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}

    platform_ = {"architecture": go_architecture(machine), "os": "linux"}
    manifests = []
    for image in images:
        content = store(layer(image.files), f"{_OCI}.layer.v1.tar")
        config = {
            **platform_,
            "config": dict(image.config),
            "rootfs": {"type": "layers", "diff_ids": [content["digest"]]},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": f"{_OCI}.manifest.v1+json",
            "config": store(_json(config), f"{_OCI}.config.v1+json"),
            "layers": [content],
        }
        entry = store(_json(manifest), f"{_OCI}.manifest.v1+json")
        tag = image.reference.rpartition(":")[2]
        annotations = {"io.containerd.image.name": image.reference, "org.opencontainers.image.ref.name": tag}
        manifests.append({**entry, "annotations": annotations, "platform": platform_})
    index = {"schemaVersion": 2, "mediaType": f"{_OCI}.index.v1+json", "manifests": manifests}
    return layer(
        {
            "oci-layout": File(_json({"imageLayoutVersion": "1.0.0"})),
            "index.json": File(_json(index)),
            **{name: File(data) for name, data in blobs.items()},
        }
    )


def local_images(busybox: bytes, applets: Sequence[str], pause: bytes) -> list[Image]:
    """The images every private node has: pause, busybox, a web server on port 8080, one that is not root."""
    tree: dict[str, File] = {
        "bin/busybox": File(busybox, 0o755),
        "etc/passwd": File(_PASSWD.encode()),
        "etc/group": File(_GROUP.encode()),
        "home/": File(mode=0o777),
        "root/": File(mode=0o700),
        "tmp/": File(mode=0o1777),
        "www/index.html": File(_INDEX_PAGE.encode()),
    }
    for applet in applets:
        tree.setdefault(f"bin/{applet}", File(link="busybox"))
    environment = ["PATH=/bin"]
    return [
        Image(PAUSE_IMAGE, {"pause": File(pause, 0o755)}, {"Entrypoint": ["/pause"]}),
        Image(BUSYBOX_IMAGE, tree, {"Env": environment, "Cmd": ["sh"]}),
        Image(
            WEB_IMAGE,
            tree,
            {
                "Env": environment,
                "Cmd": ["httpd", "-f", "-v", "-p", "8080", "-h", "/www"],
                "WorkingDir": "/www",
            },
        ),
        Image(NONROOT_IMAGE, tree, {"Env": environment, "Cmd": ["id"], "User": "1000:1000"}),
    ]


async def build_pause() -> bytes:
    """Compile the pause program. CommandFailed when there is no C compiler or no static libc."""
    with tempfile.TemporaryDirectory(prefix="pause-") as scratch:
        out = trio.Path(scratch) / "pause"
        flags = ["-x", "c", "-Os", "-static", "-s", "-o", str(out), "-"]
        await command(["gcc", *flags], seconds=60, stdin=_PAUSE_SOURCE.encode())
        return await out.read_bytes()


async def build_local_archive(busybox: Path) -> bytes:
    """The archive of `local_images` for this machine, from its own busybox and C compiler."""
    applets = (await command([str(busybox), "--list"], seconds=20)).split()
    pause = await build_pause()

    def pack() -> bytes:
        return archive(local_images(busybox.read_bytes(), applets, pause), platform.machine())

    return await STANDALONE.run(pack)


async def import_archive(ctr: Path, socket: Path, path: Path, snapshotter: str) -> None:
    """Load an archive into containerd's Kubernetes namespace and unpack it. CommandFailed if it refuses."""
    words = ["-a", str(socket), "-n", "k8s.io", "images", "import", "--snapshotter", snapshotter, str(path)]
    await command([str(ctr), *words], seconds=120)


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
