"""A real browser, and a page to look at: Debian's chromium, driven by playwright in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

import trio
from prometheus_client import CollectorRegistry

from tests.nodepage.nodes import FakeNode
from trio_kubelet.common.clock import SystemClock
from trio_kubelet.nodepage.charts import Charts
from trio_kubelet.nodepage.feed import Feed
from trio_kubelet.nodepage.shown import ShownPods
from trio_kubelet.server.http.messages import Hijack, Request, Response
from trio_kubelet.server.http.router import Router
from trio_kubelet.server.http.serve import serve
from trio_kubelet.server.pages.node_page import ROOT, NodePage

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

T = TypeVar("T")

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE = 30_000
"""Milliseconds that anything may take on a busy machine."""


def missing() -> str:
    """Why there is no browser here, "" if there is one."""
    if not CHROMIUM.exists():
        return f"{CHROMIUM} is not installed (apt-get install chromium)"
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError as exc:
        return f"playwright cannot be imported: {exc}"
    return ""


class BrowserThread:
    """Playwright wants to be used by the thread that started it, which must not run an event loop."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[Browser], None] | None] = SimpleQueue()
        self._ready: SimpleQueue[BaseException | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="browser")
        self._thread.start()
        if (error := self._ready.get()) is not None:
            self._thread.join()
            raise error

    def _serve(self) -> None:
        from playwright.sync_api import sync_playwright

        try:
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
                self._ready.put(None)
                while (call := self._calls.get()) is not None:
                    call(browser)
                browser.close()
        except BaseException as exc:
            self._ready.put(exc)

    def run(self, work: Callable[[Browser], T]) -> T:
        """Does something with the browser, and returns or raises what came of it."""
        answers: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()

        def call(browser: Browser) -> None:
            try:
                answers.put((work(browser), None))
            except BaseException as exc:
                answers.put((None, exc))

        self._calls.put(call)
        value, error = answers.get()
        if error is not None:
            raise error
        return value  # type: ignore[return-value]

    def stop(self) -> None:
        """Ends the browser."""
        self._calls.put(None)
        self._thread.join()


def new_page(browser: Browser, address: str, **options: Any) -> Page:
    """The page in a context of its own; `wrong(page)` tells what goes wrong in it."""
    context: BrowserContext = browser.new_context(**options)
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    found: list[str] = []
    page.on("pageerror", lambda error: found.append(str(error)))
    page.on("console", lambda message: found.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: _note_foreign(found, request.url, address))
    _WRONG[page] = found
    page.goto(address)
    page.wait_for_selector("html[data-link=live]")
    return page


_WRONG: WeakKeyDictionary[Page, list[str]] = WeakKeyDictionary()


def wrong(page: Page) -> list[str]:
    """Errors of the page, and requests that it sent to foreign hosts."""
    return _WRONG[page]


def _note_foreign(found: list[str], url: str, address: str) -> None:
    here = address.split("/")[2]
    if url.split("/")[2:3] != [here]:
        found.append(f"asked a foreign host: {url}")


class Site:
    """The page over a node of a test's own, served on a loopback port by a thread."""

    def __init__(self, node: FakeNode) -> None:
        self.node = node
        self.port = 0
        self.pause = 0.0  # seconds until a request is answered
        self.refusal: Response | None = None  # of all requests
        self.feed: Feed | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._scope = trio.CancelScope()
        self._listening = trio.CancelScope()
        self._again: trio.Event | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}{ROOT}"

    def do(self, work: Callable[[], T]) -> T:
        """Calls `work` in the thread of the page's event loop."""
        assert self._token is not None
        return trio.from_thread.run_sync(work, trio_token=self._token)

    def go_away(self) -> None:
        """Ends all connections and takes no new ones."""
        self.do(self._listening.cancel)

    def come_back(self) -> None:
        """Listens again, on the same port."""
        assert self._again is not None
        self.do(self._again.set)

    async def serve(self, ready: Callable[[], None]) -> None:
        self._token = trio.lowlevel.current_trio_token()
        charts = Charts(CollectorRegistry())
        node = {"name": "test-node", "version": "v1.36.2", "runtime": "pretended"}
        self.feed = Feed(node=self.node, shown=ShownPods(node), charts=charts, clock=SystemClock())
        handler, page = Router(), NodePage(self.feed)

        async def answer(request: Request) -> Response | Hijack:
            await trio.sleep(self.pause)
            if self.refusal is not None:
                return self.refusal
            return await page.answer(request)

        handler.handle(ROOT, answer)
        with self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.feed.run)
                while True:
                    listeners = await trio.open_tcp_listeners(self.port, host="127.0.0.1")
                    self.port = listeners[0].socket.getsockname()[1]
                    self._again = trio.Event()
                    with trio.CancelScope() as self._listening:
                        ready()
                        await serve(listeners, handler)
                    await self._again.wait()

    def stop(self) -> None:
        self.do(self._scope.cancel)


@contextmanager
def serving(node: FakeNode) -> Iterator[Site]:
    """A site for the length of the block."""
    site, ready = Site(node), threading.Event()
    thread = threading.Thread(target=lambda: trio.run(site.serve, ready.set), name="site")
    thread.start()
    assert ready.wait(30)
    try:
        yield site
    finally:
        site.stop()
        thread.join()
