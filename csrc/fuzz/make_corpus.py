"""Writes the seed corpus of the fuzz targets: entries and lists like a node's, and each legal oddity.

usage: make_corpus.py DIRECTORY (run from the project's root)
"""

from __future__ import annotations

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from bench.lists import Item, field, node, number_field

ODD = {
    "group": b"\x0b\x08\x01\x0c",
    "fixed64": b"\x61" + bytes(8),
    "fixed32": b"\x65" + bytes(4),
    "unknown": field(200, b"\xff\xfe"),
    "later-fields": field(11, "x") + number_field(12, 300) + field(11, b"\xff"),
    "wrong-type": number_field(1, 5),
    "long-varint": b"\x30\x81\x80\x80\x80\x80\x80\x80\x80\x80\x00",
    "negative": b"\x38" + b"\xff" * 9 + b"\x01",
    "not-ascii": field(8, field(1, "ä") + field(2, "ö")),
    "not-utf8": field(8, field(1, b"\xff") + field(2, b"")),
    "no-value": field(8, field(1, "io.kubernetes.pod.uid")),
    "value-first": field(8, field(2, "u") + field(1, "io.kubernetes.pod.uid")),
    "two-uids": field(8, field(1, "io.kubernetes.pod.uid") + field(2, "u"))
    + field(8, field(1, "io.kubernetes.pod.uid") + field(2, "v")),
    "metadata-twice": field(3, field(1, "a")) + field(3, b""),
    "image-more": field(4, field(1, "i") + field(18, "u") + field(19, "h") + field(20, "r")),
    "long-value": field(9, field(1, "k") + field(2, "x" * 300)),
}


def message(item: Item) -> bytes:
    return item.head + number_field(item.state_field, item.state) + item.tail


def write(directory: pathlib.Path, name: str, data: bytes) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / name).write_bytes(data)


def step(operation: int, sandboxes: bytes, containers: bytes) -> bytes:
    """A step of fuzz_relist.c."""
    return (
        bytes([operation])
        + len(sandboxes).to_bytes(2, "little")
        + sandboxes
        + len(containers).to_bytes(2, "little")
        + containers
    )


def small(entry_id: str, uid: str, state: int) -> bytes:
    """A container small enough for the fuzzer to play with."""
    return field(
        1,
        field(1, entry_id)
        + field(3, b"")
        + field(4, b"")
        + number_field(6, state)
        + number_field(7, 5)
        + field(8, field(1, "io.kubernetes.pod.uid") + field(2, uid)),
    )


def small_sandbox(entry_id: str, uid: str, state: int) -> bytes:
    return field(1, field(1, entry_id) + field(2, field(2, uid)) + number_field(3, state))


def operation(kind: int, how: int, *rest: int) -> bytes:
    """A step of fuzz_repeats.c."""
    return bytes([kind | how << 4, *rest])


def write_repeats(directory: pathlib.Path) -> None:
    """Lives of repeated calls."""
    learn, sent = operation(8, 0), operation(7, 15)
    add, many = operation(0, 3, 0, 80, 40, 0), operation(1, 14, 0, 8, 40, 0)
    turn, later = operation(4, 15, 0), operation(4, 15, 80)
    begun = learn + sent + add + turn + sent
    for how in range(16):
        write(directory, f"answer-{how}", begun + operation(9, how, 1) + operation(9, 0, 0) + later)
        write(directory, f"answers-{how}", learn + sent + many + turn + sent + operation(11, how) + later)
    frames = {
        "reset": (3, 0, 1, 0, 0, 0, 7),
        "refused-settings": (0x84, 0, 0, 4, 0x80, 0, 0, 0),
        "few": (0x84, 0, 0, 3, 0, 0, 0, 2),
        "small-window": (0x84, 0, 0, 4, 0, 0, 0, 2),
        "ping": (0x86, 0, *b"12345678"),
        "going-away": (0x87, 0, 0, 0, 0, 3, 0, 0, 0, 0),
        "window": (0x88, 0, 0, 1, 0, 0),
        "push": (5, 4, 0, 0, 0, 0, 0),
        "priority": (2, 0, 0, 0, 0, 0, 0, 0),
    }
    for name, (kind, flags, *rest) in frames.items():
        size = len(rest) - (kind < 0x80)
        said = operation(12, size, kind, flags, *rest)
        write(directory, name, begun + said + operation(9, 0, 1) + later + sent + add + later)
    write(directory, "raw", begun + operation(14, 9, 0, 0, 0, 4, 1, 0, 0, 0, 0) + operation(9, 0, 0))
    write(directory, "lost", begun + operation(3, 0) + add + turn + operation(3, 1) + sent + add + turn)
    write(directory, "stopped", begun + operation(2, 0, 0) + operation(9, 0, 0) + operation(2, 1, 0) + add)
    for what in range(4):
        flood = operation(15, what, 255)
        write(directory, f"flood-{what}", begun + flood * 4 + add + later + flood * 8 + later)
    ping, settings = operation(12, 8, *frames["ping"]), operation(15, 0, 255)
    # There is room for one more acknowledgement, and none for the answer of the ping.
    full = settings * 3 + operation(15, 0, 145)
    write(directory, "full", learn + sent + ping + full + add + later)
    # More than there is room for in the first window.
    large = learn + sent + operation(1, 2, 0, 8, 40, 255) + turn + operation(15, 3, 1)
    write(directory, "large", large + later + operation(11, 0) + later)


