"""Makes docs/page.png: the page of a private node with a real containerd, on which a few pods run.

usage: python -m tools.page_picture [--dark] [FILE]   (as root, with what `make browser` installs)
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from tests.browser.browser import BrowserThread, new_page
from tests.containerd.harness import Node, container, pod, running_node
from trio_kubelet.commands.client import SOCKET_NAME
from trio_kubelet.server.pages.forward import page_port
from trio_kubelet.standalone.node import provide
from trio_kubelet.standalone.packages import DEFAULT_CONTAINERD

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PICTURE = Path(__file__).parents[1] / "docs" / "page.png"
NAME = "worker-1"
SETTLE = 75.0
"""Seconds in which the pods do something, so that there is something to see."""
LIMITS = {"limits": {"cpu": "200m", "memory": "32Mi"}}
PROBE = {"exec": {"command": ["true"]}, "periodSeconds": 3}


BUSY = """\
trap 'exit 0' TERM
while :; do
    i=0; while [ $i -lt 3000 ]; do i=$((i+1)); done
    echo served; sleep 0.2
done
"""


def manifests() -> list[dict[str, Any]]:
    """Pods that run, start, wait and fail."""
    unready = {"readinessProbe": {"exec": {"command": ["false"]}, "periodSeconds": 2}}
    nowhere = {"name": "data", "hostPath": {"path": "/no/such/directory", "type": "Directory"}}
    mounts = [{"name": "data", "mountPath": "/data"}]
    server = container("server", BUSY, resources=LIMITS, livenessProbe=PROBE)
    web = container("httpd", BUSY, resources=LIMITS, readinessProbe=PROBE)
    return [
        pod("api", server, container("metrics")),
        pod("batch", container("main", "sleep 5; exit 0"), restartPolicy="Never"),
        pod("cache", container("main", resources=LIMITS)),
        pod("import", container(), initContainers=[container("fetch", "sleep 600")]),
        pod("mailer", container("main", "echo 'no configuration'; sleep 2; exit 3")),
        pod("queue", container(**unready)),
        pod("reports", container(volumeMounts=mounts), volumes=[nowhere]),
        *(pod(f"web-{number}", web) for number in range(6)),
    ]


async def take(node: Node, browser: BrowserThread, file: Path, dark: bool) -> None:
    """Starts the pods, waits, and takes the picture."""
    await node.start_agent()
    for manifest in manifests():
        node.write(manifest)
    async with page_port(str(node.layout.agent_root / SOCKET_NAME)) as address:
        options = {"viewport": {"width": 1280, "height": 760}, "color_scheme": "dark" if dark else "light"}
        await trio.to_thread.run_sync(browser.run, partial(look, address, options, file))


def look(address: str, options: dict[str, Any], file: Path, browser: Browser) -> None:
    """Lets the page run for a while and takes its picture."""
    page = new_page(browser, address, **options)
    page.wait_for_timeout(SETTLE * 1000)
    page.locator("#list .row", has_text="api").locator(".twist").click()
    page.wait_for_timeout(1000)
    page.screenshot(path=str(file))
    page.context.close()


async def picture(file: Path, dark: bool) -> None:
    provisions = await provide(DEFAULT_CONTAINERD, print)
    browser = BrowserThread()
    try:
        with tempfile.TemporaryDirectory() as scratch:
            async with running_node(provisions, Path(scratch), name=NAME) as node:
                await take(node, browser, file, dark)
    finally:
        browser.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, default=PICTURE)
    parser.add_argument("--dark", action="store_true")
    options = parser.parse_args()
    trio.run(picture, options.file, options.dark)
    print(f"{options.file}: {options.file.stat().st_size} bytes")


if __name__ == "__main__":
    main()
