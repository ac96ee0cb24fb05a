"""The plugin manager over real directories, with plugins and handlers in memory."""

from __future__ import annotations

import os
import pathlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress

import pytest
import trio
from prometheus_client import CollectorRegistry

from tests.shapes import SHAPES
from trio_kubelet.common.backoff import Pauses
from trio_kubelet.plugins import manager as module
from trio_kubelet.plugins import states
from trio_kubelet.plugins.doors import NobodyListens, PluginError
from trio_kubelet.plugins.manager import PluginManager
from trio_kubelet.plugins.states import PluginInfo


class World:
    """Sockets in a directory, what stands behind them, and a handler that keeps a diary."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.directory = directory
        self.sockets: dict[str, socket.socket] = {}
        self.infos: dict[str, PluginInfo] = {}
        self.told: list[tuple[str, bool, str]] = []
        self.diary: list[tuple[str, str]] = []
        self.refuse = ""
        self.failures = 0
        self.dead: set[str] = set()
        self.registry = CollectorRegistry()
        self.manager = PluginManager(
            directory=str(directory),
            handlers={"CSIPlugin": self},
            open_registration=self.open,
            registry=self.registry,
        )

    def make(self, name: str, plugin_type: str = "CSIPlugin") -> str:
        path = str(self.directory / name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self.sockets[path] = socket.socket(socket.AF_UNIX)
        self.sockets[path].bind(path)
        self.infos[path] = PluginInfo(type=plugin_type, name=name, endpoint="", versions=("1.0.0",))
        return path

    def close(self) -> None:
        for each in self.sockets.values():
            each.close()

    @asynccontextmanager
    async def open(self, path: str) -> AsyncIterator[Connection]:
        await trio.lowlevel.checkpoint()
        if path in self.dead:
            raise NobodyListens(f"failed to dial socket {path}")
        yield Connection(self, path)

    # the handler

    def validate(self, plugin: PluginInfo) -> None:
        if self.refuse:
            raise PluginError(self.refuse)

    async def register(self, plugin: PluginInfo) -> None:
        if self.failures:
            self.failures -= 1
            raise PluginError("not now")
        self.diary.append(("register", plugin.name))

    async def deregister(self, plugin: PluginInfo) -> None:
        self.diary.append(("deregister", plugin.name))


class Connection:
    def __init__(self, world: World, path: str) -> None:
        self.world, self.path = world, path

    async def get_info(self) -> PluginInfo:
        return self.world.infos[self.path]

    async def notify(self, registered: bool, error: str) -> None:
        self.world.told.append((self.path, registered, error))


@pytest.fixture
def world(tmp_path: pathlib.Path) -> Iterator[World]:
    made = World(tmp_path / "plugins")  # short: a socket's path has 107 bytes
    yield made
    made.close()


async def until(condition: Callable[[], object]) -> None:
    with trio.fail_after(30):
        while not condition():  # noqa: ASYNC110 (a file system and a watcher are waited for)
            await trio.sleep(0.005)


def run(world: World, story: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.manager.run)
            await story()
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_sockets_are_registered_and_deregistered_when_they_go(world: World) -> None:
    before = world.make("before.sock")

    async def story() -> None:
        await until(lambda: world.diary == [("register", "before.sock")])
        assert world.told == [(before, True, "")]
        assert world.manager.registered[0].plugin.endpoint == before
        deep = world.make("some/where/deep.sock")
        await until(lambda: world.diary[1:] == [("register", "some/where/deep.sock")])
        assert (
            world.registry.get_sample_value(
                "plugin_manager_total_plugins",
                {"socket_path": deep, "state": "actual_state_of_world"},
            )
            == 1
        )
        os.unlink(deep)
        await until(lambda: world.diary[2:] == [("deregister", "some/where/deep.sock")])
        assert [each.socket for each in world.manager.registered] == [before]

    run(world, story)


def test_a_plugin_that_restarts_is_taken_anew(world: World) -> None:
    path = world.make("a.sock")

    async def story() -> None:
        await until(lambda: len(world.diary) == 1)
        os.unlink(path)
        world.sockets.pop(path).close()
        await trio.sleep(0.02)  # longer than the grain of a file system's clock
        world.make("a.sock")
        await until(
            lambda: world.diary == [("register", "a.sock"), ("deregister", "a.sock"), ("register", "a.sock")]
        )
        os.chmod(path, 0o700)
        await trio.sleep(0.1)
        assert len(world.diary) == 3, "a change of its mode makes no new plugin"

    run(world, story)


def test_hidden_files_and_what_is_no_socket_are_no_plugins(world: World) -> None:
    world.make(".hidden.sock")
    (world.directory / "file.sock").write_text("no socket")
    (world.directory / "link.sock").symlink_to(world.directory / "nowhere")

    async def story() -> None:
        world.make("seen.sock")
        await until(lambda: world.diary)
        assert world.diary == [("register", "seen.sock")]

    run(world, story)


def test_an_unknown_type_is_refused_with_the_kubelets_words(world: World) -> None:
    path = world.make("odd.sock", "OddPlugin")

    async def story() -> None:
        await until(lambda: world.told)
        text = f"RegisterPlugin error -- no handler registered for plugin type: OddPlugin at socket {path}"
        assert world.told[0] == (path, False, text)
        assert world.diary == []

    run(world, story)


def test_a_plugin_that_is_not_valid_is_told_why(world: World) -> None:
    world.refuse = "no such version"
    path = world.make("a.sock")

    async def story() -> None:
        await until(lambda: world.told)
        text = "RegisterPlugin error -- plugin validation failed with err: no such version"
        assert world.told[0] == (path, False, text)

    run(world, story)


def test_a_registration_that_fails_is_tried_again(world: World) -> None:
    world.failures = 1
    world.make("a.sock")

    async def story() -> None:
        await until(lambda: world.diary == [("register", "a.sock")])
        assert [registered for _, registered, _ in world.told] == [False, True]
        assert "plugin registration failed with err: not now" in world.told[0][2]

    run(world, story)


def test_a_plugin_at_another_socket_is_taken_as_soon_as_the_one_of_its_name_has_gone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was refused meanwhile, and waited for up to two minutes more."""
    monkeypatch.setattr(states, "PAUSES", Pauses(3600.0, 3600.0))
    old, new, other = world.make("old.sock"), world.make("new.sock"), world.make("other.sock")
    for path in (old, new):
        world.infos[path] = PluginInfo(type="CSIPlugin", name="d", endpoint=path, versions=("1.0.0",))
    tried: list[str] = []
    refused = {new, other}

    async def register(plugin: PluginInfo) -> None:
        tried.append(plugin.endpoint)
        if plugin.endpoint in refused:
            raise PluginError("not now")

    monkeypatch.setattr(world, "register", register)

    async def story() -> None:
        await until(lambda: len(tried) == 3)
        await until(lambda: [each.socket for each in world.manager.registered] == [old])
        refused.clear()
        os.unlink(old)
        await until(lambda: [each.socket for each in world.manager.registered] == [new])
        assert tried[3:] == [new]

    run(world, story)


