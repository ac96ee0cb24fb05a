"""What the page says of pods, and of the one that is looked at."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from tests.browser.browser import BrowserThread, Site, wrong
from tests.browser.page import colour, look, row, until
from tests.nodepage.nodes import FakeNode, container_status, facts
from trio_kubelet.api import v1
from trio_kubelet.nodepage.doors import Use
from trio_kubelet.nodepage.rows import Pulling, Work

if TYPE_CHECKING:
    from playwright.sync_api import Page


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


def test_of_another_container_no_log_is_shown_before_it_is_told(browser: BrowserThread) -> None:
    node = FakeNode()
    node.put(facts("web", container_status("main"), container_status("other")))
    node.logs.update({"uid-web/main": "said by main\n", "uid-web/other": "said by the other\n"})

    def steps(page: Page, site: Site) -> None:
        row(page, "web").locator(".twist").click()
        page.locator("#list .row.container", has_text="main").click()
        page.click("[data-tab=log]")
        page.wait_for_selector("#log >> text=said by main")
        site.go_away()
        page.wait_for_selector("#lost >> text=Not connected to the node")
        page.locator("#list .row.container", has_text="other").click()
        page.wait_for_selector("#log >> text=…")
        assert page.input_value("#log-container") == "other"
        site.come_back()
        page.wait_for_selector("#log >> text=said by the other")
        wrong(page).clear()  # a browser logs connections that fail

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
