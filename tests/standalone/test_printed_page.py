"""What `make run` prints last is an address, and there is the page of the node."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import trio

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PATIENCE = 60.0


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_run_is_the_command_that_is_tested_here() -> None:
    command = ["make", "-n", "-C", str(ROOT), "run"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "/trio-kubelet standalone" in said


async def test_the_address_that_is_printed_is_that_of_the_page(tmp_path: Path) -> None:
    manifests = tmp_path / "manifests"
    manifests.mkdir()
    for example in sorted(EXAMPLES.glob("*.yaml"))[:1]:
        shutil.copy(example, manifests)
    command = [
        sys.executable,
        "-m",
        "trio_kubelet",
        "standalone",
        str(manifests),
        "--simulated",
        "--name=page",
    ]
    env = {"XDG_STATE_HOME": str(tmp_path / "state"), "PATH": "/usr/bin:/bin:/usr/sbin:/sbin"}
    process = await trio.lowlevel.open_process(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=env,
        cwd=ROOT,
    )
    assert process.stdout is not None
    try:
        with trio.fail_after(PATIENCE):
            address = await printed_address(process.stdout)
        async with httpx.AsyncClient(trust_env=False, follow_redirects=True, timeout=PATIENCE) as client:
            stranger = await client.get(re.sub(r"(//[^/]+/).*", r"\1page/", address))
            assert stranger.status_code == 403
            with trio.fail_after(PATIENCE):
                while (page := await client.get(address)).status_code == 502:  # noqa: ASYNC110 - not up yet
                    await trio.sleep(0.2)
            assert page.status_code == 200
            assert page.headers["content-type"].startswith("text/html")
            assert (await client.get(str(page.url.join("page.js")))).status_code == 200
    finally:
        process.terminate()
        with trio.move_on_after(PATIENCE, shield=True):
            await process.wait()


async def printed_address(output: trio.abc.ReceiveStream) -> str:
    """The page's address, out of what the command says."""
    said = ""
    while (found := re.search(r"page: (http://\S+)\n", said)) is None:
        piece = await output.receive_some()
        assert piece, f"it ended, having said {said!r}"
        said += bytes(piece).decode()
    return found[1]
