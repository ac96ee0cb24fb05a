"""What `-o` asks for: names, paths, columns, templates and files with them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.commands.stand_in import PODS, run
from tests.commands.test_render import POD


@pytest.mark.parametrize(
    ("asked", "out"),
    [
        (["pods", "-o", "jsonpath={.items[*].metadata.name}"], "web-node1 db"),
        (["pods", "-o", "jsonpath={range .items[*]}{.kind}:{.metadata.name}{'\\t'}{end}"], None),
        (["pod", "db", "-o", "jsonpath={.metadata.name}"], "db"),
        (["pod/db", "pod/web", "-o", "jsonpath={.items[*].metadata.name}"], "db web-node1"),
        (["pods", "-o", "jsonpath-as-json={.items[*].metadata.name}"], '[\n    "web-node1",\n    "db"\n]\n'),
        (["pods", "-n", "nowhere", "-o", "jsonpath={.items}"], "[]"),
        (
            ["pods", "-o", "custom-columns=N:metadata.name,X:.x"],
            "N           X\nweb-node1   <none>\ndb          <none>\n",
        ),
        (["pod", "db", "--no-headers", "-o", "custom-columns=N:{.metadata.labels}"], "map[app:db]\n"),
        (["pods", "-o", "Name"], "pod/web-node1\npod/db\n"),
        (["pods", "-o", "name", "--sort-by=.metadata.name"], "pod/db\npod/web-node1\n"),
        (["pods", "-o", "name", "--sort-by={metadata.namespace}"], "pod/web-node1\npod/db\n"),
        (["pods", "--sort-by=", "-o", "jsonpath={.items[*].metadata.name}"], "web-node1 db"),
        (["node", "-o", "jsonpath={.items[0].status.allocatable.cpu}"], "2"),
        (
            ["node", "node1", "-o", "jsonpath={.status.addresses[?(@.type=='InternalIP')].address}"],
            "10.0.0.1",
        ),
        (["Pods", "-A=true", "--no-headers=false", "-o", "name"], "pod/web-node1\npod/db\n"),
        (["pods", "-n", "other", "-A", "-o", "name"], "pod/web-node1\npod/db\n"),
    ],
)
def test_forms(
    asked: list[str], out: str | None, agent: Path, two_pods: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(agent, "get", *asked) == 0
    assert capsys.readouterr().out == (out if out is not None else "Pod:web-node1\tPod:db\t")


def test_yaml_is_read_by_go_as_what_it_was(
    agent: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = {"commit": "12e4", "y": "0o17", "text": "é"}
    metadata = {"name": "web", "namespace": "default", "labels": labels}
    monkeypatch.setattr("tests.commands.stand_in.PODS", [{"metadata": metadata}])
    assert run(agent, "get", "pod", "web", "-o", "yaml") == 0
    assert capsys.readouterr().out.splitlines() == [
        "apiVersion: v1",
        "kind: Pod",
        "metadata:",
        "  labels:",
        '    commit: "12e4"',
        "    text: é",
        '    "y": "0o17"',
        "  name: web",
        "  namespace: default",
    ]


def test_forms_in_files(agent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "template"
    file.write_text("{.items[0].metadata.name}\n")
    assert run(agent, "get", "pods", "-o", f"jsonpath-file={file}") == 0
    assert capsys.readouterr().out == "web-node1\n"
    file.write_text("NAME KIND\nmetadata.name .kind\n")
    assert run(agent, "get", "pods", "-o", f"custom-columns-file={file}") == 0
    assert capsys.readouterr().out == "NAME        KIND\nweb-node1   Pod\n"
    for columns in ("", "NAME KIND\nmetadata.name\n"):
        file.write_text(columns)
        with pytest.raises(SystemExit):
            run(agent, "get", "pods", "-o", f"custom-columns-file={file}")
        assert "as many paths" in capsys.readouterr().err


def test_a_template_that_does_not_fit(agent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for asked in (["-o", "jsonpath={.items[9]}"], ["--sort-by=.nope"], ["--sort-by=.spec"]):
        assert run(agent, "get", "pods", *asked) == (0 if asked == ["--sort-by=.spec"] else 1)
    said = capsys.readouterr().err
    assert "array index out of bounds: index 9, length 1" in said
    assert said.startswith("trio-kubelet: array index out of bounds: index 9")
    assert "\ntrio-kubelet: --sort-by: none of them has such a field\n" in said
    assert "another version" not in said


def test_what_a_template_finds_reaches_no_terminal_as_it_is(
    agent: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """But a program, for which it is."""
    PODS[:] = [{**POD, "metadata": {**POD["metadata"], "annotations": {"a": "b\x1b[2J\rc"}}}]
    try:
        asked = ("get", "pod", "web", "-o", 'jsonpath={.metadata.annotations.a}{"\\n\\t"}')
        assert run(agent, *asked) == 0
        assert capsys.readouterr().out == "b\x1b[2J\rc\n\t"
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        assert run(agent, *asked) == 0
        assert capsys.readouterr().out == "b\\x1b[2J\\rc\n\t"
    finally:
        PODS[:] = [POD]
