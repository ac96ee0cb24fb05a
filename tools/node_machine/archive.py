"""Packages of another Debian suite, from the archive this machine uses, in a private apt directory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tools.node_machine.cache import Unavailable, run, say
from trio_kubelet.standalone.packages import (
    PackagesUnavailable,
    derive_source,
    os_codename,
    private_apt,
    read_apt_sources,
)

_ENVIRONMENT = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}


def source_line(suite: str) -> str:
    """The sources.list line of a suite. Raises Unavailable."""
    try:
        return derive_source(read_apt_sources(), os_codename(), suite)
    except (OSError, PackagesUnavailable) as error:
        raise Unavailable(str(error)) from error


def unpack(package: str, suite: str, work: Path, target: Path) -> None:
    """Downloads a package and unpacks it to `target`. Raises Unavailable."""
    options = private_apt(work, source_line(suite))
    run(["apt-get", *options, "update"], env=_ENVIRONMENT)
    run(["apt-get", *options, "download", package], cwd=work, env=_ENVIRONMENT)
    (deb,) = work.glob(f"{package}_*.deb")
    run(["dpkg", "-x", deb, target])
    deb.unlink()


def fetch(packages: Sequence[str], suite: str, status: Path, target: Path) -> None:
    """Downloads packages and what they need besides those a `status` of dpkg has. Raises Unavailable."""
    work = target.parent
    options = [*private_apt(work, source_line(suite)), "-o", f"Dir::State::status={status}"]
    run(["apt-get", *options, "update"], env=_ENVIRONMENT)
    install = ["install", "-y", "--download-only", "--no-install-recommends"]
    run(["apt-get", *options, *install, *packages], env=_ENVIRONMENT)
    for deb in (work / "cache/archives").glob("*.deb"):
        deb.rename(target / deb.name)


def install(commands: dict[str, str]) -> None:
    """Installs the packages of commands (or files) that are missing here: name or path, and package."""
    missing = [package for name, package in commands.items() if not (os.path.exists(name) or _on_path(name))]
    if not missing:
        return
    if os.geteuid() != 0:
        raise Unavailable(f"not root, and these packages are missing: {', '.join(missing)}")
    say(f"installing {', '.join(missing)}")
    command = ["apt-get", "-y", "-qq", "-o", "DPkg::Lock::Timeout=600", "install", "--no-install-recommends"]
    try:
        run([*command, *missing], env=_ENVIRONMENT)
    except Unavailable:
        run(["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=600", "update"], env=_ENVIRONMENT)
        run([*command, *missing], env=_ENVIRONMENT)


def _on_path(name: str) -> bool:
    directories = [*os.environ.get("PATH", "").split(":"), "/usr/local/sbin", "/usr/sbin", "/sbin"]
    return any(os.access(f"{directory}/{name}", os.X_OK) for directory in directories)
