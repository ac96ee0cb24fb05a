"""Windows of all sizes, schemes of colours, paper: everything can be read."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.browser import BrowserThread, Site
from tests.browser.page import colour, look, row, until, waiting_node
from tests.nodepage.nodes import FakeNode, container_status, facts
from trio_kubelet.nodepage.doors import Use

if TYPE_CHECKING:
    from playwright.sync_api import Page


def test_forced_colours_hide_no_state(browser: BrowserThread) -> None:
    def steps(page: Page, site: Site) -> None:
        row(page, "pod-000").click()
        page.wait_for_selector("#list .row[aria-selected=true]")

        def style(of: str, name: str) -> str:
            asked = "([of, name]) => getComputedStyle(document.querySelector(of))[name]"
            return str(page.evaluate(asked, [of, name]))

        dots = {
            style(f"#health [data-health={health}] .dot", "backgroundColor") for health in ("good", "bad")
        }
        assert len(dots) == 2
        assert style("#list .row[aria-selected=true]", "outlineStyle") == "solid"
        edges = {
            style(f"#tabs [aria-selected={is_selected}]", "borderBottomColor")
            for is_selected in ("true", "false")
        }
        assert len(edges) == 2

    look(browser, waiting_node(), steps, forced_colors="active")


def _node_with_a_long_log() -> FakeNode:
    node = FakeNode(1)
    node.logs["uid-pod-000/main"] = "".join(f"line {number}\n" for number in range(300))
    return node


def _open_log(page: Page) -> None:
    row(page, "pod-000").click()
    page.click("[data-tab=log]")
    page.wait_for_selector("#log >> text=line 299")


def test_a_long_log_leaves_its_choices_in_view(browser: BrowserThread) -> None:
    node = _node_with_a_long_log()

    def steps(page: Page, site: Site) -> None:
        _open_log(page)
        until(lambda: page.locator("#panel").evaluate("panel => panel.scrollTop > 1000"), "its end is shown")
        place = page.locator("#log-container").bounding_box()
        panel = page.locator("#panel").bounding_box()
        assert place is not None
        assert panel is not None
        assert panel["y"] <= place["y"] < panel["y"] + 40

    look(browser, node, steps)


def test_states_can_be_read_whole(browser: BrowserThread) -> None:
    def steps(page: Page, site: Site) -> None:
        state = row(page, "crashes").locator(".state span").last
        assert state.inner_text() == "CrashLoopBackOff"
        whole = "one => one.scrollWidth <= one.clientWidth"
        assert state.evaluate(whole)
        cells = {"age": "7h59m", "restarts": "1234"}
        fits = "(one, text) => { one.textContent = text; return one.scrollWidth <= one.clientWidth; }"
        for cell, text in cells.items():
            assert row(page, "crashes").locator(f".{cell}").evaluate(fits, text)
        row(page, "pulls").click()
        page.wait_for_selector("#story >> text=Nothing is remembered")
        assert state.evaluate(whole), "beside a pod"
        for cell, text in cells.items():
            assert row(page, "crashes").locator(f".{cell}").evaluate(fits, text)
        height = page.locator("#story .empty").evaluate("one => one.clientHeight")
        assert height < 40, "on one line"

    look(browser, waiting_node(), steps, viewport={"width": 1280, "height": 760})


def test_an_event_of_a_pod_with_a_long_name_can_be_read(browser: BrowserThread) -> None:
    long = "a-namespace-with-a-rather-long-name"

    def steps(page: Page, site: Site) -> None:
        feed = site.feed
        assert feed is not None
        about = {"uid": "uid-web", "pod": f"{long}/web", "container": "", "at": time.time_ns() // 10**6}
        said = {"type": "Warning", "reason": "FailedCreatePodSandBox", "message": "again", "count": 1234}
        site.do(lambda: feed.event({**about, **said}))
        top = page.locator("#events-list .top")
        top.wait_for()
        heights = top.evaluate("top => [...top.children].map((one) => one.getBoundingClientRect().height)")
        assert heights[1] > 30 > max(heights[0], *heights[2:]), "only the name goes on in a second line"
        tops = top.evaluate("top => [...top.children].map((one) => one.getBoundingClientRect().top)")
        assert max(tops) - min(tops) < 5

    node = FakeNode()
    node.put(facts("web", namespace=long))
    look(browser, node, steps, viewport={"width": 1280, "height": 760})


def test_a_pod_is_printed_as_a_whole(browser: BrowserThread) -> None:
    node = _node_with_a_long_log()

    def steps(page: Page, site: Site) -> None:
        _open_log(page)
        page.emulate_media(media="print")
        height = page.locator("#log").evaluate("log => log.getBoundingClientRect().height")
        assert height > 300 * 12
        assert page.evaluate("document.documentElement.scrollHeight") > height
        assert page.pdf().count(b"/Type /Page\n") > 3

    look(browser, node, steps)


def test_the_list_is_printed_as_a_whole(browser: BrowserThread) -> None:
    def steps(page: Page, site: Site) -> None:
        row(page, "pod-000").wait_for()
        assert page.locator("#list .row").count() < 60
        assert page.pdf().count(b"/Type /Page\n") > 8
        until(lambda: page.locator("#list .row").count() < 60)  # on the screen as before
        page.emulate_media(media="print")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        bottom = "row => row.getBoundingClientRect().bottom"
        bottoms = page.locator("#list .row").evaluate_all(f"rows => rows.map({bottom})")
        assert len(bottoms) == 200
        assert bottoms == sorted(set(bottoms))

    look(browser, FakeNode(200), steps)


def test_in_a_low_window_all_of_a_pod_can_be_reached(browser: BrowserThread) -> None:
    """As where 1280 × 1024 is shown four times as large."""

    def steps(page: Page, site: Site) -> None:
        row(page, "crashes").click()
        page.wait_for_selector("#detail")
        bottom = "id => document.getElementById(id).getBoundingClientRect().bottom"
        bottoms = [page.evaluate(bottom, of) for of in ("tabs", "panel", "detail")]
        assert bottoms == sorted(bottoms)
        page.evaluate("scrollTo(0, 9999)")
        assert page.evaluate(bottom, "panel") <= page.evaluate("innerHeight")

    look(browser, waiting_node(), steps, viewport={"width": 320, "height": 256})


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_light_and_a_dark_scheme_that_can_be_read(browser: BrowserThread, scheme: Any) -> None:
    def steps(page: Page, site: Site) -> None:
        row(page, "pod-000").wait_for()
        text = page.evaluate("getComputedStyle(document.body).color")
        ground = page.evaluate("getComputedStyle(document.querySelector('#pods')).backgroundColor")
        assert contrast(text, ground) > 7
        assert (luminance(ground) > 0.5) == (scheme == "light")
        for name in ("quiet", "busy", "bad", "accent"):
            for below in ("plane", "accent-soft"):
                assert contrast(colour(page, name), colour(page, below)) > 4.5, (name, below)
        none = page.locator("#health [data-none]").first
        style = "one => { const { color, opacity } = getComputedStyle(one); return [color, opacity]; }"
        assert none.evaluate(style) == [colour(page, "quiet"), "1"]
        asked = "getComputedStyle(document.getElementById('search'), '::placeholder').color"
        assert contrast(page.evaluate(asked), colour(page, "ground")) > 4.5

    look(browser, FakeNode(1), steps, color_scheme=scheme)


def luminance(colour: str) -> float:
    """Of `rgb(…)`, by the rules for readable pages (WCAG 2)."""
    parts = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    red, green, blue = ((p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4) for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_on_a_phone_everything_is_there_and_nothing_sticks_out(browser: BrowserThread) -> None:
    node = FakeNode(50)
    long = "a-pod-with-" + "a-very-long-name-" * 12
    node.put(facts(long[:250], namespace="a-namespace-that-is-long-too"))
    node.used = {"main": Use(125, 187 << 20)}

    def steps(page: Page, site: Site) -> None:
        def fits() -> bool:
            return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))

        first = row(page, "pod-001")
        first.locator(".meter >> text=125m").wait_for()
        assert [first.locator(cell).is_visible() for cell in (".ready", ".age", ".restarts")] == [
            True,
            True,
            False,
        ]
        assert fits()
        for view, seen in (
            ("waits", "#waits-list"),
            ("events", "#events-list"),
            ("charts", "#cards"),
            ("pods", "#list"),
        ):
            page.click(f"[data-view={view}]")
            page.wait_for_selector(seen)
            assert fits()
        site.do(lambda: site.node.put(facts("restarts", container_status("main", restarts=7))))
        page.get_by_label("Sort pods by").select_option("Restarts")
        until(lambda: page.locator("#list .row b").first.inner_text() == "restarts")
        assert [cell.inner_text() for cell in row(page, "restarts").locator(".ready, .restarts").all()] == [
            "1/1",
            "7",
        ]
        page.get_by_label("Sort pods by").select_option("Name")
        row(page, "pod-001").click()
        page.wait_for_selector("#detail-name >> text=default/pod-001")
        assert "1/1 ready" in page.locator("#detail-facts").inner_text()
        assert not page.is_visible("#list")
        assert fits()
        page.go_back()
        page.wait_for_selector("#list")

    look(browser, node, steps, viewport={"width": 360, "height": 700}, is_mobile=True, has_touch=True)
