"""List answers like a real node's, for the relist benchmarks.

Shaped after what containerd sends for pods of a kubelet: five containers a pod, hex ids, the kubelet's
labels and annotations in an order that differs from entry to entry (Go's map order). 2,000 pods make about
8.7 MB. Written by hand, field by field, so that 100,000 containers are there in seconds.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

RUNNING, EXITED = 1, 2
CONTAINERS_PER_POD = 5
_CREATED_AT = 1_763_700_000_000_000_000
_NAMES = ("app", "proxy", "metrics", "log-shipper", "config-reload")
_IMAGES = tuple(f"registry.example/{name}@sha256:" for name in _NAMES)


def varint(value: int) -> bytes:
    """A protobuf varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number: int, payload: bytes | str) -> bytes:
    """A length-delimited protobuf field."""
    data = payload.encode() if isinstance(payload, str) else payload
    return varint(number << 3 | 2) + varint(len(data)) + data


def number_field(number: int, value: int) -> bytes:
    """A varint field."""
    return varint(number << 3) + varint(value)


def _map(number: int, pairs: dict[str, str], rng: random.Random) -> bytes:
    entries = [field(number, field(1, key) + field(2, value)) for key, value in pairs.items()]
    rng.shuffle(entries)
    return b"".join(entries)


@dataclass(frozen=True, slots=True)
class Item:
    """One entry: the bytes before and behind its state, so that churn is cheap to make."""

    head: bytes
    state_field: int
    state: int
    tail: bytes

    def encode(self) -> bytes:
        return field(1, self.head + number_field(self.state_field, self.state) + self.tail)


@dataclass(frozen=True, slots=True)
class Node:
    """What a runtime would list."""

    sandboxes: tuple[Item, ...]
    containers: tuple[Item, ...]

    def encode(self) -> tuple[bytes, bytes]:
        """The answers of ListPodSandbox and ListContainers."""
        return (
            b"".join(item.encode() for item in self.sandboxes),
            b"".join(item.encode() for item in self.containers),
        )

    def churned(self, share: float, seed: int = 1) -> Node:
        """The same node after a share of its containers has died or come back."""
        rng = random.Random(seed)
        chosen = set(rng.sample(range(len(self.containers)), round(share * len(self.containers))))
        return replace(
            self,
            containers=tuple(
                replace(item, state=EXITED if item.state == RUNNING else RUNNING) if i in chosen else item
                for i, item in enumerate(self.containers)
            ),
        )

    def shuffled(self, seed: int = 1) -> Node:
        """The same node listed in another order."""
        rng = random.Random(seed)
        return Node(
            tuple(rng.sample(self.sandboxes, len(self.sandboxes))),
            tuple(rng.sample(self.containers, len(self.containers))),
        )


def node(containers: int, seed: int = 0) -> Node:
    """A node with that many containers, all running."""
    rng = random.Random(seed)
    sandboxes: list[Item] = []
    listed: list[Item] = []
    digests = [f"{rng.getrandbits(256):064x}" for _ in _NAMES]
    for number in range(-(-containers // CONTAINERS_PER_POD)):
        uid = f"{rng.getrandbits(128):032x}"
        uid = f"{uid[:8]}-{uid[8:12]}-{uid[12:16]}-{uid[16:20]}-{uid[20:]}"
        name, namespace = f"service-{number:05d}-{rng.getrandbits(32):08x}", f"team-{number % 40}"
        labels = {
            "io.kubernetes.pod.name": name,
            "io.kubernetes.pod.namespace": namespace,
            "io.kubernetes.pod.uid": uid,
        }
        sandbox_id = f"{rng.getrandbits(256):064x}"
        created_at = _CREATED_AT + number * 1_000_003
        sandboxes.append(_sandbox(sandbox_id, created_at, labels, rng))
        for i in range(min(CONTAINERS_PER_POD, containers - number * CONTAINERS_PER_POD)):
            listed.append(_container(sandbox_id, created_at + i + 1, i, digests[i], labels, rng))
    return Node(tuple(sandboxes), tuple(listed))


def _sandbox(sandbox_id: str, created_at: int, labels: dict[str, str], rng: random.Random) -> Item:
    name, namespace, uid = labels.values()
    app = {"app.kubernetes.io/name": name[:13], "pod-template-hash": name[-8:], **labels}
    annotations = {
        "kubernetes.io/config.seen": "2026-11-21T08:00:00.123456789Z",
        "kubernetes.io/config.source": "api",
    }
    return Item(
        head=field(1, sandbox_id) + field(2, field(1, name) + field(2, uid) + field(3, namespace)),
        state_field=3,
        state=0,
        tail=number_field(4, created_at) + _map(5, app, rng) + _map(6, annotations, rng),
    )


def _container(
    sandbox_id: str, created_at: int, i: int, digest: str, labels: dict[str, str], rng: random.Random
) -> Item:
    image = f"sha256:{digest}"
    annotations = {
        "io.kubernetes.container.hash": digest[:8],  # a function of name and image, as the kubelet's
        "io.kubernetes.container.restartCount": "0",
        "io.kubernetes.container.terminationMessagePath": "/dev/termination-log",
        "io.kubernetes.container.terminationMessagePolicy": "File",
        "io.kubernetes.pod.terminationGracePeriod": "30",
    }
    return Item(
        head=field(1, f"{rng.getrandbits(256):064x}")
        + field(2, sandbox_id)
        + field(3, field(1, _NAMES[i]))
        + field(4, field(1, image))
        + field(5, _IMAGES[i] + digest),
        state_field=6,
        state=RUNNING,
        tail=number_field(7, created_at)
        + _map(8, {"io.kubernetes.container.name": _NAMES[i], **labels}, rng)
        + _map(9, annotations, rng),
    )
