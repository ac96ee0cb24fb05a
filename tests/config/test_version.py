"""Which version this is: names of architectures."""

from __future__ import annotations

from trio_kubelet.config.version import go_architecture


def test_names_are_gos() -> None:
    machines = ("x86_64", "aarch64", "loongarch64", "riscv64", "ppc64le")
    assert [*map(go_architecture, machines)] == ["amd64", "arm64", "loong64", "riscv64", "ppc64le"]
