"""A browser for the session; without one these tests are skipped with the reason."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser.browser import BrowserThread, missing


@pytest.fixture(scope="session")
def browser() -> Iterator[BrowserThread]:
    if why := missing():
        pytest.skip(f"no browser here: {why}")
    thread = BrowserThread()
    yield thread
    thread.stop()