def test_the_directory_itself_may_go_and_come_back(world: World) -> None:
    path = world.make("a.sock")

    async def story() -> None:
        await until(lambda: len(world.diary) == 1)
        os.unlink(path)
        with suppress(OSError):
            world.directory.rmdir()
        await until(lambda: world.diary[1:] == [("deregister", "a.sock")])
        await until(world.directory.exists)
        world.make("b.sock")
        await until(lambda: world.diary[2:] == [("register", "b.sock")])

    run(world, story)


def test_the_socket_of_a_dead_plugin_is_removed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DEAD_AFTER", 0.4)
    dead = world.make("dead.sock")
    world.make("alive.sock")
    world.dead.add(dead)

    async def story() -> None:
        await until(lambda: sorted(os.listdir(world.directory)) == ["alive.sock"])

    run(world, story)


@pytest.mark.parametrize("shape", SHAPES)
def test_whatever_a_plugin_raises_the_others_are_registered(
    shape: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failures = World.register, 1

    async def register(self: World, plugin: PluginInfo) -> None:
        nonlocal failures
        if plugin.name == "bad.sock" and failures:
            failures -= 1
            raise SHAPES[shape]()
        await real(self, plugin)

    async def deregister(self: World, plugin: PluginInfo) -> None:
        raise SHAPES[shape]()

    monkeypatch.setattr(World, "register", register)
    monkeypatch.setattr(World, "deregister", deregister)
    bad, good = world.make("bad.sock"), world.make("good.sock")

    async def story() -> None:
        await until(lambda: sorted(world.diary) == [("register", "bad.sock"), ("register", "good.sock")])
        os.unlink(bad)
        await until(lambda: [each.socket for each in world.manager.registered] == [good])
        world.sockets.pop(bad).close()
        world.make("bad.sock")
        await until(lambda: len(world.diary) == 3)

    run(world, story)
