"""The page of the node in a real browser, over a node that is what each test says."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.browser.browser import PATIENCE, BrowserThread, Site, new_page, serving, wrong
from tests.nodepage.nodes import FakeNode, container_status, facts
from trio_kubelet.api import v1
from trio_kubelet.nodepage.doors import Use
from trio_kubelet.nodepage.rows import Pulling, Work
from trio_kubelet.server.http.messages import Response
from trio_kubelet.server.pages import node_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

MARKUP = (
    "<img src=x onerror=document.body.dataset.owned=1><script>document.body.dataset.owned=1</script>&lt;b&gt;"
)


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


def until(met: Callable[[], object], what: str = "") -> None:
    """Waits for what the page does not tell playwright about."""
    deadline = time.monotonic() + PATIENCE / 1000
    while not met():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def shows(page: Page, where: str) -> bool:
    """Whether the markup is there to be read."""
    return MARKUP in page.locator(where).inner_text().replace('\\"', '"')


def owned(page: Page) -> bool:
    return bool(page.evaluate("document.body.dataset.owned !== undefined || document.images.length > 0"))


def test_pods_and_containers_with_what_they_use(browser: BrowserThread) -> None:
    node = FakeNode()
    limits = v1.ResourceRequirements(limits={"cpu": "100m", "memory": "64Mi"})
    probed = v1.Container(
        name="main",
        image="busybox:1",
        resources=limits,
        liveness_probe=v1.Probe(),
        readiness_probe=v1.Probe(),
    )
    verdicts = {"liveness": {"main-id": "success"}, "readiness": {"main-id": "failure"}}
    node.put(facts("web", container_status("main", restarts=4), containers=[probed], verdicts=verdicts))
    node.used = {"main": Use(25, 32 << 20)}

    def steps(page: Page, site: Site) -> None:
        web = row(page, "web")
        assert web.locator(".state").inner_text() == "Running"
        assert web.locator(".ready").inner_text() == "1/1"
        assert web.locator(".restarts").inner_text() == "4"
        assert web.locator(".age").inner_text()
        page.wait_for_selector(".meter[title='25m of 100m']")
        page.wait_for_selector(".meter[title='32 MiB of 64 MiB']")
        web.locator(".twist").click()
        page.wait_for_selector("#list .row.container")
        web.click()
        box = page.locator("#detail-containers .box")
        assert box.locator(".chip").all_inner_texts() == ["liveness", "readiness"]
        assert box.locator(".chip .dot").evaluate_all("all => all.map((one) => one.dataset.health)") == [
            "good",
            "bad",
        ]
        assert "4 restarts" in box.inner_text()

    look(browser, node, steps)


def test_ages_are_in_kubectls_words(browser: BrowserThread) -> None:
    pod, day = facts("web"), 86400
    began = time.gmtime(time.time() - (3 * 365 + 5) * day - 60)
    status = msgspec.structs.replace(pod.status, start_time=time.strftime("%Y-%m-%dT%H:%M:%SZ", began))
    node = FakeNode()
    node.put(msgspec.structs.replace(pod, status=status))

    def steps(page: Page, site: Site) -> None:
        assert row(page, "web").locator(".age").inner_text() == "3y5d"

    look(browser, node, steps)


def test_a_container_and_a_probe_have_the_colour_of_their_own_state(browser: BrowserThread) -> None:
    node = FakeNode()
    crashed = v1.ContainerState(waiting=v1.ContainerStateWaiting(reason="CrashLoopBackOff"))
    probe = v1.Probe()
    probed = v1.Container(name="main", image="busybox:1", liveness_probe=probe, readiness_probe=probe)
    node.put(
        facts(
            "web",
            container_status("main", ready=False),
            container_status("other", state=crashed),
            containers=[probed, v1.Container(name="other", image="busybox:1")],
            verdicts={"liveness": {"main-id": "success"}, "readiness": {"main-id": "failure"}},
        )
    )

    def steps(page: Page, site: Site) -> None:
        row(page, "web").click()
        dots = page.locator("#detail-containers .dot")
        dots.last.wait_for()
        shown = dots.evaluate_all("all => all.map((one) => getComputedStyle(one).backgroundColor)")
        assert shown == [colour(page, name) for name in ("busy", "good", "bad", "bad")]

    look(browser, node, steps)


def test_events_waits_and_countdowns(browser: BrowserThread) -> None:
    node = FakeNode()
    creating = v1.ContainerState(waiting=v1.ContainerStateWaiting(reason="ContainerCreating"))
    crashed = v1.ContainerState(
        waiting=v1.ContainerStateWaiting(
            reason="CrashLoopBackOff", message="back-off 40s restarting failed container=main"
        )
    )
    now = time.time_ns()
    node.put(
        facts(
            "pulls",
            container_status("main", state=creating),
            phase="Pending",
            pulls={"main": Pulling("big:1", now)},
        )
    )
    node.put(
        facts(
            "mounts",
            container_status("main", state=creating),
            phase="Pending",
            work=Work(step="volumes", step_ns=now),
        )
    )
    node.put(
        facts("crashes", container_status("main", restarts=3, state=crashed), held={"main": now + 30 * 10**9})
    )

    def steps(page: Page, site: Site) -> None:
        page.wait_for_selector("#waits-list li >> text=waits for the image big:1")
        page.wait_for_selector("#waits-list li >> text=waits for its volumes")
        countdown = page.locator("#waits-list li", has_text="back-off 40s").locator(".dim")
        first = int(countdown.inner_text().rpartition("again in ")[2].rstrip("s"))
        assert 0 < first <= 30
        until(
            lambda: int(countdown.inner_text().rpartition("again in ")[2].rstrip("s")) < first,
            "it counts down",
        )
        feed = site.feed
        assert feed is not None
        event = {
            "at": time.time_ns() // 10**6,
            "type": "Warning",
            "reason": "Unhealthy",
            "message": "probe failed",
        }
        site.do(
            lambda: feed.event(
                {**event, "uid": "uid-pulls", "pod": "default/pulls", "container": "", "count": 1}
            )
        )
        page.wait_for_selector("#events-list li.warning >> text=probe failed")

    look(browser, node, steps)


def test_charts_of_the_last_minutes(browser: BrowserThread) -> None:
    def steps(page: Page, site: Site) -> None:
        titles = ["Relist", "Event latency", "Loop turns", "Runtime calls", "API calls"]
        assert page.locator("#cards h3").all_inner_texts() == titles
        turns = page.locator(".card", has_text="Loop turns")
        until(lambda: "L" in (turns.locator(".line").get_attribute("d") or ""), "two points make a line")
        assert "longest" in turns.inner_text()
        assert page.evaluate(
            """() => {
                const said = document.querySelector(".card p");
                said.textContent = "123 ms · 0.25 looks/s";
                return said.scrollWidth <= said.clientWidth;
            }"""
        )

    look(browser, FakeNode(1), steps)


def test_one_pod_its_story_log_manifest_and_configs(browser: BrowserThread) -> None:
    node = FakeNode(1)
    uid = "uid-pod-000"
    node.stories[uid] = [{"at": 1767225600000, "cause": "worker", "text": "StartContainer main", "count": 2}]
    node.logs[f"{uid}/main"] = "first line\n"
    node.logs[f"{uid}/main/previous"] = "of the run before\n"

    def steps(page: Page, site: Site) -> None:
        row(page, "pod-000").click()
        page.wait_for_selector("#story >> text=StartContainer main (×2)")
        page.click("[data-tab=log]")
        page.wait_for_selector("#log >> text=first line")
        site.do(lambda: node.logs.update({f"{uid}/main": "first line\nsecond line\n"}))
        page.wait_for_selector("#log >> text=second line")
        page.check("#log-previous")
        page.wait_for_selector("#log >> text=of the run before")
        page.click("[data-tab=manifest]")
        page.wait_for_selector("#manifest >> text=name: pod-000")
        page.click("[data-tab=configs]")
        page.wait_for_selector("#configs >> text=hostname: web")

    look(browser, node, steps)


def test_of_another_pod_nothing_is_shown_before_it_is_told(browser: BrowserThread) -> None:
    node = FakeNode(2)

    def steps(page: Page, site: Site) -> None:
        row(page, "pod-000").click()
        page.click("[data-tab=manifest]")
        page.wait_for_selector("#manifest >> text=name: pod-000")
        site.go_away()
        page.wait_for_selector("#lost >> text=Not connected to the node")
        row(page, "pod-001").click()
        page.wait_for_selector("#detail-name >> text=default/pod-001")
        for tab in ("manifest", "configs", "story", "log"):
            page.click(f"[data-tab={tab}]")
            page.wait_for_selector(f"#{tab} >> text=…")
        site.come_back()
        page.wait_for_selector("#log >> text=No output yet.")
        page.click("[data-tab=story]")
        page.wait_for_selector("#story >> text=Nothing is remembered of this pod.")
        page.click("[data-tab=manifest]")
        page.wait_for_selector("#manifest >> text=name: pod-001")
        wrong(page).clear()  # a browser logs connections that fail

    look(browser, node, steps)


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


def test_clocks_that_differ_make_no_wrong_ages(browser: BrowserThread) -> None:
    node = FakeNode()
    began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 60))
    pod = facts("web")
    node.put(msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, start_time=began)))

    def steps(page: Page, site: Site) -> None:
        feed = site.feed
        assert feed is not None
        until(lambda: site.do(lambda: b'"longest"' in feed.shown.snapshot()), "there is a point")
        # A day ahead; seen at each frame, for the next point comes soon.
        page.add_init_script(
            """{
                const now = Date.now, wrong = (window.wrong = new Set());
                Date.now = () => now() + 86400000;
                const look = () => {
                    const age = document.querySelector("#list .row .age");
                    if (age && !/^(5|6|7|8|9|10)\\ds$/.test(age.textContent)) wrong.add(age.textContent);
                    requestAnimationFrame(look);
                };
                look();
            }"""
        )
        page.reload()
        row(page, "web").wait_for()
        page.wait_for_timeout(4000)
        assert page.evaluate("[...window.wrong]") == []

    look(browser, node, steps)


def test_a_manifest_that_is_not_shown_is_not_waited_for(browser: BrowserThread) -> None:
    node = FakeNode(1)
    node.is_long = True

    def steps(page: Page, site: Site) -> None:
        row(page, "pod-000").click()
        page.click("[data-tab=manifest]")
        page.wait_for_selector("#manifest >> text=the manifest is too long")
        page.click("[data-tab=configs]")
        page.wait_for_selector("#notes >> text=the manifest is too long")
        assert page.locator("#configs").inner_text() == ""

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


def focused(page: Page) -> str:
    """The name of the element that has the focus, its text if it has none."""
    return str(
        page.evaluate("(document.activeElement.ariaLabel || document.activeElement.textContent).trim()")
    )


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


def gone(site: Site, uid: str) -> None:
    """The pod is no longer there."""
    pod = site.node.pods[uid]
    site.node.put(pod)
    site.node.drop(uid)


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
        page.goto(f"{site.address}#pod=%E0%A4")  # what is no text names no pod
        page.reload()
        row(page, "pod-001").wait_for()
        page.wait_for_timeout(300)
        assert not page.is_visible("#detail")

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


def test_a_long_log_leaves_its_choices_in_view(browser: BrowserThread) -> None:
    node = FakeNode(1)
    node.logs["uid-pod-000/main"] = "".join(f"line {number}\n" for number in range(300))

    def steps(page: Page, site: Site) -> None:
        row(page, "pod-000").click()
        page.click("[data-tab=log]")
        page.wait_for_selector("#log >> text=line 299")
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
    node = FakeNode(1)
    node.logs["uid-pod-000/main"] = "".join(f"line {number}\n" for number in range(300))

    def steps(page: Page, site: Site) -> None:
        row(page, "pod-000").click()
        page.click("[data-tab=log]")
        page.wait_for_selector("#log >> text=line 299")
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
