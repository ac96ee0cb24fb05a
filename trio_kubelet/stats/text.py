"""Numbers out of the kernel's text files. Pure; what is not a number in range counts as not there."""

from __future__ import annotations

from trio_kubelet.stats.values import (
    MAX,
    NO_PRESSURES,
    DeviceIO,
    DiskIO,
    Interface,
    Pressure,
    Pressures,
)


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


def pressures(text: bytes | None) -> Pressures:
    """A `*.pressure` file; zeros where a line is missing or makes no sense."""
    if not text:
        return NO_PRESSURES
    found: dict[bytes, Pressure] = {}
    for line in text.splitlines():
        kind, *words = line.split() or [b""]
        if kind in (b"full", b"some"):
            found[kind] = _pressure(words)
    return Pressures(found.get(b"full", Pressure()), found.get(b"some", Pressure()))


def _pressure(words: list[bytes]) -> Pressure:
    values = dict(word.partition(b"=")[::2] for word in words)
    return Pressure(
        number(values.get(b"total")) or 0,
        _percent(values.get(b"avg10")),
        _percent(values.get(b"avg60")),
        _percent(values.get(b"avg300")),
    )


def _percent(text: bytes | None) -> int | float:
    try:
        value = float(text or b"0")
    except ValueError:
        return 0
    if not 0 <= value <= 100:  # also not a number at all
        return 0
    return int(value) if value.is_integer() else value


def lines_of(text: bytes | None) -> int:
    """How many entries a file of one per line has (`cgroup.procs`)."""
    return text.count(b"\n") if text else 0


def disk_io_v1(service_bytes: bytes | None, serviced: bytes | None) -> tuple[DiskIO, ...]:
    """Per device, from the files of the blkio controller (`254:0 Read 4096` each)."""
    found: dict[str, dict[str, int]] = {}
    for suffix, text in (("_bytes", service_bytes), ("s", serviced)):
        for line in (text or b"").splitlines():
            words = line.split()
            if len(words) == 3 and words[1] in (b"Read", b"Write"):
                key = words[1].decode().lower() + suffix
                found.setdefault(words[0].decode("ascii", "replace"), {})[key] = number(words[2]) or 0
    return tuple(DiskIO(device, **values) for device, values in found.items())


_V2_KEYS = {b"rbytes": "read_bytes", b"wbytes": "write_bytes", b"rios": "reads", b"wios": "writes"}


def disk_io_v2(text: bytes | None) -> tuple[DiskIO, ...]:
    """Per device, from `io.stat` (`254:0 rbytes=4096 wbytes=0 rios=1 …`)."""
    found = []
    for line in (text or b"").splitlines():
        device, *words = line.split() or [b""]
        values = {
            _V2_KEYS[key]: number(value) or 0
            for key, _, value in (word.partition(b"=") for word in words)
            if key in _V2_KEYS
        }
        if values:
            found.append(DiskIO(device.decode("ascii", "replace"), **values))
    return tuple(found)


def device_io(listing: bytes | None, device: str) -> DeviceIO | None:
    """The line of a `/proc/diskstats` for a device named `major:minor`."""
    for line in (listing or b"").splitlines():
        words = line.split()
        if len(words) >= 14 and b":".join(words[:2]) == device.encode():
            counts = [number(word) or 0 for word in words[3:14]]
            return DeviceIO(**dict(zip(DeviceIO.__struct_fields__, counts, strict=True)))
    return None


_IGNORED = ("lo", "veth", "docker", "nerdctl")


def interfaces(text: bytes | None) -> tuple[Interface, ...]:
    """A `/proc/PID/net/dev`: all but loopback and the host's ends of containers' links (cAdvisor's rule)."""
    found = []
    for line in (text or b"").decode("utf-8", "replace").splitlines()[2:]:
        name, _, rest = line.partition(":")
        name, words = name.strip(), rest.split()
        if len(words) < 12 or name.lower().startswith(_IGNORED):
            continue
        counts = [number(word.encode()) for word in words]
        found.append(
            Interface(
                name=name,
                rx_bytes=counts[0],
                rx_packets=counts[1],
                rx_errors=counts[2],
                rx_dropped=counts[3],
                tx_bytes=counts[8],
                tx_packets=counts[9],
                tx_errors=counts[10],
                tx_dropped=counts[11],
            )
        )
    return tuple(found)
