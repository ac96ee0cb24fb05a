"""docs/configuration.md tells the truth about what acts."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from trio_kubelet.config.decode import specs_of
from trio_kubelet.config.flag_table import kubelet_flags
from trio_kubelet.config.implemented import FLAGS, acts
from trio_kubelet.config.types import KubeletConfiguration

ROOT = Path(__file__).parents[2]


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gen_docs", ROOT / "tools" / "gen_configuration_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_are_up_to_date() -> None:
    assert (ROOT / "docs" / "configuration.md").read_text() == generator().document()


def test_it_is_said_why_a_setting_does_nothing() -> None:
    told, _, _ = (ROOT / "docs" / "configuration.md").read_text().partition(generator().MARK)
    fields = {field.name for field in specs_of(KubeletConfiguration).values()}
    idle = {name for name in fields - {"kind", "apiVersion", "logging"} if not acts(name)}
    idle |= {
        f"--{name}"
        for name, flag in kubelet_flags().items()
        if not flag.target and name not in FLAGS and flag.group != "cAdvisor"
    }
    assert {name for name in idle if f"`{name}`" not in told} == set()
