"""What a private node needs from the operating system, and how to get it on Debian.

The container runtime's helpers (runc, CNI plugins, a static busybox, a C compiler for the pause binary) are
ordinary packages and are installed. containerd itself is not: a private node must not start a system service,
and Debian 12's own containerd (1.6) is older than the runtime events this agent can use. Its package is
therefore only unpacked into a cache directory, and the suite it comes from may be newer than the machine:
the packages of Debian 13 and of unstable need nothing but a libc that Debian 12 already has.

No archive host is named here. The newer suite is looked up at the very archive this machine already uses: its
own apt sources are read, the suite is replaced, and everything happens in a private apt state directory, so
the machine's package lists and pins stay as they are.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import trio

from trio_kubelet.common.lanes import STANDALONE
from trio_kubelet.standalone.run import CommandFailed, command

CONTAINERD_SUITES = {"1.6": "bookworm", "1.7": "trixie", "2": "sid"}
"""Debian suite that carries each containerd series."""

DEFAULT_CONTAINERD = "1.7"

CNI_BIN_DIRS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))

_APT_SECONDS = 600.0
_TOOL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class PackagesUnavailable(Exception):
    """Something a private node needs is missing and could not be installed; the text says what and why."""


@dataclass(frozen=True)
class AptSource:
    """One archive out of the machine's apt configuration."""

    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]
    signed_by: str = ""


@dataclass(frozen=True)
class Containerd:
    """An unpacked or installed containerd: the directory of its binaries, its version, and the OCI runtime
    that was unpacked beside it or is to be used with it; None: the machine's runc.
    """

    bin_dir: Path
    version: tuple[int, int]
    oci_runtime: Path | None

    @property
    def daemon(self) -> Path:
        return self.bin_dir / "containerd"

    @property
    def ctr(self) -> Path:
        return self.bin_dir / "ctr"


# --- pure: the machine's apt sources -----------------------------------------------------------------------


def parse_one_line_sources(text: str) -> list[AptSource]:
    """Read the one-line format of sources.list(5): `deb [options] uri suite component…`."""
    found = []
    for line in text.splitlines():
        match = re.match(r"\s*deb\s+(?:\[(?P<options>[^\]]*)\]\s+)?(?P<rest>[^#]+)", line)
        if match is None:
            continue
        words = match["rest"].split()
        if len(words) < 2:
            continue
        options = dict(option.split("=", 1) for option in (match["options"] or "").split() if "=" in option)
        found.append(AptSource(words[0], (words[1],), tuple(words[2:]), options.get("signed-by", "")))
    return found


def parse_deb822_sources(text: str) -> list[AptSource]:
    """Read the deb822 format of sources.list(5), one archive a stanza; embedded keys are left out."""
    found = []
    for stanza in re.split(r"\n\s*\n", text):
        fields: dict[str, str] = {}
        name = ""
        for line in stanza.splitlines():
            if line.startswith("#"):
                continue
            if line[:1] in (" ", "\t") and name:
                fields[name] += " " + line.strip()
            elif ":" in line:
                name, _, value = line.partition(":")
                name = name.strip().lower()
                fields[name] = value.strip()
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() == "no":
            continue
        signed_by = fields.get("signed-by", "")
        for uri in fields.get("uris", "").split():
            found.append(
                AptSource(
                    uri,
                    tuple(fields.get("suites", "").split()),
                    tuple(fields.get("components", "").split()),
                    signed_by if signed_by.startswith("/") else "",
                )
            )
    return found


def derive_source(sources: Sequence[AptSource], codename: str, suite: str) -> str:
    """The sources.list line for `suite` at the archive that already serves this machine's `codename`.

    Raises PackagesUnavailable when no source carries the codename (not a Debian archive, or none at all).
    """
    for source in sources:
        if "main" in source.components and codename in source.suites:
            options = f"[signed-by={source.signed_by}] " if source.signed_by else ""
            return f"deb {options}{source.uri} {suite} main\n"
    raise PackagesUnavailable(f"no apt source of this machine carries {codename!r}: cannot look for {suite}")


