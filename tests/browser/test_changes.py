"""What changes while somebody reads, and what stays where it is."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tests.browser.browser import BrowserThread, Site
from tests.browser.page import focused, gone, look, row, until, waiting_node
from tests.nodepage.nodes import FakeNode, container_status, facts
from trio_kubelet.api import v1

if TYPE_CHECKING:
    from playwright.sync_api import Page


def test_a_change_is_seen_soon_and_a_pod_that_goes_is_gone(browser: BrowserThread) -> None:
    node = FakeNode(3)

    def steps(page: Page, site: Site) -> None:
        ended = v1.ContainerState(terminated=v1.ContainerStateTerminated(exit_code=1, reason="Error"))
        site.do(lambda: node.put(facts("pod-001", container_status("main", state=ended))))
        page.wait_for_selector("#list .row[data-health=bad] >> text=Error")
        site.do(lambda: node.drop("uid-pod-002"))
        until(lambda: row(page, "pod-002").count() == 0)
        site.do(lambda: node.put(facts("newcomer")))
        row(page, "newcomer").wait_for()

    look(browser, node, steps)


def test_of_a_pod_that_goes_stays_what_is_known(browser: BrowserThread) -> None:
    node = FakeNode(2)
    node.logs["uid-pod-001/main"] = "last words\n"

    def steps(page: Page, site: Site) -> None:
        row(page, "pod-001").click()
        page.click("[data-tab=log]")
        page.wait_for_selector("#log >> text=last words")
        site.do(lambda: gone(site, "uid-pod-001"))
        site.do(node.logs.clear)
        page.wait_for_selector("#detail-facts >> text=This pod is gone")
        page.click("[data-tab=manifest]")
        page.wait_for_selector("#manifest >> text=name: pod-001")
        page.wait_for_timeout(1000)  # the empty log has been told
        page.click("[data-tab=log]")
        page.wait_for_selector("#log >> text=last words")
        page.click("[data-tab=story]")
        page.wait_for_selector("#story >> text=Nothing is remembered")

    look(browser, node, steps)


def test_from_a_pod_that_is_gone_one_gets_to_that_which_has_its_name_now(browser: BrowserThread) -> None:
    """As a static pod whose manifest was edited: it is another one, with another UID."""
    node = FakeNode(2)
    node.logs["uid-again/main"] = "begun anew\n"
    again = facts("pod-001")
    again.pod.metadata.uid = "uid-again"

    def steps(page: Page, site: Site) -> None:
        row(page, "pod-001").click()
        page.click("[data-tab=log]")
        site.do(lambda: gone(site, "uid-pod-001"))
        page.wait_for_selector("#detail-facts >> text=This pod is gone")
        assert not page.is_visible("#heir")
        site.do(lambda: node.put(again))
        page.wait_for_selector("#heir >> text=Another pod has its name now.")
        assert page.locator("#log").inner_text() == "Its output is gone, too."
        page.click("#heir button")
        page.wait_for_selector("#log >> text=begun anew")
        assert not page.is_visible("#heir")
        assert page.evaluate("document.activeElement.id") == "panel"  # the button has gone

    look(browser, node, steps)


def test_a_link_to_a_pod_that_is_gone_says_so(browser: BrowserThread) -> None:
    node = FakeNode(1)
    told = {"at": time.time_ns() // 10**6, "cause": "worker", "text": "KillPod", "count": 1}
    node.stories["uid-late"] = [told]

    def steps(page: Page, site: Site) -> None:
        feed = site.feed
        assert feed is not None
        about = {"uid": "uid-late", "pod": "shop/late", "container": "", "at": told["at"], "count": 1}
        site.do(lambda: feed.event({**about, "type": "Normal", "reason": "Killing", "message": "it ends"}))
        page.goto(f"{site.address}#pod=uid-late")
        page.wait_for_selector("#detail-facts >> text=This pod is gone")
        page.wait_for_selector("#detail-name >> text=shop/late")
        page.wait_for_selector("#story >> text=KillPod")
        page.click("[data-tab=log]")
        page.wait_for_selector("#log >> text=Its output is gone, too.")
        page.click("[data-tab=manifest]")
        page.wait_for_selector("#manifest >> text=It is not known any more.")
        row(page, "pod-000").click()
        page.wait_for_selector("#manifest >> text=name: pod-000")
        page.goto(f"{site.address}#pod=uid-never")
        page.wait_for_selector("#detail-name >> text=An unknown pod")
        assert page.locator("#detail-containers .box").count() == 0
        page.keyboard.press("Escape")
        page.wait_for_selector("#detail", state="hidden")

    look(browser, node, steps)


def test_a_link_to_a_pod_that_is_yet_to_come_shows_its_log(browser: BrowserThread) -> None:
    """As that of a page that is loaded anew beside an agent that knows only its static pods yet."""
    node = FakeNode(1)
    node.logs["uid-late/main"] = "first words\n"

    def steps(page: Page, site: Site) -> None:
        page.goto(f"{site.address}#pod=uid-late")
        page.wait_for_selector("#detail-name >> text=An unknown pod")
        page.click("[data-tab=log]")
        site.do(lambda: node.put(facts("late")))
        page.wait_for_selector("#log >> text=first words")
        assert page.input_value("#log-container") == "main"

    look(browser, node, steps)


def test_what_is_drawn_again_keeps_the_focus_and_the_selection(browser: BrowserThread) -> None:
    """Countdowns and ages are drawn each second."""

    def steps(page: Page, site: Site) -> None:
        pulls = page.locator("#waits-list li", has_text="big:1").locator(".dim")
        page.locator("#waits-list button", has_text="pulls").focus()
        first = pulls.inner_text()
        until(lambda: pulls.inner_text() != first)
        assert focused(page) == "pulls"
        page.keyboard.press("Enter")
        page.wait_for_selector("#detail-name >> text=default/pulls")
        row(page, "pod-000").click()
        page.wait_for_selector("#story >> text=StartContainer main")
        page.evaluate("getSelection().selectAllChildren(document.querySelector('#story li').lastChild)")
        told = page.locator("#story li span").first
        first = told.inner_text()
        until(lambda: told.inner_text() != first)
        assert page.evaluate("String(getSelection())") == "StartContainer main"

    look(browser, waiting_node(), steps)


def test_events_that_come_again_leave_the_others_alone(browser: BrowserThread) -> None:
    def steps(page: Page, site: Site) -> None:
        feed = site.feed
        assert feed is not None

        def tell(pod: str, message: str, count: int = 1) -> None:
            about = {"uid": f"uid-{pod}", "pod": f"default/{pod}", "container": ""}
            what = {"at": time.time_ns() // 10**6, "type": "Normal", "reason": "Started", "message": message}
            site.do(lambda: feed.event({**about, **what, "count": count}))
            page.wait_for_selector(f"#events-list li >> text={message}")

        for number in range(40):
            tell("pod-000", f"message {number}.")
        tell("pod-001", "again.")
        listed = page.locator("#events-list")
        listed.locator("li", has_text="message 20.").locator("button").focus()
        listed.evaluate("list => list.scrollTop = 900")
        told = listed.locator("li", has_text="message 22.").locator("> .dim")
        told.evaluate("one => getSelection().selectAllChildren(one)")
        place = told.bounding_box()
        tell("pod-001", "again.", 2)
        page.wait_for_selector("#events-list li >> text=×2")
        assert "message 20." in page.evaluate("document.activeElement.closest('li').textContent")
        assert page.evaluate("String(getSelection())") == "message 22."
        assert told.bounding_box() == place
        listed.locator("li", has_text="again.").locator("button").focus()
        tell("pod-001", "again.", 3)
        page.wait_for_selector("#events-list li >> text=×3")
        assert focused(page) == "pod-001"
        site.do(lambda: gone(site, "uid-pod-001"))
        until(lambda: listed.locator("li", has_text="again.").locator("button").count() == 0)

    look(browser, FakeNode(2), steps)


def test_rows_that_come_and_go_leave_the_reader_where_he_is(browser: BrowserThread) -> None:
    def steps(page: Page, site: Site) -> None:
        row(page, "pod-000").wait_for()
        page.locator("#list").evaluate("list => list.scrollTop = 7200")
        read = row(page, "pod-205")
        read.wait_for()
        place = read.bounding_box()

        def more() -> None:
            for number in range(10):
                site.node.put(facts(f"earlier-{number}"))

        site.do(more)
        page.wait_for_selector("#about >> text=510 pods")
        assert read.bounding_box() == place
        read.click()
        page.keyboard.press("Escape")
        site.do(lambda: gone(site, "uid-pod-205"))
        page.wait_for_selector("#about >> text=509 pods")
        page.keyboard.press("ArrowDown")
        page.wait_for_selector("#list .row.active >> text=pod-206")
        site.do(lambda: gone(site, "uid-pod-206"))
        page.wait_for_selector("#about >> text=508 pods")
        page.keyboard.press("ArrowUp")
        page.wait_for_selector("#list .row.active >> text=pod-204")
        row(page, "pod-200").wait_for()

    look(browser, FakeNode(500), steps)


def test_back_and_links_to_a_pod(browser: BrowserThread) -> None:
    def steps(page: Page, site: Site) -> None:
        entries = page.evaluate("history.length")
        for name in ("pod-000", "pod-001", "pod-002"):
            row(page, name).click()
            page.wait_for_selector(f"#detail-name >> text=default/{name}")
            page.keyboard.press("Escape")
            page.wait_for_selector("#detail", state="hidden")
        assert page.evaluate("history.length") == entries + 1
        row(page, "pod-001").click()
        page.wait_for_selector("#detail")
        page.reload()
        page.wait_for_selector("#detail-name >> text=default/pod-001")
        page.go_back()
        page.wait_for_selector("#detail", state="hidden")
        page.go_forward()
        page.wait_for_selector("#detail-name >> text=default/pod-001")
        for nothing in ("%E0%A4", "x" * 40_000):  # what is no text, or too long, names no pod
            page.goto(f"{site.address}#pod={nothing}")
            page.reload()
            row(page, "pod-001").wait_for()
            page.wait_for_timeout(300)
            assert not page.is_visible("#detail")
            assert page.get_attribute("html", "data-link") == "live"

    look(browser, FakeNode(3), steps)


def test_a_tab_in_the_background_counts_what_is_in_trouble(browser: BrowserThread) -> None:
    def steps(page: Page, site: Site) -> None:
        until(lambda: page.title() == "test-node")
        page.evaluate(
            """() => {
                Object.defineProperty(document, "hidden", {get: () => true});
                window.requestAnimationFrame = () => 1;
            }"""
        )
        crashed = v1.ContainerState(waiting=v1.ContainerStateWaiting(reason="CrashLoopBackOff"))
        site.do(lambda: site.node.put(facts("pod-000", container_status("main", state=crashed))))
        until(lambda: page.title() == "(1) test-node")

    look(browser, FakeNode(1), steps)
