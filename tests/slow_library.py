"""Programs run with a C library in which some calls take long, as they may in the kernel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def numbers_with_library(directory: Path, library: str, program: str) -> list[float]:
    """The numbers that a Python program prints when functions of the C source `library` stand before the C
    library's own. Skips where there is no compiler.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    source, built = directory / "slow.c", directory / "slow.so"
    source.write_text(library)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", built, source, "-ldl"], check=True)
    said = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "LD_PRELOAD": str(built)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=60,
    )
    return list(map(float, said.stdout.split()))
