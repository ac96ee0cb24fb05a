"""Image archives: valid OCI layouts, and the same bytes for the same input."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.standalone.images import REFERENCES, File, Image, archive, layer, local_images

names = st.from_regex(r"[a-c]{1,2}(/[a-c]{1,2}){0,2}", fullmatch=True)


def read(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {
            member.name: (handle.read() if (handle := tar.extractfile(member)) else b"")
            for member in tar.getmembers()
        }


def test_an_archive_holds_what_its_digests_say() -> None:
    images = local_images(b"busybox", ["sh", "httpd", "busybox"], b"pause")
    data = archive(images, "x86_64")
    content = read(data)
    for name, blob in content.items():
        if name.startswith("blobs/sha256/"):
            assert name.rpartition("/")[2] == hashlib.sha256(blob).hexdigest()
    assert json.loads(content["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    index = json.loads(content["index.json"])
    assert [each["annotations"]["io.containerd.image.name"] for each in index["manifests"]] == list(
        REFERENCES
    )

    def blob_of(descriptor: dict[str, Any]) -> bytes:
        blob = content["blobs/sha256/" + descriptor["digest"].removeprefix("sha256:")]
        assert len(blob) == descriptor["size"]
        return blob

    for entry in index["manifests"]:
        manifest = json.loads(blob_of(entry))
        config = json.loads(blob_of(manifest["config"]))
        assert config["architecture"] == "amd64"
        assert config["rootfs"]["diff_ids"] == [each["digest"] for each in manifest["layers"]]
        assert read(blob_of(manifest["layers"][0]))


def test_equal_layers_are_stored_once() -> None:
    tree = {"a": File(b"x" * 100_000)}
    one, two = (
        archive([Image(f"r:{n}", tree, {"User": str(n)}) for n in range(count)], "x") for count in (1, 2)
    )
    assert len(two) - len(one) < 20_000


def test_busybox_stays_a_file_and_applets_are_links() -> None:
    image = local_images(b"ELF", ["sh", "busybox"], b"")[1]
    with tarfile.open(fileobj=io.BytesIO(layer(image.files))) as tar:
        busybox, shell, scratch = (tar.getmember(name) for name in ("bin/busybox", "bin/sh", "tmp"))
    assert (busybox.isreg(), busybox.mode) == (True, 0o755)
    assert (shell.issym(), shell.linkname) == (True, "busybox")
    assert (scratch.isdir(), scratch.mode) == (True, 0o1777)


@given(st.dictionaries(names, st.binary(max_size=20), max_size=6), st.randoms())
def test_order_of_files_does_not_matter_and_parents_come_first(files: dict[str, bytes], random: Any) -> None:
    leaves = {n: d for n, d in files.items() if not any(other.startswith(f"{n}/") for other in files)}
    shuffled = list(leaves.items())
    random.shuffle(shuffled)
    data = layer({name: File(content) for name, content in shuffled})
    assert data == layer({name: File(content) for name, content in sorted(leaves.items())})
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        seen: set[str] = set()
        for member in tar.getmembers():
            parent = member.name.rpartition("/")[0]
            assert not parent or parent in seen
            seen.add(member.name)
            assert (member.mtime, member.uid, member.gid) == (0, 0, 0)
    assert {n: d for n, d in read(data).items() if n in leaves} == leaves
