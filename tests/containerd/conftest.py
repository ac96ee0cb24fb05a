"""Fixtures for tests against a real containerd.

The fixture `new_node()` is an async context manager: a private node without an agent. Tests are skipped where
none can run, with the reason; with TRIO_KUBELET_REQUIRE_CONTAINERD=1 (as `make test` sets it) that is a
failure instead, so that a green run cannot mean that nothing ran. TRIO_KUBELET_CONTAINERD chooses the
containerd (1.6, 1.7, 2.1). Only this one is required: another series that a test asks for may come from a
suite that cannot be had today.

A node takes seconds to come up. Tests that only add and remove pods share one per module, `node`, with its
agent; it lives in a thread of its own, since every test has its own Trio run.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from queue import SimpleQueue

import pytest
import trio

from tests.containerd.harness import Node, running_node
from trio_kubelet.standalone.node import Provisions, provide
from trio_kubelet.standalone.packages import DEFAULT_CONTAINERD, PackagesUnavailable, normalize_choice
from trio_kubelet.standalone.run import CommandFailed

CHOSEN = os.environ.get("TRIO_KUBELET_CONTAINERD", DEFAULT_CONTAINERD)
NewNode = Callable[[], AbstractAsyncContextManager[Node]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything below this directory needs a real containerd."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.containerd)


@pytest.fixture(scope="session")
def provisions() -> Callable[[str], Provisions]:
    """What a node of some containerd version is made from; made once a session."""
    made: dict[str, Provisions] = {}

    def get(version: str) -> Provisions:
        if version not in made:
            try:
                made[version] = trio.run(provide, version, print)
            except (PackagesUnavailable, CommandFailed) as err:
                if version == CHOSEN and os.environ.get("TRIO_KUBELET_REQUIRE_CONTAINERD") == "1":
                    raise
                pytest.skip(f"no private containerd here: {err}")
        found = ".".join(map(str, made[version].containerd.version))
        if version != CHOSEN and not f"{found}.".startswith(normalize_choice(version) + "."):
            pytest.skip(f"containerd {version} cannot be had here, only {found}")
        return made[version]

    return get


@pytest.fixture
def new_node(
    request: pytest.FixtureRequest, provisions: Callable[[str], Provisions], tmp_path: Path
) -> NewNode:
    """`async with new_node() as node:`. For given containerd versions parametrize it:

    `@pytest.mark.parametrize("new_node", ["1.7", "2.1"], indirect=True)`
    """
    made = provisions(getattr(request, "param", CHOSEN))
    return lambda: running_node(made, tmp_path)


@pytest.fixture(scope="module")
def shared_node(
    provisions: Callable[[str], Provisions], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Node]:
    """A node with its agent for a whole module."""
    made, scratch = provisions(CHOSEN), tmp_path_factory.mktemp("node")
    ready: SimpleQueue[Node | BaseException] = SimpleQueue()
    ended: SimpleQueue[BaseException | None] = SimpleQueue()
    over = threading.Event()

    async def host() -> None:
        async with running_node(made, scratch) as node:
            await node.start_agent("-v=4")
            ready.put(node)
            await trio.to_thread.run_sync(over.wait)

    def run() -> None:
        try:
            trio.run(host, strict_exception_groups=True)
        except BaseException as exc:
            ready.put(exc)
            ended.put(exc)
        else:
            ended.put(None)

    thread = threading.Thread(target=run, name="shared node")
    thread.start()
    node = ready.get()
    if isinstance(node, BaseException):
        thread.join()
        raise node
    yield node
    over.set()
    thread.join()
    if (error := ended.get()) is not None:
        raise error


@pytest.fixture
def node(shared_node: Node, request: pytest.FixtureRequest) -> Iterator[Node]:
    """The shared node. A failed test shows its logs; every test removes its manifests."""
    failed = request.session.testsfailed
    yield shared_node
    if request.session.testsfailed > failed:
        print(shared_node.report())
    for manifest in shared_node.manifests.iterdir():
        manifest.unlink()