def main(root: pathlib.Path) -> None:
    example = node(5)
    container, sandbox = message(example.containers[0]), message(example.sandboxes[0])
    write(root / "fuzz_entry", "container", b"\x01" + container)
    write(root / "fuzz_entry", "sandbox", b"\x00" + sandbox)
    plain = field(1, "c") + field(3, b"") + field(4, b"")
    for name, odd in ODD.items():
        write(root / "fuzz_entry", name, b"\x01" + plain + odd)
        write(root / "fuzz_entry", f"sandbox-{name}", b"\x00" + odd)
    sandboxes = small_sandbox("s", "u", 0) + small_sandbox("t", "v", 1)
    running = small("a", "u", 1) + small("b", "v", 1) + small("a", "v", 1)
    exited = small("a", "u", 2) + small("c", "v", 0) + small("a", "v", 1) + small("a", "v", 2)
    life = (
        step(4, sandboxes, running)
        + bytes([2 | 1 << 3])
        + step(4, sandboxes, exited)
        + bytes([2 | 2 << 3])
        + step(0 | 1 << 3, b"", small("a", "u", 1))
        + step(4, b"", b"")
        + bytes([2 | 1 << 3, 2 | 2 << 3])
    )
    write(root / "fuzz_relist", "life", life)
    write(root / "fuzz_relist", "memory", b"\x01\x09" + step(4, sandboxes, running)[1:] + life)
    write(root / "fuzz_relist", "broken", step(4, sandboxes, running) + step(4, sandboxes, exited[:-1]))
    for name, odd in ODD.items():
        entry = field(1, plain + odd)
        write(root / "fuzz_relist", name, step(4, sandboxes, entry) + step(4, sandboxes, running + entry))
    write(root / "fuzz_hash", "plain", b"\x03webnginx")
    write(root / "fuzz_hash", "odd", '\x05<&>"\\\b\f\n\r\t\x01\u2028\u2029\ufffd\U0001f600'.encode())
    write(root / "fuzz_hash", "broken", b"\x02\xc0\x80\xed\xa0\x80\xf4\x90\x80\x80\xe2\x80")
    lines = [
        b"2016-10-06T00:17:09.669794202Z stdout F one\n",
        b"2016-10-06T00:17:10.5Z stderr F two\n",
        b"2016-02-29T23:59:59+11:30 stdout P thr\n",
        b"2016-10-06T00:17:11-00:00 stdout P:x \n",
        b"2016-10-06T00:17:11Z stdout  ee\n",
    ]
    for name, head in {"all": b"\x0f\0\0\xff\xff\x40", "few": b"\x1b\x01\x05\x03\x14\0"}.items():
        write(root / "fuzz_crilog", name, head + b"".join(lines))
        write(root / "fuzz_crilog", f"{name}-odd", head + lines[0] + b"2016-10-06 x\n" + lines[1])
        write(root / "fuzz_crilog", f"{name}-cut", head + lines[0] + lines[2][:-1])
    pressure = b"some avg10=1.50 avg60=0.00 total=800\nfull avg10=0.00 total=18446744073709551616\n"
    for kind in range(64):
        write(root / "fuzz_figures", f"pressure-{kind}", bytes([kind]) + pressure)
        write(root / "fuzz_figures", f"fields-{kind}", bytes([kind]) + b"aa 1\nab 3\na max\n")
    write_repeats(root / "fuzz_repeats")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
