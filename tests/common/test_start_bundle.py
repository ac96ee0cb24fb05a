"""Modules come from the bundle as long as it says what their sources say, else from their own files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.simulated_node import ROOT

WRITE = """
    import sys
    from trio_kubelet.common.start_bundle import write_bundle
    import pod.alpha, beta
    names = "pod", "pod.alpha", "beta", "sys"
    print(write_bundle(sys.argv[1], {name: sys.modules[name] for name in names}))
"""
USE = """
    import json, sys, traceback
    from trio_kubelet.common.start_bundle import leave_bundle, use_bundle
    used = use_bundle(sys.argv[1])
    import pod.alpha
    leave_bundle()
    import beta
    modules = pod, pod.alpha, beta
    print(json.dumps({
        "used": used,
        "bundled": [m.__name__ for m in modules if type(m.__spec__.loader).__name__ == "_Loader"],
        "values": [pod.alpha.VALUE, beta.VALUE],
        "files": [m.__file__ for m in modules],
        "path": list(pod.__path__),
        "source": pod.alpha.__loader__.get_source("pod.alpha"),
        "code": pod.alpha.__loader__.get_code("pod.alpha").co_filename,
    }))
"""


class Installed:
    """Two modules and a package on a path, and a bundle of them."""

    def __init__(self, directory: Path) -> None:
        self.library, self.bundle = directory / "library", directory / "made" / "start.bundle"
        self.alpha, self.beta = self.library / "pod" / "alpha.py", self.library / "beta.py"
        self.alpha.parent.mkdir(parents=True)
        (self.library / "pod" / "__init__.py").write_text("")
        self.alpha.write_text("VALUE = 1\n")
        self.beta.write_text("VALUE = 2\n")

    def run(self, code: str, *, path: str = "", cwd: Path = ROOT) -> str:
        """What a new interpreter prints."""
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code), str(self.bundle)],
            cwd=cwd,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, [str(self.library), str(ROOT), path])),
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout


@pytest.fixture
def installed(tmp_path: Path) -> Installed:
    found = Installed(tmp_path)
    assert found.run(WRITE) == "3\n"  # built-in modules have no code
    return found


def test_modules_come_from_the_bundle_and_look_as_ever(installed: Installed) -> None:
    seen = json.loads(installed.run(USE))
    assert (seen["used"], seen["bundled"]) == (True, ["pod", "pod.alpha"])  # one came after `leave_bundle`
    assert seen["values"] == [1, 2]
    assert seen["files"] == [str(installed.library / "pod/__init__.py"), *map(str, each(installed))]
    assert seen["path"] == [str(installed.library / "pod")]
    assert (seen["source"], seen["code"]) == ("VALUE = 1\n", str(installed.alpha))


def each(installed: Installed) -> tuple[Path, Path]:
    return installed.alpha, installed.beta


def test_a_source_that_has_changed_counts(installed: Installed) -> None:
    installed.alpha.write_text("VALUE = 10\n")
    seen = json.loads(installed.run(USE))
    assert (seen["used"], seen["bundled"], seen["values"]) == (True, ["pod"], [10, 2])


def test_with_another_path_or_modules_that_go_before_it_is_not_used(
    installed: Installed, tmp_path: Path
) -> None:
    assert not json.loads(installed.run(USE, path=str(tmp_path)))["used"]
    (tmp_path / "pod").write_text("a program\n")
    assert json.loads(installed.run(USE, cwd=tmp_path))["used"]
    (tmp_path / "pod.py").write_text("")
    assert json.loads(installed.run(USE, cwd=installed.library))["used"]  # they are the same ones
    shadowed = USE.replace("import pod.alpha\n", "print(json.dumps(used)); sys.exit()\n")
    assert not json.loads(installed.run(shadowed, cwd=tmp_path))


@pytest.mark.parametrize(
    "content", [None, b"", b"x" * 100, b"trio-kubelet start bundle 1\n" + bytes(8) + b"x"]
)
def test_without_a_usable_file_everything_is_imported_as_ever(
    installed: Installed, content: bytes | None
) -> None:
    if content is None:
        installed.bundle.unlink()
    else:
        installed.bundle.write_bytes(content)
    seen = json.loads(installed.run(USE))
    assert (seen["used"], seen["bundled"], seen["values"]) == (False, [], [1, 2])
