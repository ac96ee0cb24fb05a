"""Nothing that comes from pods, or from elsewhere, is more than text to the page."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from tests.browser.browser import BrowserThread, Site, wrong
from tests.browser.page import look, row, until
from tests.nodepage.nodes import FakeNode, container_status, facts
from trio_kubelet.api import v1
from trio_kubelet.nodepage.rows import Work

if TYPE_CHECKING:
    from playwright.sync_api import Page

MARKUP = (
    "<img src=x onerror=document.body.dataset.owned=1><script>document.body.dataset.owned=1</script>&lt;b&gt;"
)

WAITS_IN_HEBREW = v1.ContainerStateWaiting(reason="שלום עולם")


def shows(page: Page, where: str) -> bool:
    """Whether the markup is there to be read."""
    return MARKUP in page.locator(where).inner_text().replace('\\"', '"')


def owned(page: Page) -> bool:
    return bool(page.evaluate("document.body.dataset.owned !== undefined || document.images.length > 0"))


def test_what_comes_from_pods_is_text(browser: BrowserThread) -> None:
    """A hostile name, label, message, image, event, story and log line."""
    node = FakeNode()
    waiting = v1.ContainerState(waiting=v1.ContainerStateWaiting(reason=MARKUP, message=MARKUP))
    pod = facts(
        MARKUP,
        container_status(MARKUP, state=waiting),
        namespace=MARKUP,
        phase="Pending",
        containers=[v1.Container(name=MARKUP, image=MARKUP)],
        work=Work(error=MARKUP),
    )
    pod.pod.metadata.uid = "hostile"
    pod.pod.metadata.labels = {MARKUP: MARKUP}
    pod = msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, message=MARKUP))
    node.put(pod)
    node.stories["hostile"] = [{"at": 1, "cause": MARKUP, "text": MARKUP, "count": 1}]
    node.logs[f"hostile/{MARKUP}"] = MARKUP
    node.configs = {"sandboxConfig": {MARKUP: [MARKUP]}, "\u202edesrever": ["\u2067too"]}

    def steps(page: Page, site: Site) -> None:
        feed = site.feed
        assert feed is not None
        event = {
            "at": 1,
            "type": MARKUP,
            "reason": MARKUP,
            "message": MARKUP,
            "pod": MARKUP,
            "container": MARKUP,
        }
        site.do(lambda: feed.event({**event, "uid": "hostile", "count": 2}))
        page.wait_for_selector("#events-list li >> text=<img")
        page.locator("#list .twist").click()
        page.locator("#list .row").first.click()
        for tab, where in (
            ("story", "#story"),
            ("log", "#log"),
            ("manifest", "#manifest"),
            ("configs", "#configs"),
        ):
            page.click(f"[data-tab={tab}]")
            until(partial(shows, page, where), where)
        configs = page.locator("#configs").inner_text()
        assert '"\\u202edesrever":\n- "\\u2067too"' in configs, "what turns the direction of text"
        assert page.locator("#detail-name").inner_text() == f"{MARKUP}/{MARKUP}"
        assert page.title() == "test-node"
        assert not owned(page)

    look(browser, node, steps)


def test_what_is_read_from_right_to_left_leaves_its_neighbours_in_their_places(
    browser: BrowserThread,
) -> None:
    node = FakeNode()
    node.put(facts("web", container_status("main", state=v1.ContainerState(waiting=WAITS_IN_HEBREW))))

    def steps(page: Page, site: Site) -> None:
        row(page, "web").click()
        page.wait_for_selector("#detail-facts >> text=0/1 ready")
        state, ready = page.locator("#detail-facts").evaluate(
            """(node) => ["שלום", "0/1"].map((words) => {
                const range = document.createRange(), at = node.firstChild.data.indexOf(words);
                range.setStart(node.firstChild, at);
                range.setEnd(node.firstChild, at + words.length);
                return range.getBoundingClientRect().left;
            })"""
        )
        assert state < ready

    look(browser, node, steps)


def test_the_policy_lets_nothing_in(browser: BrowserThread) -> None:
    """If markup ever got in, no script of it would run, no style apply and nothing be sent elsewhere."""

    def steps(page: Page, site: Site) -> None:
        tried = page.evaluate(
            """async () => {
                const script = document.createElement("script");
                try { script.textContent = "document.body.dataset.owned = 1"; } catch { /* trusted types */ }
                document.body.append(script);
                let html = "set";
                try { document.body.insertAdjacentHTML("beforeend", "<b>x</b>"); } catch { html = "refused"; }
                const sent = await fetch("http://127.0.0.1:9/").then(() => "sent", () => "refused");
                return [html, sent, document.body.dataset.owned || "unharmed"];
            }"""
        )
        assert tried == ["refused", "refused", "unharmed"]
        wrong(page).clear()

    look(browser, FakeNode(1), steps)
