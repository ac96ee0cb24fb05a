"""A node has thousands of pods: what of the list is there, and how one is found in it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from tests.browser.browser import BrowserThread, Site
from tests.browser.page import look, row, until
from tests.nodepage.nodes import FakeNode, container_status, facts
from trio_kubelet.api import v1
from trio_kubelet.nodepage.doors import Use

if TYPE_CHECKING:
    from playwright.sync_api import Page


def test_it_says_how_many_more_there_are_than_it_shows(browser: BrowserThread) -> None:
    node = FakeNode()
    crashed = v1.ContainerState(waiting=v1.ContainerStateWaiting(reason="CrashLoopBackOff"))
    node.put(facts("crowd", *(container_status(f"c-{number}", state=crashed) for number in range(70))))

    def steps(page: Page, site: Site) -> None:
        page.wait_for_selector("#waits-list >> text=and 58 more")
        row(page, "crowd").locator(".twist").click()
        page.wait_for_selector("#list .row.container")
        page.locator("#list").evaluate("list => { list.scrollTop = list.scrollHeight; }")
        page.wait_for_selector("#list .row.container >> text=and 6 more")
        page.locator("#list .row.container").last.click()
        page.wait_for_selector("#detail-containers >> text=and 6 more containers")
        page.wait_for_selector("#detail-waits >> text=and 58 more")
        page.click("[data-tab=log]")
        page.locator("#log-container").select_option("c-69")
        page.wait_for_selector("#log >> text=of the last")

    node.logs["uid-crowd/c-69"] = "of the last"
    look(browser, node, steps)


def test_the_search_finds_names_as_the_page_writes_them(browser: BrowserThread) -> None:
    node = FakeNode(3)
    node.put(facts("web", namespace="shop"))

    def steps(page: Page, site: Site) -> None:
        names = page.locator("#list .row b")
        page.fill("#search", "shop/we")
        until(lambda: names.all_inner_texts() == ["web"])
        page.fill("#search", "default/pod-00")
        until(lambda: names.all_inner_texts() == ["pod-000", "pod-001", "pod-002"])
        page.fill("#search", "10.0.0.9")
        until(lambda: names.count() == 4)

    look(browser, node, steps)


@pytest.mark.parametrize("width", [360, 700, 1000, 1280, 1440])
def test_pods_of_one_controller_can_be_told_apart(browser: BrowserThread, width: int) -> None:
    node = FakeNode()
    crashed = v1.ContainerState(waiting=v1.ContainerStateWaiting(reason="CrashLoopBackOff"))
    name = "a-rather-long-payments-api-7c9f6d5b8-00a19"
    status = container_status("main", restarts=1234, state=crashed)
    node.put(facts(name, status, namespace="team-5", held={"main": time.time_ns() + 299 * 10**9}))

    def steps(page: Page, site: Site) -> None:
        pod = page.locator("#list .row")
        pod.wait_for()
        assert pod.locator("b").inner_text() == name  # as it is copied
        assert pod.get_by_role("gridcell", name=f"team-5/{name}").count() == 1
        whole = "one => one.scrollWidth <= one.clientWidth"
        edge = "one => one.getBoundingClientRect().right"
        end = pod.locator("b > :last-child")
        assert end.inner_text() == "-00a19"
        assert end.evaluate(edge) <= pod.locator(".name").evaluate(edge)
        assert pod.locator("b > :first-child").evaluate("one => one.clientWidth") > 60
        for other in (".name i", ".state span:last-child"):
            assert pod.locator(other).evaluate(whole)
        waits = pod.locator(".wait")
        assert waits.inner_text().startswith("in 4m")
        assert waits.evaluate("one => one.clientWidth") > 55, "the countdown can be read"
        page.locator("#views").get_by_role("button", name="Charts").click() if width < 1100 else None
        page.locator("#cards").wait_for()

    look(browser, node, steps, viewport={"width": width, "height": 700})


def test_in_the_order_of_what_they_use_all_pods_count(browser: BrowserThread) -> None:
    class Uneven(FakeNode):
        async def use(self, uids: Sequence[str]) -> dict[str, dict[str, Use]]:
            return {uid: {"main": Use(900 if uid == "uid-pod-299" else 10, 4096)} for uid in uids}

    def steps(page: Page, site: Site) -> None:
        page.wait_for_selector("#list .row .meter[title='10m, no limit']")
        page.click("#columns [data-key=cpu] button")
        page.wait_for_selector("#list .row .meter[title='900m, no limit']")
        assert page.locator("#list .row").first.locator(".name").get_attribute("title") == "default/pod-299"

    look(browser, Uneven(300), steps)


def test_only_rows_in_view_are_in_the_dom(browser: BrowserThread) -> None:
    def steps(page: Page, site: Site) -> None:
        rows = page.locator("#list .row")
        row(page, "pod-000").wait_for()
        assert page.locator("#about").inner_text().startswith("500 pods")
        assert rows.count() < 60
        page.locator("#list").evaluate("list => { list.scrollTop = list.scrollHeight; }")
        row(page, "pod-499").wait_for()
        assert rows.count() < 60
        assert row(page, "pod-000").count() == 0

    look(browser, FakeNode(500), steps)
