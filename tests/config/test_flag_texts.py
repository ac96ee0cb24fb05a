"""What `/flagz` shows of the flags, against a kubelet v1.36.2 with the same command lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.config.command_line import settings
from trio_kubelet.config.flag_texts import CLASSIFIED, flag_texts

RECORDED = json.loads((Path(__file__).parents[1] / "golden" / "flagz.json").read_text())
PLACE = "/srv/node"  # of the files in the recording


def texts(*args: str) -> dict[str, str]:
    given = settings(*args)
    return flag_texts(given.flags, given.config)


@pytest.mark.parametrize("case", RECORDED["cases"], ids=lambda case: case["given"])
def test_the_flags_are_those_of_a_kubelet(case: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "dd").mkdir()
    for file, content in (("kubelet.json", RECORDED["file"]), ("dd/10.conf", RECORDED["drop_in"])):
        (tmp_path / file).write_text(json.dumps(content).replace(PLACE, str(tmp_path)))
    wanted = RECORDED["defaults"] | case["differs"]
    wanted = {name: text.replace(PLACE, str(tmp_path)) for name, text in wanted.items()}
    if wanted["manifest-url-header"]:
        wanted["manifest-url-header"] = CLASSIFIED
    shown = texts(*(arg.replace(PLACE, str(tmp_path)) for arg in case["args"]))
    assert list(shown.items()) == sorted(wanted.items())


def test_an_item_of_a_list_is_quoted_as_it_was_given() -> None:
    given = '["a,b",c," d","e""f"]'
    assert texts(f"--allowed-unsafe-sysctls={given[1:-1]}")["allowed-unsafe-sysctls"] == given


@pytest.mark.parametrize(
    ("flag", "name"),
    [
        ("--manifest-url-header=Authorization:Bearer sesame", "manifest-url-header"),
        ("--storage-driver-password=sesame", "storage-driver-password"),
    ],
)
def test_credentials_are_not_shown(flag: str, name: str) -> None:
    shown = texts(flag)
    assert shown[name] == CLASSIFIED
    assert "sesame" not in "".join(shown.values())
