"""What tests do with the page of a node: look at it, find things on it, wait for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.browser.browser import PATIENCE, BrowserThread, Site, new_page, serving, wrong
from tests.nodepage.nodes import FakeNode, container_status, facts
from trio_kubelet.api import v1
from trio_kubelet.nodepage.rows import Pulling

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


def look(browser: BrowserThread, node: FakeNode, steps: Callable[[Page, Site], None], **options: Any) -> None:
    """Has `steps` done with the page of that node; nothing may go wrong in the browser meanwhile."""
    with serving(node) as site:

        def work(one: Browser) -> None:
            page = new_page(one, site.address, **options)
            try:
                steps(page, site)
                assert wrong(page) == []
            finally:
                page.context.close()

        browser.run(work)


def row(page: Page, name: str) -> Any:
    """The row of a pod."""
    return page.locator("#list .row:not(.container)").filter(has=page.get_by_text(name, exact=True))


def colour(page: Page, name: str) -> str:
    """One of the page's colours, as it is computed."""
    return str(
        page.evaluate(
            """(name) => {
                const before = document.body.style.color;
                document.body.style.color = `var(--${name})`;
                const computed = getComputedStyle(document.body).color;
                document.body.style.color = before;
                return computed;
            }""",
            name,
        )
    )


def focused(page: Page) -> str:
    """The name of the element that has the focus, its text if it has none."""
    return str(
        page.evaluate("(document.activeElement.ariaLabel || document.activeElement.textContent).trim()")
    )


def until(met: Callable[[], object], what: str = "") -> None:
    """Waits for what the page does not tell playwright about."""
    deadline = time.monotonic() + PATIENCE / 1000
    while not met():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def waiting_node() -> FakeNode:
    """A pod that waits for its next start, one that runs, and what is told of that."""
    node = FakeNode(1)
    crashed = v1.ContainerState(waiting=v1.ContainerStateWaiting(reason="CrashLoopBackOff"))
    held = {"main": time.time_ns() + 3600 * 10**9}
    node.put(facts("crashes", container_status("main", restarts=3, state=crashed), held=held))
    creating = container_status(
        "main", state=v1.ContainerState(waiting=v1.ContainerStateWaiting(reason="ContainerCreating"))
    )
    node.put(facts("pulls", creating, phase="Pending", pulls={"main": Pulling("big:1", time.time_ns())}))
    told = {"at": time.time_ns() // 10**6, "cause": "worker", "text": "StartContainer main", "count": 1}
    node.stories["uid-pod-000"] = [told]
    return node


def gone(site: Site, uid: str) -> None:
    """The pod is no longer there."""
    pod = site.node.pods[uid]
    site.node.put(pod)
    site.node.drop(uid)
