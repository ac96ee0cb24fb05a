"""The page without its agent: away, slow, of another version, or not letting it in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.browser import BrowserThread, Site, wrong
from tests.browser.page import look, row, until
from tests.nodepage.nodes import FakeNode, facts
from trio_kubelet.server.http.messages import Response
from trio_kubelet.server.pages import node_page

if TYPE_CHECKING:
    from playwright.sync_api import Page


def test_it_connects_again_by_itself_and_says_so(browser: BrowserThread) -> None:
    node = FakeNode(2)

    def steps(page: Page, site: Site) -> None:
        row(page, "pod-000").wait_for()
        number = page.locator("#list").evaluate("list => list.dataset.marked = 'same page'")
        assert number == "same page"
        site.go_away()
        page.wait_for_selector("#lost >> text=Not connected to the node")
        assert page.locator("#link").inner_text() == "not connected"
        page.wait_for_selector("#lost-next >> text=Trying again")
        assert page.title() == "not connected: test-node"
        read_out = page.locator("#lost-text").inner_text()  # what counts down would be read each second
        assert "again" not in read_out
        row(page, "pod-000").wait_for()  # what was known stays
        node.pods["uid-late"] = facts("late")
        node.pods["uid-late"].pod.metadata.uid = "uid-late"
        site.come_back()
        page.wait_for_selector("html[data-link=live]")
        page.wait_for_selector("#lost", state="hidden")
        row(page, "late").wait_for()
        assert page.title() == "test-node"
        wrong(page).clear()  # a browser logs connections that fail

    look(browser, node, steps)


def test_a_clock_that_is_set_back_makes_nobody_wait(browser: BrowserThread) -> None:
    """As after a laptop's sleep, when its connection is dead and nothing says so."""

    def steps(page: Page, site: Site) -> None:
        page.add_init_script(
            """Object.defineProperty(WebSocket.prototype, "onmessage", { set(hear) {
                if (hear) this.addEventListener("message", (event) => window.deaf || hear(event));
            }});
            window.setBack = () => { const now = Date.now; Date.now = () => now() - 3600000; };"""
        )
        page.reload()
        row(page, "pod-000").wait_for()
        page.evaluate("window.deaf = true; window.setBack()")
        page.wait_for_selector("#lost >> text=the node is silent")
        page.evaluate("window.deaf = false")
        page.wait_for_selector("html[data-link=live]")
        site.go_away()
        page.wait_for_selector("#lost >> text=Not connected")
        page.evaluate("window.setBack()")
        page.wait_for_selector("#lost-next >> text=/^Trying again in [0-9]{1,2} s/")
        wrong(page).clear()  # a browser logs connections that fail

    look(browser, FakeNode(1), steps)


def test_it_says_why_it_is_refused(browser: BrowserThread, monkeypatch: pytest.MonkeyPatch) -> None:
    status = b'{"kind": "Status", "message": "nodes is forbidden: <b>ana</b> cannot", "code": 403}'

    def steps(page: Page, site: Site) -> None:
        def refused(code: int, kind: str, body: bytes, words: str) -> None:
            site.go_away()
            page.wait_for_selector("#lost >> text=Not connected to the node")
            site.refusal = Response(status=code, headers=(("Content-Type", kind),), body=body)
            site.come_back()
            said = f"Not connected to the node ({words}). What is shown may be old."
            until(lambda: page.locator("#lost-text").inner_text() == said)

        row(page, "pod-000").wait_for()
        refused(403, "application/json", status, "403 Forbidden: nodes is forbidden: <b>ana</b> cannot")
        refused(401, "text/plain", b"Open it anew.\n", "401 Unauthorized: Open it anew")
        refused(502, "text/html", b"<h1>Bad gateway</h1>", "502 Bad Gateway")
        site.refusal = None
        page.wait_for_selector("html[data-link=live]")
        monkeypatch.setattr(node_page, "READERS", 1)
        other = page.context.new_page()
        other.goto(site.address)
        other.wait_for_selector("#lost >> text=It has too many readers")
        wrong(page).clear()  # a browser logs connections that fail

    look(browser, FakeNode(1), steps)


def test_it_says_when_the_agent_has_another_version_of_it(
    browser: BrowserThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    def steps(page: Page, site: Site) -> None:
        row(page, "pod-000").wait_for()
        for edition in (node_page._edition(), "another"):
            assert not page.is_visible("#newer")
            site.go_away()
            page.wait_for_selector("#lost >> text=Not connected to the node")
            monkeypatch.setattr(node_page, "_edition", lambda edition=edition: edition)
            site.come_back()
            page.wait_for_selector("#lost", state="hidden")
        page.wait_for_selector("#newer >> text=another version")
        wrong(page).clear()  # a browser logs connections that fail
        page.click("#reload")
        page.wait_for_selector("html[data-link=live]")
        page.wait_for_selector("#newer", state="hidden")

    look(browser, FakeNode(1), steps)


@pytest.mark.parametrize("was_away_for_long", [False, True])
def test_it_connects_again_to_a_node_that_answers_slowly(
    browser: BrowserThread, was_away_for_long: bool
) -> None:
    """Once, however often it is told to try now."""

    def steps(page: Page, site: Site) -> None:
        row(page, "pod-000").wait_for()
        site.go_away()
        page.wait_for_selector("#lost >> text=Not connected to the node")
        site.pause = 1.5
        sockets: list[Any] = []
        page.on("websocket", lambda socket: sockets.append(socket))
        site.come_back()
        if was_away_for_long:
            page.evaluate("{ const now = Date.now; Date.now = () => now() + 60000; }")
        else:
            for _ in range(3):
                page.click("#again")
        page.wait_for_selector("html[data-link=live]")
        page.wait_for_timeout(2500)
        assert len(sockets) == 1
        wrong(page).clear()  # a browser logs connections that fail

    look(browser, FakeNode(1), steps)
