"""The command line as a user meets it: a real process, its output and its exit code."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from functools import partial
from pathlib import Path

import pytest

from trio_kubelet import cli
from trio_kubelet.common import log as logging
from trio_kubelet.config.types import KubeletConfiguration
from trio_kubelet.host import check_tls

ROOT = Path(__file__).parents[1]


def run(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trio_kubelet", *args, "--set-kernel-tunables=false"],
        cwd=ROOT,
        env=os.environ | env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_help() -> None:
    result = run("--help", COLUMNS="100")
    assert result.returncode == 0
    assert result.stderr == ""
    assert "Usage:" in result.stdout
    assert "--pod-manifest-path string" in result.stdout
    for word in cli._COMMANDS:
        assert re.search(rf"^  trio-kubelet .*\b{word}\b", result.stdout, re.MULTILINE), word
    assert max(map(len, result.stdout.splitlines())) <= 100


def test_version() -> None:
    assert run("--version").stdout.startswith("trio-kubelet ")
    assert "(behaves like kubelet v1.36)" in run("--version").stdout
    assert 'KubeletVersion:"v1.36' in run("--version=raw").stdout


def test_by_the_name_of_the_kubelet_the_version_is_what_kubeadm_reads(tmp_path: Path) -> None:
    program = tmp_path / "kubelet"
    program.write_text("import sys\nfrom trio_kubelet.cli import main\nsys.exit(main())\n")
    shown = subprocess.run(
        [sys.executable, program, "--version"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert re.fullmatch(r"Kubernetes v1\.36\.\d+\n", shown.stdout)
    assert shown.stderr == ""


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["--pod-manifest-pth=/x"], "unknown flag: --pod-manifest-pth (did you mean --pod-manifest-path?)"),
        (["--max-pods=many"], "invalid argument 'many' for '--max-pods' flag"),
        (["inspekt", "x"], "unknown command 'inspekt' (did you mean inspect?)"),
        (["--v=2", "get", "pods"], "unknown command 'get': a command comes first, and its flags behind it"),
        (
            ["--config=/does/not/exist"],
            "path: /does/not/exist, error: open /does/not/exist: no such file or directory",
        ),
        (["--feature-gates=Nope=true"], "unrecognized feature gate: Nope"),
        (["--port=0"], "port (--port): 0 must be between 1 and 65535"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_1(args: list[str], reason: str) -> None:
    result = run(*args)
    assert result.returncode == 1
    assert result.stdout == ""
    [line] = [each for each in result.stderr.splitlines() if not each.startswith("Flag --")]
    assert line.startswith("E")
    assert '"command failed" err="' in line
    assert reason in line


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["sim"], "the following arguments are required: --socket"),
        (
            ["sim", "--socket=/s", "--pods=many"],
            'argument --pods: strconv.Atoi: parsing "many": invalid syntax',
        ),
        (["sim", "--socket=/s", "--containers=-1"], "argument --containers: -1 is less than none"),
        (["sim", "--socket=/s", "--churn=nan"], "argument --churn: nan is no rate"),
        (["sim", "--socket=/s", "--unimplemented=Exec,Nope"], "the runtime has no method 'Nope'"),
        (["sim", "--sock=/s"], "the following arguments are required: --socket"),
        (["standalone", "--nope"], "unrecognized arguments: --nope"),
        (["standalone", "--name=A_B"], "A_B"),
        (["page", "--nope"], "unrecognized arguments: --nope"),
        (["get"], "the following arguments are required: KIND"),
        (["exec", "web"], "the command stands behind --"),
    ],
)
def test_a_mistake_is_exit_code_1_of_every_tool(words: list[str], reason: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "trio_kubelet", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 1
    assert result.stdout == ""
    line, hint = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert reason in line
    assert hint == f"See 'trio-kubelet {words[0]} --help' for usage."


def test_a_mistake_in_json() -> None:
    *said, line = run("--logging-format=json", "--port=0").stderr.splitlines()
    assert [each.split(",")[0] for each in said] == [
        "Flag --logging-format has been deprecated",
        "Flag --port has been deprecated",
    ]
    assert line.startswith('{"ts":')


def test_a_mistake_is_all_that_is_said_of_a_start(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: -1\n")
    said = run(f"--config={file}", TRIO_KUBELET_PURE="1")  # which would be told of when it is loaded
    assert said.returncode == 1
    assert "maxPods" in said.stderr
    assert "C extension" not in said.stderr


def test_help_into_a_closed_pipe_is_quiet() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "trio_kubelet", "--help"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 128 + signal.SIGPIPE, "as if the signal had ended it"


@pytest.mark.parametrize(
    "words",
    [
        *(["--help"], ["--version"], ["inspect", "--help"], ["sim", "--help"], ["standalone", "--help"]),
        ["inspect", "examples/manifests/web.yaml"],
    ],
)
@pytest.mark.parametrize("buffered", [True, False])
def test_an_output_that_cannot_be_written_is_one_line(words: list[str], buffered: bool) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "trio_kubelet", *words],
            cwd=ROOT,
            env=os.environ | {"PYTHONUNBUFFERED": "" if buffered else "1"},
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == b"trio-kubelet: write /dev/stdout: no space left on device\n"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_what_is_closed_is_nobodys(closed: str) -> None:
    """The next file that is opened would be standard output, as a connection to the agent."""
    files = "import os, sys; sys.argv[1:] = ['--version']; from trio_kubelet.cli import main; main(); "
    files += "assert all(os.fstat(number) for number in range(3)); assert os.open('/', os.O_RDONLY) > 2"
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, files], cwd=ROOT, check=False
    )
    assert done.returncode == 0


@pytest.mark.parametrize("module", ["trio_kubelet.cli", "trio_kubelet.commands.get"])
def test_ctrl_c_while_modules_are_loaded_ends_it_as_it_ends_others(module: str) -> None:
    code = """
        import os, signal, sys
        module = sys.argv.pop(1)
        class Interrupted:
            def find_spec(self, name, *_):
                if name == module:
                    os.kill(os.getpid(), signal.SIGINT)
        sys.meta_path.insert(0, Interrupted())
        from trio_kubelet.__main__ import main
        main()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), module, "get", "pods"],
        cwd=ROOT,
        capture_output=True,
        check=False,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    assert (done.returncode, done.stderr) == (-signal.SIGINT, b"")


