"""The walls between the rooms, and the doors that foreign libraries stay behind (docs/architecture.md)."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "trio_kubelet"

DOORS = {
    "grpclib": ("grpc/",),
    "asyncio": ("grpc/",),
    "httpx": ("kube/", "sources/http.py"),
    "httpcore": ("kube/transport.py",),
    "wsproto": ("server/streams/websocket.py",),
    "trio_websocket": ("commands/exec.py", "kube/websocket.py"),
    "pyinotify": ("common/inotify.py",),
    "yaml": ("api/yaml_reader.py", "api/yaml_writer.py", "commands/", "inspect.py"),
    "cryptography": ("kube/certificates/", "server/access/users.py"),
    "h11": ("server/", "net/", "kube/direct.py"),
    "h2": ("grpc/", "kube/shared_watches.py", "podresources/exchange.py", "probes/grpc.py"),
    "hpack": ("cri/",),
    "hyperframe": ("grpc/",),
    "re2": ("server/logs/query.py",),
    "jeepney": ("dbus/",),
    "opentelemetry": ("tracing/",),
}
"""Foreign libraries and who may import them."""

PACKAGES = {
    "yaml": "pyyaml",
    "google": "protobuf",
    "_cffi_backend": "cffi",
    "re2": "google-re2",
    "opentelemetry": "opentelemetry-exporter-otlp-proto-grpc",
}
"""Packages whose name is not that of what they have to import."""

COMPOSITION = ("server/assembly.py", "server/ports.py", "sources/start.py")
"""Modules of rooms that join rooms, as those outside of all rooms do."""


@cache
def imports() -> tuple[tuple[str, str], ...]:
    """Each module's path below the package, with the modules it imports."""
    return tuple(
        (path.relative_to(PACKAGE).as_posix(), name)
        for path in sorted(PACKAGE.rglob("*.py"))
        for name in _imported(ast.parse(path.read_text()))
    )


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module, "relative imports are not used here"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def foreign() -> set[tuple[str, str]]:
    """Modules and the libraries they import that are neither Python's nor ours."""
    pairs = {(path, name.split(".")[0]) for path, name in imports()}
    ours = sys.stdlib_module_names | {"trio_kubelet"}
    return {(path, name) for path, name in pairs if name not in ours}


def test_foreign_libraries_stay_behind_their_doors() -> None:
    outside = [
        f"{path} imports {library}"
        for path, library in sorted(foreign())
        if library in DOORS and not path.startswith(DOORS[library])
    ]
    assert outside == []


def rooms() -> dict[str, set[str]]:
    """The rooms and what they may import, as the page says."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = page[page.index("| room |") : page.index("Functions that decide")]
    rows = [line.strip("|").split(" | ") for line in table.splitlines()[2:] if line.startswith("| ")]
    return {
        name: set(re.findall(r"`([\w.]+)`", allowed))
        for room, _, allowed in rows
        for name in re.findall(r"`(\w+)/`", room)
    }


def test_rooms_import_what_the_page_says() -> None:
    allowed = rooms()
    there = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert there - allowed.keys() == set(), "rooms without a row"
    problems = set()
    for path, name in imports():
        room, target = path.split("/")[0], name.removeprefix("trio_kubelet.")
        if name == target or room not in there or path in COMPOSITION:
            continue
        names = {target.split(".")[0], ".".join(target.split(".")[:2])}
        if target.split(".")[0] in there - {room} and not names & (allowed[room] | {"common"}):
            problems.add(f"{path} imports {target}")
    assert problems == set()


def test_rooms_stand_in_the_order_of_their_imports() -> None:
    above: set[str] = set()
    for room, allowed in rooms().items():
        below = {name.split(".")[0] for name in allowed} - above
        assert below == set(), f"{room} may import {sorted(below)}, which stand below it: a circle"
        above.add(room)


def test_modules_outside_of_rooms_are_explained() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = page[page.index("| module |") : page.index("## What is imported when")]
    rows = [line.split(" | ")[0] for line in table.splitlines()[2:] if line.startswith("| ")]
    explained = [name for row in rows for name in re.findall(r"`(\w+\.py)`", row)]
    assert sorted(explained) == sorted({path.name for path in PACKAGE.glob("*.py")} - {"__init__.py"})


def _declared() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [
        line for name, lines in project["optional-dependencies"].items() if name != "dev" for line in lines
    ]
    return {re.split(r"[^\w-]", line, maxsplit=1)[0].lower() for line in project["dependencies"] + extras}


def test_what_is_imported_is_declared_and_explained() -> None:
    used = {PACKAGES.get(name, name.replace("_", "-")) for _, name in foreign()}
    assert used - _declared() == set()
    page = (ROOT / "docs" / "dependencies.md").read_text()
    rows = [line.split("|")[1].lower() for line in page.splitlines() if line.startswith("| ")]
    explained = {word for row in rows for word in re.findall(r"[\w-]+", row)}
    assert _declared() - explained == set()


def test_a_public_class_name_is_given_once() -> None:
    """So a name alone says which class is meant; what is made from the API's own names is left out."""
    places: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        if not re.search(r"_pb2|generated", path.name):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places.setdefault(node.name, []).append(path.relative_to(PACKAGE).as_posix())
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_protocols_stand_in_doors() -> None:
    """What a room needs of others is in its `doors.py`; only the clock's stands beside the clocks."""
    outside = [
        f"{path.relative_to(PACKAGE).as_posix()}: {node.name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.name != "doors.py" and path.relative_to(PACKAGE).parts[0] != "common"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
        and any(ast.unparse(base).split("[")[0] == "Protocol" for base in node.bases)
    ]
    assert outside == []
