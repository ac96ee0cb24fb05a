"""Programs run with a C library in which some calls wait, as they may in the kernel: here until the program's
loop has gone on meanwhile.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TURNS = 100
_DESCRIPTOR = 200  # of the pipe through which the loop lets the library go on
_LIBRARY = f"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <stdio.h>
#include <unistd.h>
static void wait_for_the_loop(void)
{{
    struct pollfd may_go = {{.fd = {_DESCRIPTOR}, .events = POLLIN}};
    if (poll(&may_go, 1, 20000) != 1) {{
        fputs("the loop waits for the kernel\\n", stderr);
        _exit(1);
    }}
}}
"""
_PROGRAM = f"""
import os
turns, (go, going) = 0, os.pipe()
def hold():
    os.dup2(go, {_DESCRIPTOR})
def turn():
    global turns
    turns += 1
    if turns == {TURNS}:
        os.write(going, b"!")
"""


def numbers_with_library(directory: Path, library: str, program: str) -> list[float]:
    """The numbers that a Python program prints when functions of the C source `library` stand before the C
    library's own. These may call `wait_for_the_loop`, which waits once the program has called `hold` (imports
    start programs, too), and ends the program after 20 s. It calls `turn` in each turn of its loop, and what
    waits goes on after so many `turns` as TURNS says. Skips where there is no compiler.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    source, built = directory / "slow.c", directory / "slow.so"
    source.write_text(_LIBRARY + library)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", built, source, "-ldl"], check=True)
    said = subprocess.run(
        [sys.executable, "-c", _PROGRAM + program],
        env={**os.environ, "LD_PRELOAD": str(built)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=60,
    )
    return list(map(float, said.stdout.split()))
