"""The page of a real node in a real browser: how soon it shows a container's death and return."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trio

from tests.browser.browser import BrowserThread, missing, new_page
from tests.containerd.conftest import NewNode
from tests.containerd.harness import Node, container, pod, wait_until
from trio_kubelet.commands.client import SOCKET_NAME
from trio_kubelet.server.pages.forward import page_port

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SOON = 0.3
"""Seconds from a container's death to the page that shows it, and from its return."""

PODS = ("dies-0", "dies-1", "dies-2")

# Notes when what the page says of a pod changes: milliseconds since the epoch.
WATCH = """() => {
    window.seen = [];
    const last = new Map();
    const note = () => {
        for (const row of document.querySelectorAll("#list .row:not(.container)")) {
            const [name, state, restarts] =
                [".name b", ".state", ".restarts"].map((cell) => row.querySelector(cell).textContent);
            const text = `${state} ${restarts}`;
            if (last.get(name) !== text) { last.set(name, text); seen.push([Date.now(), name, text]); }
        }
    };
    note();
    const all = {subtree: true, childList: true, characterData: true};
    new MutationObserver(note).observe(document.getElementById("list"), all);
}"""


@pytest.fixture
def browser() -> Iterator[BrowserThread]:
    if why := missing():
        pytest.skip(f"no browser here: {why}")
    thread = BrowserThread()
    yield thread
    thread.stop()


class Watched:
    """A page that is watched."""

    def __init__(self, browser: BrowserThread, address: str) -> None:
        self._browser = browser
        self._page: Page = browser.run(partial(self._open, address))

    def _open(self, address: str, browser: Browser) -> Page:
        page = new_page(browser, address)
        page.locator("#list .row b", has_text=PODS[-1]).wait_for()
        page.evaluate(WATCH)
        return page

    async def seen(self, name: str) -> list[tuple[float, str]]:
        """Moments in Unix seconds, with what was shown of a pod from then on."""
        found: Any = await trio.to_thread.run_sync(self._browser.run, lambda _: self._page.evaluate("seen"))
        return [(moment / 1000, text) for moment, pod_name, text in found if pod_name == name]

    async def shows(self, name: str, text: str) -> float:
        """Waits until this is shown of a pod; since when it is."""

        async def shown() -> float | None:
            return next((moment for moment, what in await self.seen(name) if what == text), None)

        return await wait_until(shown, 60, f"{name}: {text} on the page", interval=0.1)

    def close(self) -> None:
        self._browser.run(lambda _: self._page.context.close())


@pytest.mark.alone
async def test_a_containers_death_and_return_are_seen_at_once(
    new_node: NewNode, browser: BrowserThread
) -> None:
    async with new_node() as node:
        await node.start_agent()
        for name in PODS:
            node.write(pod(name, container()))
        for name in PODS:
            await node.wait_running(name)
        async with page_port(str(node.layout.agent_root / SOCKET_NAME)) as address:
            watched = await trio.to_thread.run_sync(Watched, browser, address)
            try:
                times = [await death_and_return(node, watched, name) for name in PODS]
            finally:
                await trio.to_thread.run_sync(watched.close)
    print("seconds until a death and a return were shown:", times)
    # Other work of the machine may hold up one of them.
    assert min(death for death, _ in times) <= SOON
    assert min(back for _, back in times) <= SOON


async def death_and_return(node: Node, watched: Watched, name: str) -> tuple[float, float]:
    """Seconds from a container's death, and from the start of the next one, to what the page shows."""
    shown_as = f"{name}-{node.name}"
    await watched.shows(shown_as, "Running 0")
    (before,) = await node.wait_running(name)
    await node.kill_container(before.id)
    back_at = await watched.shows(shown_as, "Running 1")
    (after,) = await node.wait_running(name, besides=[before.id])
    died = (await node.container_status(before.id)).finished_at / 1e9
    started = (await node.container_status(after.id)).started_at / 1e9
    seen = await watched.seen(shown_as)
    gone = [moment for moment, text in seen if moment >= died and not text.startswith("Running")]
    assert gone, f"the death was not shown: {seen}"
    return gone[0] - died, back_at - started
