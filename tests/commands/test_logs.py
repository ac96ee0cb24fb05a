"""`trio-kubelet logs`."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.commands.stand_in import ASKED, run
from tests.commands.test_render import POD
from trio_kubelet.commands.logs import lines
from trio_kubelet.commands.main import main


def test_a_log_is_passed_on_as_it_is(agent: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    ASKED.clear()
    assert run(agent, "logs", "web", "-c", "d", "--tail=5", "--since=1m30s", "-p", "--timestamps") == 0
    said = capfdbinary.readouterr()
    assert said.out == b"a line\n\xff\x1b[31m"
    query = "previous=true&timestamps=true&tailLines=5&sinceSeconds=90"
    assert ASKED[-1] == f"/containerLogs/default/web-node1/d?{query}"
    assert run(agent, "logs", "pod/web") == 0
    assert b'Defaulted container "c" out of: c, d' in capfdbinary.readouterr().err
    assert run(agent, "logs", "web", "-c", "nope") == 1
    assert b"it has: c, d" in capfdbinary.readouterr().err


def test_the_container_that_a_pod_says_is_meant(
    agent: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    annotations: dict[str, str] = {}
    spec = {**POD["spec"], "initContainers": [{"name": "i"}], "ephemeralContainers": [{"name": "e"}]}
    marked = {**POD, "metadata": {**POD["metadata"], "annotations": annotations}, "spec": spec}
    monkeypatch.setattr("tests.commands.stand_in.PODS", [marked])
    for name in ("d", "i", "e"):
        annotations["kubectl.kubernetes.io/default-container"] = name
        assert run(agent, "logs", "web") == 0
        assert ASKED[-1] == f"/containerLogs/default/web-node1/{name}"
        assert capfdbinary.readouterr().err == b""
    annotations["kubectl.kubernetes.io/default-container"] = "nope"
    assert run(agent, "logs", "web") == 0
    assert ASKED[-1] == "/containerLogs/default/web-node1/c"
    assert capfdbinary.readouterr().err.splitlines() == [
        b'Default container name "nope" not found in pod web-node1',
        b'Defaulted container "c" out of: c, d, e (ephem), i (init)',
    ]
    assert main(["exec", "web", "--root-dir", str(agent), "--", "date"]) == 1
    assert b"has no container 'nope', it has: c, d, e, i" in capfdbinary.readouterr().err


def test_nothing_but_what_the_command_prints(
    agent: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def end(*_: object) -> int:
        return 7

    monkeypatch.setattr("trio_kubelet.commands.exec._run", end)
    for quiet, told in (([], True), (["-q"], False), (["--quiet"], False)):
        assert main(["exec", "-it", *quiet, "web", "--root-dir", str(agent), "--", "date"]) == 7
        said = capsys.readouterr().err
        assert ("Defaulted container" in said, "Unable to use a TTY" in said) == (told, told)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_no_command_runs_in_a_pod_that_is_over(
    phase: str, agent: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    over = {**POD, "status": {**POD["status"], "phase": phase}}
    monkeypatch.setattr("tests.commands.stand_in.PODS", [over])
    assert main(["exec", "web", "--root-dir", str(agent), "--", "date"]) == 1
    said = "cannot exec into a container in a completed pod; current phase is"
    assert capsys.readouterr().err == f"trio-kubelet: {said} {phase}\n"


@pytest.mark.parametrize(
    ("asked", "out", "targets"),
    [
        (["web", "d"], b"a line\n\xff\x1b[31m", ["default/web-node1/d"]),
        (["web", "d", "--since=0"], b"a line\n\xff\x1b[31m", ["default/web-node1/d"]),
        (["web", "d", "--since=1ms"], b"a line\n\xff\x1b[31m", ["default/web-node1/d?sinceSeconds=1"]),
        (["web", "d", "--since=2500ms"], b"a line\n\xff\x1b[31m", ["default/web-node1/d?sinceSeconds=3"]),
        (["-p", "web", "d"], b"a line\n\xff\x1b[31m", ["default/web-node1/d?previous=true"]),
        (["web", "--tail", "-1", "d"], b"a line\n\xff\x1b[31m", ["default/web-node1/d"]),
        (
            ["web", "--all-containers=true", "--prefix"],
            b"".join(
                b"[pod/web-node1/%c] %s\n" % (c, x) for c in b"cd" for x in (b"a line", b"\xff\x1b[31m")
            ),
            ["default/web-node1/c", "default/web-node1/d"],
        ),
        (
            ["-l", "app in (web,db)", "-c", "d"],
            b"a line\n\xff\x1b[31m\n" * 2,
            ["default/web-node1/d?tailLines=10", "other/db/d?tailLines=10"],
        ),
        (["-l", "app=db", "-c", "c", "--tail=-1"], b"a line\n\xff\x1b[31m\n", ["other/db/c"]),
        (["-l", "app=nope"], b"", []),
    ],
)
def test_which_logs(
    asked: list[str],
    out: bytes,
    targets: list[str],
    agent: Path,
    two_pods: None,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    ASKED.clear()
    assert run(agent, "logs", *asked) == 0
    said = capfdbinary.readouterr()
    assert said.out == out
    assert [each for each in ASKED if "Logs" in each] == [f"/containerLogs/{target}" for target in targets]
    assert (b"No such pods on this node." in said.err) is (not targets)


def test_logs_that_are_followed_side_by_side(
    agent: Path, two_pods: None, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert run(agent, "logs", "-f", "-l", "app", "--all-containers", "--prefix") == 0
    sources = [b"web-node1/c", b"web-node1/d", b"db/c", b"db/d"]
    said = [b"[pod/%s] %s" % (each, line) for each in sources for line in (b"a line", b"\xff\x1b[31m")]
    assert sorted(capfdbinary.readouterr().out.splitlines()) == sorted(said)
    assert run(agent, "logs", "-f", "-l", "app", "--all-containers", "--max-log-requests=3") == 1
    assert b"these are 4 logs, 3 may be followed: see --max-log-requests" in capfdbinary.readouterr().err


def test_a_log_that_cannot_be_had(
    agent: Path, two_pods: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Ends the command, also where several are followed, or is told among the others."""
    monkeypatch.setattr("tests.commands.stand_in.REFUSED", "/containerLogs/default/web-node1/d")
    for follow in ([], ["-f"]):
        asked = ("logs", "-l", "app", "--all-containers", "--prefix", *follow)
        assert run(agent, *asked) == 1
        assert capfd.readouterr().err == "trio-kubelet: waiting to start\n"
        assert run(agent, *asked, "--ignore-errors") == 0
        said = capfd.readouterr()
        assert said.err == "error: waiting to start\n"
        assert len(said.out.splitlines()) == 6


@given(st.lists(st.binary(max_size=6) | st.sampled_from([b"\n", b"a\n"])), st.binary(max_size=2))
def test_lines_behind_a_prefix(pieces: list[bytes], prefix: bytes) -> None:
    whole = b"".join(pieces)
    parts = whole.split(b"\n")
    expected = [prefix + part + b"\n" for part in (parts if parts[-1] else parts[:-1])]
    assert b"".join(lines(iter(pieces), prefix)) == b"".join(expected)


def test_a_line_without_end_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trio_kubelet.commands.logs.MAX_LINE", 10)
    endless = lines(itertools.repeat(b"abc"), b"> ")
    assert [next(endless), next(endless)] == [b"> abcabcabcabc", b"> abcabcabcabc"]


@pytest.mark.parametrize("text", ["", "5", "-5s", "5s5", "1d", "s"])
def test_what_is_no_duration_is_refused(agent: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(agent, "logs", "web", f"--since={text}")
    assert "is no duration" in capsys.readouterr().err
