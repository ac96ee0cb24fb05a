"""Names of architectures."""

from __future__ import annotations

from trio_kubelet.architecture import go_architecture


def test_names_are_gos() -> None:
    known = {
        name: go_architecture(name) for name in ("x86_64", "aarch64", "loongarch64", "riscv64", "ppc64le")
    }
    assert known == {
        "x86_64": "amd64", "aarch64": "arm64", "loongarch64": "loong64", "riscv64": "riscv64", "ppc64le": "ppc64le"
    }  # fmt: skip
