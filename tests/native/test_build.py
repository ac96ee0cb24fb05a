"""Which implementation is taken, and that the agent is told when it is the slow one."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest

import build_ext
from trio_kubelet import native

ROOT = pathlib.Path(build_ext.__file__).parent

SCRIPT = """
from trio_kubelet import native
from trio_kubelet.native import hashes
print(native.HAVE_C, native.RelistTable.__name__, hashes.container_hash("web", "nginx"))
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


def c_text(source: str) -> str:
    """C source without comments and with one blank wherever there is white space."""
    return re.sub(r"\s+", " ", re.sub(r"/\*.*?\*/", " ", source, flags=re.DOTALL))


def declarations() -> list[str]:
    """What build_ext.py declares to cffi, one declaration an item."""
    plain = re.sub(r"^#define.*$", "", build_ext.DECLARATIONS, flags=re.MULTILINE)
    return re.findall(r" (typedef struct \{[^}]*\} \w+;|[^;]+;)", c_text(f" {plain}"))


@pytest.mark.parametrize("declaration", declarations())
def test_cffi_declares_what_the_headers_say(declaration: str) -> None:
    headers = c_text("".join(path.read_text() for path in sorted((ROOT / "csrc").glob("*.h"))))
    if declaration == "typedef struct tk_table tk_table;":
        assert re.search(r"typedef struct tk_table \{.*?\} tk_table;", headers)
    else:
        assert declaration in headers


@pytest.mark.parametrize("checked", ["", "1"])
def test_what_users_build_has_no_entries_for_tests_and_takes_warnings(checked: str) -> None:
    """The next compiler's warning must not keep anybody from installing."""
    script = (
        "import build_ext; _, args = build_ext.ffibuilder._assigned_source[1:3], None; "
        "print(build_ext.ffibuilder._assigned_source[3]['extra_compile_args'], "
        "'tk_fail_after' in build_ext.ffibuilder._cdefsources[-1])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "TRIO_KUBELET_CHECKED_BUILD": checked, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ("-Werror" in done.stdout, "True" in done.stdout) == (bool(checked), bool(checked))
