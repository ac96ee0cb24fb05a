"""A node without API server and URL does not pay for the libraries it would talk with."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "modules",
    [
        "trio_kubelet.kube.client",
        "trio_kubelet.kube.reflector",
        "trio_kubelet.kube.credentials",
        "trio_kubelet.sources.http",
        "trio_kubelet.sources.apiserver",
    ],
)
def test_network_libraries_are_imported_late(modules: str) -> None:
    code = (
        f"import sys, {modules}; print(sorted({{'httpx', 'trio_websocket', 'wsproto'}} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
