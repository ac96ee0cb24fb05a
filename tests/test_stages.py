"""What `make test`, `make soak` and `.ci/run` select: each test runs in one of the stages and in no other."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
STAGES = ("test-beside", "test-alone", "soak")


def commands(target: str) -> str:
    """What make would run for a target."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    dry = ["make", "-n", "--no-print-directory", target]
    return subprocess.run(
        dry, cwd=ROOT, env=own, check=True, capture_output=True, text=True, timeout=60
    ).stdout


def selected(target: str) -> str:
    """The marker expression of a stage."""
    found = re.search(r'pytest .*-m "?([\w ]+?)"? tests', commands(target))
    assert found is not None
    return found[1]


@pytest.mark.parametrize("soak", [True, False])
@pytest.mark.parametrize("alone", [True, False])
def test_every_test_is_in_one_stage(soak: bool, alone: bool) -> None:
    marks = {"soak": soak, "alone": alone}
    assert [eval(selected(stage), {}, marks) for stage in STAGES].count(True) == 1


def test_the_suite_is_both_of_its_stages_and_those_that_measure_are_by_themselves() -> None:
    runs = [line for line in commands("test").splitlines() if " -m pytest " in line]
    stages = [line for stage in STAGES[:2] for line in commands(stage).splitlines() if " -m pytest " in line]
    assert runs == stages
    beside, alone = stages
    assert re.search(r" -n \d+ --dist loadfile ", beside)
    assert " -n " not in alone


@pytest.mark.parametrize("alone", [True, False])
def test_every_test_of_the_node_is_in_one_stage_of_its_machine(alone: bool) -> None:
    chosen = re.findall(r'-m "(node and [\w ]+)" tests', (ROOT / ".ci" / "node-machine").read_text())
    assert len(chosen) == 2
    marks = {"node": True, "soak": False, "alone": alone}
    assert [eval(each, {}, marks) for each in chosen].count(True) == 1


@pytest.mark.parametrize(
    "part",
    [
        "make lint",
        "make c-test",
        "make test-beside",
        "make test-alone",
        "setsid .ci/node-machine beside",
        ".ci/node-machine alone",
    ],
)
def test_ci_runs_it(part: str) -> None:
    assert re.search(rf"^(?:stage )?{re.escape(part)}\b", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
