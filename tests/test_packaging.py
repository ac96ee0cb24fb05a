"""What `make deb` makes: a package that runs with the system's Python, and its unit."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]
OFFLINE = "--no-index --no-deps --no-build-isolation"


def run(*command: str | Path, **variables: str) -> str:
    environment = {**os.environ, **variables}
    done = subprocess.run(
        command, cwd=PROJECT, env=environment, check=True, stdout=subprocess.PIPE, text=True, timeout=300
    )
    return done.stdout


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="needs dpkg")
def test_the_package_holds_a_program_that_runs_and_its_unit(tmp_path: Path) -> None:
    run(PROJECT / "tools/make-deb", sys.executable, tmp_path, PIP_FLAGS=OFFLINE)
    (package,) = tmp_path.glob("trio-kubelet_*.deb")
    python = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    assert run("dpkg-deb", "-f", package, "Package", "Depends").splitlines() == [
        "Package: trio-kubelet",
        f"Depends: {python}, libc6",
    ]
    scripts = tmp_path / "scripts"
    run("dpkg-deb", "-e", package, scripts)
    texts = {name: (scripts / name).read_text() for name in ("postinst", "prerm")}
    assert not any(f"systemctl {word}" in text for text in texts.values() for word in ("start", "restart"))

    tree = tmp_path / "tree"
    run("dpkg-deb", "-x", package, tree)
    unit = (tree / "usr/lib/systemd/system/trio-kubelet.service").read_text()
    assert "\nExecStart=/usr/bin/trio-kubelet $KUBELET_KUBECONFIG_ARGS" in unit
    assert "@" not in unit
    launcher = (tree / "usr/bin/trio-kubelet").read_text()
    assert f"exec /usr/bin/{python} -m trio_kubelet" in launcher
    packaged, dependencies = tree / "usr/lib/trio-kubelet", sysconfig.get_path("purelib")
    assert list((packaged / "trio_kubelet/native").glob("_core*.so"))
    path = f"{packaged}{os.pathsep}{dependencies}"
    shown = subprocess.run(
        [sys.executable, "-m", "trio_kubelet", "--version"],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    assert "(behaves like kubelet v1.36)" in shown.stdout

    # What a start imports is put into one file when the package is installed.
    (line,) = (line for line in texts["postinst"].splitlines() if "-m trio_kubelet.precompile" in line)
    there = line.replace("/usr/lib/trio-kubelet", path).replace(f"{python} ", f"{sys.executable} ")
    run("sh", "-ec", there.removesuffix(" || true"))
    code = """
        from trio_kubelet.common.start_bundle import bundle_path, use_bundle
        print(use_bundle(bundle_path(DIRECTORY)))
    """
    code = textwrap.dedent(code).replace("DIRECTORY", repr(str(packaged / "trio_kubelet")))
    assert run("sh", "-c", 'cd / && "$0" -c "$1"', sys.executable, code, PYTHONPATH=path) == "True\n"
    assert "start.*.bundle" in texts["prerm"]
