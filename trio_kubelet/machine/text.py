"""Numbers out of the kernel's text files. Pure; what is not a number in range counts as not there."""

from __future__ import annotations

from trio_kubelet.machine.values import MAX, DeviceIO, DiskIO, Interface


def number(text: bytes | None) -> int | None:
    """A file that holds one number; `max` is the largest there is."""
    if not text:
        return None
    try:
        value = int(text)
    except ValueError:
        return MAX if text.strip() == b"max" else None
    return None if value < 0 else min(value, MAX)


def field(text: bytes, name: bytes) -> int:
    """The number behind `name` in a file of `name number` lines; 0 if there is none.

    A search rather than a split into a dictionary: a `memory.stat` has 40 lines, of which 8 are wanted.
    """
    start = 0 if text.startswith(name + b" ") else text.find(b"\n" + name + b" ") + 1
    if not start and not text.startswith(name + b" "):
        return 0
    start += len(name) + 1
    end = text.find(b"\n", start)
    return number(text[start : end if end >= 0 else len(text)]) or 0


_V1_FIGURES = {b"Read": 0, b"Write": 1}


def disk_io_v1(service_bytes: bytes | None, serviced: bytes | None) -> tuple[DiskIO, ...]:
    """Per device, from the files of the blkio controller (`254:0 Read 4096` each)."""
    found: dict[bytes, list[int]] = {}
    others: dict[bytes, list[tuple[str, int]]] = {}
    for first, text in ((0, service_bytes), (2, serviced)):
        for line in (text or b"").split(b"\n"):
            words = line.split()
            if len(words) != 3:
                continue
            count = number(words[2]) or 0
            if (figure := _V1_FIGURES.get(words[1])) is not None:
                found.setdefault(words[0], [0, 0, 0, 0])[first + figure] = count
            elif first == 0:
                others.setdefault(words[0], []).append((words[1].decode("ascii", "replace"), count))
    return tuple(
        DiskIO(device.decode("ascii", "replace"), read, written, reads, writes, tuple(others.get(device, ())))
        for device, (read, written, reads, writes) in found.items()
    )


_V2_KEYS = (b"rbytes", b"wbytes", b"rios", b"wios")  # in the order of a DiskIO


def disk_io_v2(text: bytes | None) -> tuple[DiskIO, ...]:
    """Per device, from `io.stat` (`254:0 rbytes=4096 wbytes=0 rios=1 …`)."""
    found = []
    for line in (text or b"").splitlines():
        device, *words = line.split() or [b""]
        values = {
            key: number(value) or 0
            for key, _, value in (word.partition(b"=") for word in words)
            if key in _V2_KEYS
        }
        if values:
            read_bytes, write_bytes, reads, writes = (values.get(key, 0) for key in _V2_KEYS)
            found.append(DiskIO(device.decode("ascii", "replace"), read_bytes, write_bytes, reads, writes))
    return tuple(found)


def device_io(listing: bytes | None, device: str) -> DeviceIO | None:
    """The line of a `/proc/diskstats` for a device named `major:minor`."""
    for line in (listing or b"").splitlines():
        words = line.split()
        if len(words) >= 14 and b":".join(words[:2]) == device.encode():
            counts = [number(word) or 0 for word in words[3:14]]
            return DeviceIO(**dict(zip(DeviceIO.__struct_fields__, counts, strict=True)))
    return None


_IGNORED = (b"lo", b"veth", b"docker", b"nerdctl")


def interfaces(text: bytes | None) -> tuple[Interface, ...]:
    """A `/proc/PID/net/dev`: all but loopback and the host's ends of containers' links (cAdvisor's rule)."""
    found = []
    for line in (text or b"").split(b"\n")[2:]:
        name, _, rest = line.partition(b":")
        name, words = name.strip(), rest.split()
        if len(words) < 12 or name.lower().startswith(_IGNORED):
            continue
        counts = [number(word) for word in (*words[:4], *words[8:12])]
        found.append(Interface(name.decode("utf-8", "replace"), *counts))
    return tuple(found)
