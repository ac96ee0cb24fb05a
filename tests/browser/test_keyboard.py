"""The page without a mouse, and as it is read aloud."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.browser.browser import BrowserThread, Site
from tests.browser.page import focused, look, row, until, waiting_node
from tests.nodepage.nodes import FakeNode

if TYPE_CHECKING:
    from playwright.sync_api import Page


def test_it_works_with_the_keyboard(browser: BrowserThread) -> None:
    def steps(page: Page, site: Site) -> None:
        active = page.locator("#list .row[aria-selected=true] b")
        row(page, "pod-000").wait_for()
        for _ in range(3):
            page.keyboard.press("ArrowDown")
        until(lambda: active.all_inner_texts() == ["pod-002"])
        page.keyboard.press("ArrowUp")
        until(lambda: active.all_inner_texts() == ["pod-001"])
        page.keyboard.press("ArrowRight")
        page.wait_for_selector("#list .row.container")
        page.keyboard.press("ArrowLeft")
        until(lambda: page.locator("#list .row.container").count() == 0)
        page.keyboard.press("Enter")
        page.wait_for_selector("#detail-name >> text=default/pod-001")
        page.keyboard.press("Escape")
        page.wait_for_selector("#detail", state="hidden")
        page.keyboard.press("End")
        until(lambda: active.all_inner_texts() == ["pod-499"])
        page.keyboard.press("/")
        page.keyboard.type("pod-12")
        until(lambda: page.locator("#list .row b").all_inner_texts() == [f"pod-12{n}" for n in range(10)])
        page.keyboard.press("Enter")
        page.wait_for_selector("#detail-name >> text=default/pod-120")
        page.keyboard.press("Escape")
        page.keyboard.press("/")
        page.keyboard.press("Escape")
        until(lambda: page.locator("#list .row").count() > 11)

    look(browser, FakeNode(500), steps)


def test_keys_of_an_input_method_are_not_the_pages(browser: BrowserThread) -> None:
    """The Enter that ends a composed word opens no pod, the Escape that ends it clears no search."""

    def steps(page: Page, site: Site) -> None:
        row(page, "pod-001").wait_for()
        page.fill("#search", "pod")
        page.focus("#search")
        for key in ("Enter", "Escape"):
            page.locator("#search").dispatch_event("keydown", {"key": key, "isComposing": True})
        page.wait_for_timeout(300)
        assert not page.is_visible("#detail")
        assert page.input_value("#search") == "pod"
        page.keyboard.press("Enter")
        page.wait_for_selector("#detail")

    look(browser, FakeNode(2), steps)


def test_the_tab_key_goes_through_all_that_can_be_done(browser: BrowserThread) -> None:
    def steps(page: Page, site: Site) -> None:
        row(page, "pod-000").wait_for()

        def tabs(count: int) -> list[str]:
            found = []
            for _ in range(count):
                page.keyboard.press("Tab")
                found.append(focused(page))
            return found

        assert [name.lstrip("0123456789 ") for name in tabs(4)] == [
            *("running", "on their way", "in trouble", "completed"),
        ]
        assert tabs(2)[1] == "Pods and containers"
        assert tabs(8) == ["Name", "State", "Ready", "Restarts", "Age", "CPU", "Memory", "Waiting for"]
        assert tabs(2) == ["crashes", "pulls"]
        page.locator("#list").focus()
        page.keyboard.press("ArrowDown")
        page.wait_for_selector("#list .row.active")
        outlined = "document.querySelector('#list .row.active').computedStyleMap().get('outline-style').value"
        assert page.evaluate(outlined) == "solid"
        page.keyboard.press("Enter")
        page.wait_for_selector("#detail")
        page.locator("#close").focus()
        assert tabs(1) == ["Story"]  # one of the tabs; arrows go to the others
        page.keyboard.press("ArrowRight")
        assert focused(page) == "Log"
        page.wait_for_selector("#panel[aria-labelledby=tab-log]")

    look(browser, waiting_node(), steps)


def test_the_list_is_a_treegrid_in_the_order_in_which_it_is_read(browser: BrowserThread) -> None:
    def steps(page: Page, site: Site) -> None:
        row(page, "pod-000").wait_for()
        grid = page.get_by_role("treegrid")
        sort = grid.get_by_role("columnheader", name="Restarts")
        sort.get_by_role("button").click()
        until(lambda: sort.get_attribute("aria-sort") == "descending")
        sort.get_by_role("button").click()
        until(lambda: sort.get_attribute("aria-sort") == "ascending")
        lists = page.locator("#list")
        for top, seen in ((3600, "pod-100"), (3200, "pod-090")):
            lists.evaluate("(list, top) => { list.scrollTop = top; }", top)
            row(page, seen).wait_for()
        indexes = lists.evaluate(
            "list => [...list.querySelectorAll('[role=row]')].map((row) => +row.ariaRowIndex)"
        )
        assert indexes == sorted(indexes)
        columns = "one => [...one.children].map((cell) => +cell.ariaColIndex)"
        assert page.locator("#columns").evaluate(columns) == [*range(1, 9)]
        assert row(page, "pod-090").evaluate(columns) == [*range(1, 9)]  # those without a figure are not read
        assert row(page, "pod-090").get_by_role("button").get_attribute("aria-label") == "Containers"
        page.fill("#search", "nothing is called so")
        page.wait_for_selector("#none >> text=No pod fits.")
        assert sort.is_visible()

    look(browser, FakeNode(500), steps)


def test_where_there_is_no_room_for_both_the_focus_goes_to_the_pod_and_back(browser: BrowserThread) -> None:
    def steps(page: Page, site: Site) -> None:
        row(page, "pod-000").wait_for()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        page.wait_for_selector("#detail")
        assert focused(page) == "Close"
        page.keyboard.press("Escape")
        page.wait_for_selector("#detail", state="hidden")
        assert focused(page) == "Pods and containers"
        page.get_by_role("button", name="in trouble").focus()  # though only its number is there to be seen
        page.click("[data-view=waits]")
        page.locator("#waits-list button").first.focus()
        page.keyboard.press("Enter")
        page.wait_for_selector("#detail")
        page.keyboard.press("Escape")
        page.wait_for_selector("#detail", state="hidden")
        assert focused(page) == "crashes"

    look(browser, waiting_node(), steps, viewport={"width": 700, "height": 450})
