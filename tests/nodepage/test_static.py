"""The files of the page are part of the package."""

from __future__ import annotations

import fnmatch
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_each_file_of_the_page_is_installed_with_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["trio_kubelet"]
    package = ROOT / "trio_kubelet"
    files = [path.relative_to(package).as_posix() for path in (package / "nodepage" / "static").iterdir()]
    assert files
    assert [name for name in files if not any(fnmatch.fnmatch(name, each) for each in patterns)] == []
