"""The tables of flags, fields and gates agree with what the kubelet has."""

from __future__ import annotations

import json
import typing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from trio_kubelet.common.duration import format_duration
from trio_kubelet.config import implemented
from trio_kubelet.config.decode import decode_configuration, json_path, specs_of, to_configz
from trio_kubelet.config.flag_table import attribute_of, default_of, kubelet_flags
from trio_kubelet.config.flags import KubeletFlags
from trio_kubelet.config.gates import known_gates
from trio_kubelet.config.help import help_text
from trio_kubelet.config.types import KubeletConfiguration

GOLDEN = Path(__file__).parents[1] / "golden"
FLAGS: list[dict[str, Any]] = json.loads((GOLDEN / "kubelet-flags.json").read_text())["flags"]
CONFIG: dict[str, Any] = json.loads((GOLDEN / "kubelet-config.json").read_text())
GATES: dict[str, list[Any]] = json.loads((GOLDEN / "feature-gates.json").read_text())["gates"]

TYPES = {
    "ip": {"ip"},
    "strings": {"strings"},
    "bool": {"bool"},
    "RuntimeDefault": {"bool"},
    "int": {"int"},
    "int32": {"int32"},
    "duration": {"duration"},
    "string": {"string"},
    "quantity": {"quantity"},
    "mapStringString": {"map", "map-nosplit", "map-langle", "labels"},
    "mapStringBool": {"map-bool"},
    "colonSeparatedMultimapStringString": {"multimap"},
    "reserved-memory": {"reserved-memory"},
    "[]v1.Taint": {"taints"},
    "Level": {"level"},
    "pattern=N,...": {"vmodule"},
    "version[=true]": {"version"},
}


OWN = {"container-logs-dir", "manifest-url-ca-file", "node-page", "set-kernel-tunables"}
"""Flags the kubelet does not have."""


def test_every_flag_of_the_kubelet_and_our_own() -> None:
    assert {row["flag"] for row in FLAGS} | OWN == set(kubelet_flags())
    assert not {row["flag"] for row in FLAGS} & OWN


@pytest.mark.parametrize("row", FLAGS, ids=lambda row: str(row["flag"]))
def test_flag(row: dict[str, Any]) -> None:
    flag = kubelet_flags()[row["flag"]]
    assert flag.kind in TYPES[row["type"]]
    assert flag.short == (row["short"] or "")
    assert bool(flag.deprecated) == row["deprecated"]
    default = default_of(flag)
    if row["default"] is None:
        assert default in (False, "", 0, [], {}, "0", "false")
    elif flag.kind == "duration":
        assert format_duration(default) == row["default"]
    elif flag.kind == "bool":
        assert str(default).lower() == row["default"]
    elif flag.kind == "strings":
        assert f"[{','.join(default)}]" == row["default"]
    else:
        assert str(default) == row["default"].strip('"')


def test_every_flag_proper_has_its_attribute() -> None:
    own = {attribute_of(flag) for flag in kubelet_flags().values() if not flag.target}
    assert own - {"help", "version"} == set(KubeletFlags.__struct_fields__) - {"overrides"}


def test_defaults_of_a_configuration_file() -> None:
    body = to_configz(decode_configuration({})[0])
    # Recorded from the versioned object; the configuration in force always has this field.
    assert body.pop("enableSystemLogQuery") is False
    assert {key: value for key, value in body.items() if key not in ("kind", "apiVersion")} == CONFIG[
        "defaults"
    ]


def _shape(kind: Any) -> Any:
    """A field's type in the words of the recorded table."""
    if typing.get_origin(kind) is list:
        return [_shape(typing.get_args(kind)[0])]
    if typing.get_origin(kind) is dict:
        return {"<string>": _shape(typing.get_args(kind)[1])}
    if typing.get_origin(kind) is typing.Annotated:
        marks = {key for mark in kind.__metadata__ for key in (mark.extra or {})}
        if "nanos" in marks or "quantity" in marks:
            return "text"
        if "duration" in marks:
            return "v1.Duration"
        return _shape(kind.__origin__)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = typing.get_type_hints(kind, include_extras=True)
        return {
            spec.name: _shape(
                next(a for a in typing.get_args(hint) if a is not type(None)) if spec.optional else hint
            )
            for spec in specs_of(kind).values()
            for hint in [hints[spec.attribute]]
        }
    return {str: "string", bool: "bool", int: "int", float: "float64"}.get(kind, "string")


def _recorded(shape: Any) -> Any:
    if isinstance(shape, list):
        return [_recorded(item) for item in shape]
    if isinstance(shape, dict):
        return {key: _recorded(value) for key, value in shape.items()} if shape else "text"
    if shape.endswith("(string)") or shape == "v1.Time":
        return "string"
    if shape == "resource.Quantity":
        return "text"
    return "int" if "int" in shape else shape


def test_every_field_of_the_kubelet_with_its_type_and_no_other() -> None:
    assert _shape(KubeletConfiguration) == _recorded(CONFIG["fields"])


def test_configz_has_the_recorded_shape() -> None:
    sample = json.loads((GOLDEN / "configz-sample.json").read_text())["kubeletconfig"]
    config, findings = decode_configuration(sample)
    assert findings.errors == findings.unknown == []
    assert json.dumps(to_configz(config)) == json.dumps(sample)


@pytest.mark.parametrize("name", sorted(set(GATES) - {"AllAlpha", "AllBeta"}))
def test_gate(name: str) -> None:
    gate = known_gates()[name]
    assert [gate.stage, gate.default] == GATES[name]


def test_no_gate_that_is_offered_is_missing_or_invented() -> None:
    offered = {gate.name for gate in known_gates().values() if gate.stage in ("ALPHA", "BETA")}
    assert offered == set(GATES) - {"AllAlpha", "AllBeta"}


def test_implemented_settings_exist() -> None:
    paths = {json_path(flag.target) for flag in kubelet_flags().values() if flag.target}
    paths |= set(CONFIG["fields"])
    paths |= {f"logging.options.{name}.splitStream" for name in CONFIG["fields"]["logging"]["options"]}
    assert paths >= implemented.FIELDS
    assert {name for name, flag in kubelet_flags().items() if not flag.target} >= implemented.FLAGS
    assert set(known_gates()) | {"AllAlpha", "AllBeta"} >= implemented.GATES


@pytest.mark.parametrize("width", [20, 80, 200])
def test_help_names_every_flag_once_and_fits(width: int) -> None:
    lines = help_text(width).splitlines()
    heads = [line.strip().split(", ")[-1].split(" ")[0] for line in lines if line.startswith(("  -", "  --"))]
    assert sorted(heads) == sorted(f"--{name}" for name in kubelet_flags())
    assert max(len(line) for line in lines if line.startswith("      ")) <= max(72, min(width, 120))
