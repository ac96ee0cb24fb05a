"""Async tests run under Trio, on a mock clock when the test asks for `autojump_clock` or `still_clock`.

Property tests have no deadline: how long an example takes says how busy the machine is. They look at new
examples each time, and async tests run their tasks in another order each time, with other jitter; with
`--hypothesis-profile=repeatable`, as CI runs them, always the same: what CI says about a change is about this
change. (What draws jitter takes its seed from the generator of the process.)
"""

from __future__ import annotations

import functools
import gc
import inspect
import random
import zlib
from collections.abc import Iterator

import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, settings

settings.register_profile("patient", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", settings.get_profile("patient"), derandomize=True, database=None)
settings.load_profile("patient")


def pytest_collection_finish() -> None:
    """Keep what ten thousand tests are made of out of garbage collections: each took most of a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    """A virtual clock that jumps to the next deadline as soon as every task waits."""
    return trio.testing.MockClock(autojump_threshold=0)


@pytest.fixture
def still_clock() -> trio.testing.MockClock:
    """A virtual clock that moves when the test says so; sockets are as quick as they are."""
    return trio.testing.MockClock()


@pytest.hookimpl(hookwrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[None]:
    """Wrap each `async def test_…` into a `trio.run`, on the test's clock if it has one."""
    if pyfuncitem.config.getoption("--hypothesis-profile") == "repeatable":
        seed = zlib.crc32(pyfuncitem.nodeid.encode())
        random.seed(seed)
        trio._core._run._r.seed(seed)
    if inspect.iscoroutinefunction(pyfuncitem.obj):
        clock = pyfuncitem.funcargs.get("autojump_clock") or pyfuncitem.funcargs.get("still_clock")
        assert clock is None or isinstance(clock, trio.abc.Clock)
        function = pyfuncitem.obj

        @functools.wraps(function)
        def run_under_trio(**kwargs: object) -> None:
            trio.run(functools.partial(function, **kwargs), clock=clock, strict_exception_groups=True)

        pyfuncitem.obj = run_under_trio
    yield
