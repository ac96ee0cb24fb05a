"""Which implementation is taken, and that the agent is told when it is the slow one."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from trio_kubelet import native

SCRIPT = """
from trio_kubelet import native
print(native.HAVE_C, native.RelistTable.__name__, native.container_hash("web", "nginx"))
"""


def run(pure: str) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "TRIO_KUBELET_PURE": pure, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip(), done.stderr


def test_plain_python_on_demand_with_a_warning() -> None:
    out, err = run("1")
    assert out == "False PureRelistTable 9690f4d"
    assert re.search(r"^W.*Running without the C extension.*TRIO_KUBELET_PURE=1", err)


@pytest.mark.skipif(not native.HAVE_C, reason="the C extension is not built")
def test_c_without_a_word_where_it_is_built() -> None:
    assert run("") == ("True CRelistTable 9690f4d", "")
