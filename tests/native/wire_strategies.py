"""List answers for property tests: plausible ones, odd but legal ones, and broken ones."""

from __future__ import annotations

from hypothesis import strategies as st


def varint(value: int, pad: int = 0) -> bytes:
    """A varint, with `pad` needless bytes behind it where ten bytes allow that."""
    out = bytearray()
    value &= (1 << 64) - 1
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    for _ in range(pad if len(out) < 9 else 0):
        out[-1] |= 0x80
        out.append(0)
    return bytes(out)


def length_field(number: int, payload: bytes | str) -> bytes:
    data = payload.encode() if isinstance(payload, str) else payload
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint_field(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def map_field(number: int, key: str, value: str) -> bytes:
    return length_field(number, length_field(1, key) + length_field(2, value))


UIDS = st.sampled_from(["", "u1", "u2", "u3", "0123456789" * 5, "ü"])
IDS = st.sampled_from(["", "a", "b", "c" * 64, "c" * 63 + "d", "e" * 65, "e" * 64 + "f", "é"])
NAMES = st.sampled_from(["", "web", "db", "näme"])
NUMBERS = st.one_of(
    st.integers(0, 5), st.sampled_from([127, 128, (1 << 32) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
)
TIMES = st.one_of(
    st.integers(0, 3), st.sampled_from([(1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1763700000000000000])
)


@st.composite
def unknown_fields(draw: st.DrawFn) -> bytes:
    """Fields no list message has, well-formed: other numbers, or known numbers in another wire type."""
    number = draw(st.sampled_from([1, 2, 3, 6, 8, 11, 15, 16, 1000, (1 << 29) - 1]))
    kind = draw(st.integers(0, 4))
    if kind == 0:
        return varint(number % 1000 + 100 << 3) + varint(draw(NUMBERS), draw(st.integers(0, 1)))
    if kind == 1:
        return varint(number << 3 | 1) + draw(st.binary(min_size=8, max_size=8))
    if kind == 2:
        return varint(number << 3 | 5) + draw(st.binary(min_size=4, max_size=4))
    if kind == 3:
        return length_field(number % 1000 + 100, draw(st.binary(max_size=8)))
    inner = draw(st.sampled_from([b"", b"\x08\x01", b"\x0a\x02\xff\xff", b"\x13\x14"]))
    return varint(number << 3 | 3) + inner + varint(number << 3 | 4)


@st.composite
def _message(draw: st.DrawFn, fields: list[bytes]) -> bytes:
    """The fields as a serialiser writes them, or in any order, doubled, dropped and with others between."""
    if draw(st.booleans()):
        return b"".join(fields)
    if not fields:
        return draw(unknown_fields())
    parts = draw(st.lists(st.one_of(st.sampled_from(fields), unknown_fields()), max_size=len(fields) + 3))
    return b"".join(parts)


@st.composite
def map_fields(draw: st.DrawFn, number: int, key: str, value: str) -> bytes:
    entry = draw(_message([length_field(1, key), length_field(2, value)]))
    return length_field(number, entry)


@st.composite
def containers(draw: st.DrawFn) -> bytes:
    """A Container message."""
    uid = draw(UIDS)
    image = draw(_message([length_field(1, draw(NAMES)), map_field(2, "k", "v"), length_field(18, "é")]))
    fields = [
        length_field(1, draw(IDS)),
        length_field(2, draw(IDS)),
        length_field(3, draw(_message([length_field(1, draw(NAMES)), varint_field(2, draw(NUMBERS))]))),
        length_field(4, image),
        length_field(5, draw(NAMES)),
        varint_field(6, draw(NUMBERS)),
        varint_field(7, draw(TIMES)),
        draw(map_fields(8, "io.kubernetes.pod.uid", uid)),
        draw(map_fields(8, "io.kubernetes.pod.name", draw(NAMES))),
        draw(map_fields(8, "io.kubernetes.pod.namespace", draw(NAMES))),
        draw(map_fields(9, "io.kubernetes.container.hash", draw(NAMES))),
        draw(map_fields(9, "ä", "x" * draw(st.sampled_from([0, 1, 200])))),
        length_field(10, draw(NAMES)),
    ]
    if not draw(st.booleans()):
        del fields[draw(st.integers(0, len(fields) - 1))]
    return draw(_message(fields))


@st.composite
def sandboxes(draw: st.DrawFn) -> bytes:
    """A PodSandbox message."""
    metadata = [
        length_field(1, draw(NAMES)),
        length_field(2, draw(UIDS)),
        length_field(3, draw(NAMES)),
        varint_field(4, draw(NUMBERS)),
    ]
    fields = [
        length_field(1, draw(IDS)),
        length_field(2, draw(_message(metadata))),
        varint_field(3, draw(NUMBERS)),
        varint_field(4, draw(TIMES)),
        draw(map_fields(5, "l", draw(NAMES))),
        draw(map_fields(6, "a", draw(NAMES))),
        length_field(7, draw(NAMES)),
    ]
    if not draw(st.booleans()):
        del fields[draw(st.integers(0, len(fields) - 1))]
    return draw(_message(fields))


@st.composite
def _list(draw: st.DrawFn, entries: st.SearchStrategy[bytes]) -> bytes:
    parts = draw(st.lists(entries, max_size=6))
    out = b"".join(length_field(1, part) for part in parts)
    if draw(st.booleans()):
        out += draw(unknown_fields())
    return out


@st.composite
def _damaged(draw: st.DrawFn, lists: st.SearchStrategy[bytes]) -> bytes:
    data = bytearray(draw(lists))
    for _ in range(draw(st.integers(0, 3))):
        if not data:
            break
        at = draw(st.integers(0, len(data) - 1))
        match draw(st.integers(0, 3)):
            case 0:
                data[at] = draw(st.integers(0, 255))
            case 1:
                del data[at:]
            case 2:
                data[at:at] = draw(st.binary(max_size=4))
            case _:
                del data[at]
    return bytes(data)


sandbox_lists = _list(sandboxes())
container_lists = _list(containers())
damaged_sandbox_lists = _damaged(sandbox_lists)
damaged_container_lists = _damaged(container_lists)