def parse_containerd_version(text: str) -> tuple[int, int]:
    """Major and minor out of `containerd --version` or a package version; (0, 0) when there is none."""
    match = re.search(r"(?<![\w.])v?(\d+)\.(\d+)(?:\.\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def normalize_choice(choice: str) -> str:
    """The series for what a user typed: `1.7`, `1.7.24` and `v2.1` are accepted. ValueError otherwise."""
    major, _, rest = choice.strip().removeprefix("v").partition(".")
    series = "2" if major == "2" else f"{major}.{rest.partition('.')[0]}"
    if series not in CONTAINERD_SUITES:
        raise ValueError(f"containerd {choice!r}: choose one of {', '.join(CONTAINERD_SUITES)}")
    return series


def is_static_elf(data: bytes) -> bool:
    """Whether an ELF64 file asks for no program interpreter, so that it runs in an otherwise empty image."""
    if data[:5] != b"\x7fELF\x02":
        return False

    def number(offset: int, size: int) -> int:
        return int.from_bytes(data[offset : offset + size], "little" if data[5] == 1 else "big")

    table, entry_size, entries = number(32, 8), number(54, 2), number(56, 2)
    program_interpreter = 3
    return all(number(table + i * entry_size, 4) != program_interpreter for i in range(entries))


def missing_packages(exists: Callable[[str], bool], static_busybox: bool) -> list[str]:
    """Debian packages to install, given `exists(name_or_path)` for commands and files."""
    wanted = [
        ("runc", ("runc",)),
        ("containernetworking-plugins", tuple(str(d / "bridge") for d in CNI_BIN_DIRS)),
        ("iproute2", ("ip",)),
        ("mount", ("mount",)),
        ("gcc", ("gcc",)),
        ("libc6-dev", ("/usr/include/stdio.h",)),
    ]
    missing = [package for package, names in wanted if not any(exists(name) for name in names)]
    if not static_busybox:
        missing.append("busybox-static")
    return missing


# --- the machine ------------------------------------------------------------------------------------------


def find_tool(name: str) -> Path | None:
    """A command on the usual root PATH (an ordinary user's PATH often lacks the sbin directories)."""
    found = shutil.which(name, path=os.environ.get("PATH", "") + ":" + _TOOL_PATH)
    return Path(found) if found else None


def find_busybox() -> Path | None:
    """A statically linked busybox on this machine."""
    path = find_tool("busybox")
    if path is not None and is_static_elf(path.read_bytes()):
        return path
    return None


def cni_bin_dir() -> Path | None:
    """The directory that holds the CNI bridge and host-local plugins."""
    for directory in CNI_BIN_DIRS:
        if all((directory / plugin).exists() for plugin in ("bridge", "host-local", "loopback")):
            return directory
    return None


def cache_dir() -> Path:
    """Where unpacked packages are kept between runs (XDG base directories)."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "trio-kubelet"


def read_apt_sources(etc: Path = Path("/etc/apt")) -> list[AptSource]:
    """All archives of the machine's apt configuration, both formats."""
    found: list[AptSource] = []
    for path in [etc / "sources.list", *sorted((etc / "sources.list.d").glob("*"))]:
        if path.suffix == ".sources" and path.is_file():
            found += parse_deb822_sources(path.read_text())
        elif path.suffix == ".list" and path.is_file():
            found += parse_one_line_sources(path.read_text())
    return found


def os_codename() -> str:
    """VERSION_CODENAME of the operating system, or "" when it has none."""
    try:
        match = re.search(r'^VERSION_CODENAME="?([\w-]+)', Path("/etc/os-release").read_text(), re.MULTILINE)
    except OSError:
        return ""
    return match[1] if match else ""


async def ensure_system_packages(say: Callable[[str], None]) -> None:
    """Install the missing packages with apt. Raises PackagesUnavailable when that is not possible."""

    def exists(name: str) -> bool:
        return Path(name).exists() if name.startswith("/") else find_tool(name) is not None

    missing = await STANDALONE.run(lambda: missing_packages(exists, find_busybox() is not None))
    if not missing:
        return
    names = ", ".join(missing)
    if os.geteuid() != 0:
        raise PackagesUnavailable(f"not root, and these packages are missing: {names}")
    if find_tool("apt-get") is None:
        raise PackagesUnavailable(f"no apt-get on this machine, and these packages are missing: {names}")
    say(f"installing {names}")
    install = ["apt-get", "-y", "-qq", "-o", "DPkg::Lock::Timeout=300", "install", "--no-install-recommends"]
    try:
        try:
            await command([*install, *missing], seconds=_APT_SECONDS, env=_apt_env())
        except CommandFailed:  # a fresh machine has no package lists yet, or stale ones
            await command(["apt-get", "-qq", "update"], seconds=_APT_SECONDS, env=_apt_env())
            await command([*install, *missing], seconds=_APT_SECONDS, env=_apt_env())
    except CommandFailed as err:
        raise PackagesUnavailable(f"apt could not install {names}: {err}") from err


async def ensure_containerd(choice: str, say: Callable[[str], None]) -> Containerd:
    """The containerd asked for: a directory, or a series that is cached, installed here, or unpacked now.

    Raises PackagesUnavailable with the reason when there is none, ValueError for an unknown series.
    """
    if "/" in choice:
        return await _containerd_in(Path(choice))
    series = normalize_choice(choice)
    directory = cache_dir() / f"containerd-{series}"
    if (directory / "usr/bin/containerd").exists():
        return await _containerd_in(directory / "usr/bin")
    path = find_tool("containerd")
    installed = None if path is None else await _containerd_in(path.parent)
    if installed is not None and f"{installed.version[0]}.{installed.version[1]}".startswith(series):
        return installed
    say(f"unpacking containerd {series} from the {CONTAINERD_SUITES[series]} packages")
    try:
        await _unpack("containerd", CONTAINERD_SUITES[series], directory)
    except PackagesUnavailable as err:
        if installed is None:
            raise
        say(f"{err}; using the installed containerd {'.'.join(map(str, installed.version))}")
        return installed
    return await _containerd_in(directory / "usr/bin")


async def _containerd_in(bin_dir: Path) -> Containerd:
    try:
        done = await command([str(bin_dir / "containerd"), "--version"], seconds=30)
    except CommandFailed as err:
        raise PackagesUnavailable(f"containerd in {bin_dir} does not run: {err}") from err
    beside = bin_dir.parent / "sbin/runc"
    runc = beside if bin_dir.parent != Path("/usr") and beside.exists() else None
    return Containerd(bin_dir, parse_containerd_version(done), runc)


async def _unpack(package: str, suite: str, directory: Path) -> None:
    """Download `package` of `suite` and unpack it to `directory`, which appears complete or not at all."""
    if find_tool("apt-get") is None:
        raise PackagesUnavailable(f"no apt-get on this machine to fetch {package} with")
    directory.parent.mkdir(parents=True, exist_ok=True)
    line = derive_source(read_apt_sources(), os_codename(), suite)
    with tempfile.TemporaryDirectory(prefix="apt-", dir=directory.parent) as scratch:
        work = Path(scratch)
        options = private_apt(work, line)
        try:
            await command(["apt-get", *options, "update"], seconds=_APT_SECONDS, env=_apt_env())
            download = ["apt-get", *options, "download", package]
            await command(download, seconds=_APT_SECONDS, env=_apt_env(), cwd=work)
            await STANDALONE.run(_unpack_archive, work, package, directory)
        except (CommandFailed, subprocess.SubprocessError) as err:
            raise PackagesUnavailable(f"could not fetch {package} of {suite}: {err}") from err


def _unpack_archive(work: Path, package: str, directory: Path) -> None:
    (archive,) = work.glob(f"{package}_*.deb")
    unpacked = work / "unpacked"
    subprocess.run(["dpkg", "-x", archive, unpacked], check=True, capture_output=True, timeout=120)
    try:
        unpacked.rename(directory)
    except OSError:
        if not directory.exists():  # otherwise another process was faster
            raise


def private_apt(work: Path, line: str) -> list[str]:
    """Options that keep apt inside `work`, proxies and authentication of the machine excepted; the one source
    it then knows is `line`.
    """
    (work / "lists/partial").mkdir(parents=True, exist_ok=True)
    (work / "cache/archives/partial").mkdir(parents=True, exist_ok=True)
    (work / "sources.list").write_text(line)
    settings = {
        "Dir::Etc::sourcelist": str(work / "sources.list"),
        "Dir::Etc::sourceparts": "-",
        "Dir::Etc::preferences": "-",
        "Dir::Etc::preferencesparts": "-",
        "Dir::State::lists": str(work / "lists"),
        "Dir::Cache": str(work / "cache"),
        "Acquire::Languages": "none",
        "APT::Sandbox::User": "root",
    }
    return ["-qq", *(word for key, value in settings.items() for word in ("-o", f"{key}={value}"))]


def _apt_env() -> dict[str, str]:
    return {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}


async def _main(choices: Sequence[str]) -> int:
    def say(text: str) -> None:
        print(f"trio-kubelet: {text}", file=sys.stderr, flush=True)

    try:
        await ensure_system_packages(say)
        for choice in choices or [DEFAULT_CONTAINERD]:
            found = await ensure_containerd(choice, say)
            print(f"containerd {found.version[0]}.{found.version[1]} {found.bin_dir}")
    except (PackagesUnavailable, ValueError) as err:
        say(str(err))
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(trio.run(_main, sys.argv[1:]))