def test_help_is_said_in_any_encoding() -> None:
    said = run("get", "--help", PYTHONIOENCODING="ascii")
    assert (said.returncode, said.stderr) == (0, "")
    assert r"PATH,\u2026" in said.stdout


def test_tools_get_their_own_arguments(tmp_path: Path) -> None:
    code = """
        import sys, types
        tool = types.ModuleType("tool")
        tool.main = lambda argv: print(argv) or 7
        sys.modules["trio_kubelet.inspect"] = sys.modules["trio_kubelet.commands.main"] = tool
        from trio_kubelet.cli import main
        print(main(["inspect", "a.yaml", "-o", "json"]), main(["describe", "pod"]))
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines() == ["['a.yaml', '-o', 'json']", "['describe', 'pod']", "7 7"]


AGENT = """
    import sys, types, trio
    agent = types.ModuleType("trio_kubelet.agent")
    async def run(flags, config, service):
        print("up", flags.hostname_override, config.max_pods, flush=True)
        BODY
    agent.run = run
    sys.modules["trio_kubelet.agent"] = agent
    import trio_kubelet
    trio_kubelet.agent = agent
    from trio_kubelet.cli import main
    sys.exit(main(sys.argv[1:]))
"""
FOREVER = "await trio.sleep_forever()"


def start(body: str, *args: str) -> subprocess.Popen[str]:
    code = textwrap.dedent(AGENT).replace("BODY", body)
    return subprocess.Popen(
        [sys.executable, "-c", code, "--fail-cgroupv1=false", *args],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_hang_up_makes_a_new_agent_of_the_process() -> None:
    process = start(FOREVER, "--hostname-override=n1", "--max-pods=9")
    assert process.stdout is not None
    assert process.stdout.readline() == "up n1 9\n"
    process.send_signal(signal.SIGHUP)
    assert process.stdout.readline() == "up n1 9\n"
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_agent_cleanly(number: signal.Signals) -> None:
    process = start(FOREVER, "--hostname-override=n1", "--max-pods=9")
    assert process.stdout is not None
    assert process.stdout.readline() == "up n1 9\n"
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert f'"Stopping on signal" signal="{number.name}"' in errors
    assert "Traceback" not in errors


def test_a_signal_before_the_agent_runs_is_a_clean_stop() -> None:
    code = """
        import sys, types, os, signal
        from trio_kubelet import cli
        from trio_kubelet.config import load
        load.load = lambda line: os.kill(os.getpid(), signal.SIGTERM)
        sys.exit(cli.main([]))
    """
    result = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, timeout=60, check=False)
    assert result.returncode == 0


def test_a_second_signal_ends_a_stop_that_hangs() -> None:
    body = "with trio.CancelScope(shield=True): await trio.sleep_forever()"
    process = start(body)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    while "Stopping on signal" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 1


def test_an_error_of_the_outside_world_is_one_line() -> None:
    process = start("raise OSError(98, 'Address already in use')")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "address already in use" in errors.splitlines()[-1]
    assert "Traceback" not in errors


def test_a_machine_that_cannot_be_set_up_is_an_event_and_exit_code_1(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = run(
        f"--root-dir={tmp_path}/file/kubelet",
        f"--pod-manifest-path={tmp_path}",
        f"--container-runtime-endpoint=unix://{tmp_path}/none.sock",
        "--hostname-override=n1",
        "--fail-cgroupv1=false",
        "--fail-swap-on=false",
    )
    assert result.returncode == 1
    event, last = result.stderr.splitlines()[-2:]
    assert '"Event occurred" object="n1" kind="Node" type="Warning" reason="KubeletSetupFailed"' in event
    assert f"error creating root directory: mkdir {tmp_path}/file" in event
    assert '"command failed"' in last
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("flag", "reason"),
    [
        ("--tls-min-version=1", 'unknown tls version "1"'),
        ("--tls-cipher-suites=NOPE", "Cipher suite NOPE not supported or doesn't exist"),
    ],
)
def test_tls_that_cannot_be_is_told_before_a_runtime_is_there(tmp_path: Path, flag: str, reason: str) -> None:
    runtime = f"--container-runtime-endpoint=unix://{tmp_path}/none.sock"
    result = run(flag, f"--root-dir={tmp_path}/root", runtime, "--fail-cgroupv1=false")
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    assert json.loads(last.partition("err=")[2]) == f"failed to construct kubelet dependencies: {reason}"
    assert not (tmp_path / "root").exists()


def test_what_tls_is_worth_a_word_of_is_logged(capfd: pytest.CaptureFixture[str]) -> None:
    weak = "TLS_RSA_WITH_RC4_128_SHA"
    check_tls(KubeletConfiguration(tls_min_version="VersionTLS13", tls_cipher_suites=[weak]))
    logging.flush()
    first, second = capfd.readouterr().err.splitlines()
    assert first.endswith(f'"Use of insecure cipher detected." cipher="{weak}"')
    assert "TLS 1.3 cipher suites are not configurable, ignoring --tls-cipher-suites" in second


def test_a_mistake_of_ours_shows_where() -> None:
    process = start("raise KeyError('x')")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Traceback" in errors
    assert '"command failed" err="KeyError: \'x\'"' in errors


def test_settings_without_effect_are_one_warning(tmp_path: Path) -> None:
    process = start(FOREVER, "--hairpin-mode=none", "--feature-gates=GangScheduling=false")
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    [warning] = [line for line in errors.splitlines() if line.startswith("W")]
    for name in ("--hairpin-mode", "featureGates.GangScheduling"):
        assert name in warning


def test_starting_to_the_point_of_refusal_is_quick() -> None:
    times = []
    for _ in range(3):
        before = os.times()
        run("--nope")
        after = os.times()
        times.append(after.children_user + after.children_system)
        times[-1] -= before.children_user + before.children_system
    # A bare interpreter with a few modules; importing the agent's libraries takes far longer.
    heavy = {"trio", "httpx", "grpclib", "yaml", "google.protobuf"}
    code = "import sys, trio_kubelet.cli; print(','.join(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert not heavy & set(loaded.stdout.strip().split(","))
    assert min(times) < 0.5, "seconds of CPU, of which others do not take any"


def test_ctrl_c_while_a_tool_is_loaded_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("importlib.import_module", interrupted)
    assert cli.main(["get", "pods"]) == 130


def test_every_tool_is_a_word_of_its_own() -> None:
    assert set(cli._COMMANDS) == {
        *("inspect", "standalone", "sim", "page"),
        *("get", "events", "describe", "top", "logs", "exec"),
    }
