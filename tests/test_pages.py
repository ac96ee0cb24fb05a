"""The pages: no link leads nowhere, and every page can be found from the README."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
BASES = (ROOT, ROOT / "trio_kubelet")
FOLDERS = {path.name for base in BASES for path in base.iterdir() if path.is_dir()}
"""With these begin the paths on pages that are files of ours; others are of the node."""


def links(page: Path) -> set[Path]:
    """The files that a page links to."""
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
    return {(page.parent / target).resolve() for target in targets if "://" not in target}


def test_every_page_is_linked_and_no_link_leads_nowhere() -> None:
    found: set[Path] = set()
    due = {ROOT / "README.md"}
    while due:
        page = due.pop()
        found.add(page)
        there = links(page)
        assert [str(target) for target in there if not target.exists()] == [], page
        due |= {target for target in there if target.suffix == ".md"} - found
    assert set((ROOT / "docs").glob("*.md")) - found == set()


def test_files_that_pages_name_are_there() -> None:
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    missing = {
        f"{page.name}: {name}"
        for page in pages
        for name in re.findall(r"`(\w[\w.-]*(?:/[\w.-]+)*/(?:[\w.-]+\.(?:py|c|h|md))?)`", page.read_text())
        if name.split("/")[0] in FOLDERS and not any((base / name).exists() for base in BASES)
    }
    assert missing == set()


def test_names_that_pages_give_with_their_file_are_in_it() -> None:
    """As in "`generate_status` and `rejected_status` in `pods/status/generate.py`"."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    named = re.findall(r"((?:`\w+`(?:, | and )?)+) in `([\w/]+\.py)`", page)
    assert len(named) > 20
    missing = []
    for names, path in named:
        text = next((base / path).read_text() for base in BASES if (base / path).exists())
        for name in re.findall(r"`(\w+)`", names):
            if not re.search(rf"^ *(?:async def|def|class) {name}\b|^{name}\b.* = ", text, re.MULTILINE):
                missing.append(f"{name} in {path}")
    assert missing == []


def test_metrics_of_the_agents_own_are_explained() -> None:
    page = (ROOT / "docs" / "server.md").read_text()
    table = page[page.index("## Metrics of the agent's own") :]
    explained = {
        name.removesuffix("_total") for name in re.findall(r"^\| `(trio_kubelet_\w+)", table, re.MULTILINE)
    }
    made = {
        name
        for path in (ROOT / "trio_kubelet").rglob("*.py")
        for name in re.findall(r'"(trio_kubelet_\w+[a-z])"', path.read_text())
    }
    assert explained == made
