"""However a stream ends, it ends alone: a log that is followed and a scrape beside it go on unharmed."""

from __future__ import annotations

import gc
import random
import ssl
from pathlib import Path

import pytest
import trio

from tests.cancelling import descriptors
from tests.server.broken_streams import KINDS, MOST_PIECES, SECONDS, Script, World, break_all, scripts


async def broken(directory: Path, repeat: int, seed: int) -> World:
    """Every kind of stream, every way to end it, both directions, `repeat` times at random moments."""
    rng = random.Random(seed)
    wanted = [s._replace(pieces=rng.randint(-1, MOST_PIECES)) for s in scripts() for _ in range(repeat)]
    rng.shuffle(wanted)
    world = World(directory)
    await world.run(lambda w: break_all(w, wanted, 16))
    assert world.broken.total() == len(wanted)
    return world


async def test_streams_that_break_in_every_way_hurt_nobody(tmp_path: Path) -> None:
    world = await broken(tmp_path, 1, 0)
    assert world.failed() == 0


async def test_a_runtime_that_dies_ends_its_streams_and_nothing_else(tmp_path: Path) -> None:
    world = World(tmp_path)
    wanted = [s._replace(pieces=1 << 20) for s in scripts() if s[1:4] == ("runtime", "silence", "both")]

    async def die(world: World) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(break_all, world, wanted, len(wanted))
            while world.runtime.open < len(wanted):  # noqa: ASYNC110
                await trio.sleep(0.01)
            world.runtime.life.cancel()

    await world.run(die)
    assert world.failed() == 0


@pytest.mark.soak
async def test_a_thousand_broken_streams_of_each_kind(tmp_path: Path) -> None:
    rng, wanted = random.Random(7), list[Script]()
    for kind in KINDS:
        ways = [script for script in scripts() if script.kind == kind]
        wanted += [rng.choice(ways)._replace(pieces=rng.randint(-1, MOST_PIECES)) for _ in range(1000)]
    rng.shuffle(wanted)
    before, world = descriptors(), World(tmp_path)
    await world.run(lambda w: break_all(w, wanted, 32))
    assert world.failed() == 0
    assert descriptors() == before
    print(
        f"{world.broken.total()} streams of {len(KINDS)} kinds; {world.followed} lines were followed, "
        f"{world.scraped} pages scraped, the slowest in {world.slowest_scrape:.2f} s"
    )


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1, 6))
async def test_many_streams_that_break(tmp_path: Path, seed: int) -> None:
    before = descriptors()
    world = await broken(tmp_path, 10, seed)
    assert world.failed() == 0
    assert descriptors() == before


async def test_what_is_over_does_not_wait_for_the_collector(tmp_path: Path) -> None:
    """Each connection with TLS is tens of kilobytes that the collector does not see."""
    world, rng = World(tmp_path), random.Random(3)
    kinds = [rng.choice([s for s in scripts() if s.kind == kind]) for kind in KINDS]
    wanted = [script._replace(pieces=rng.randint(-1, MOST_PIECES)) for script in kinds * 2]

    async def task(world: World) -> None:
        before = _served()
        gc.disable()
        try:
            await break_all(world, wanted, 12)
            with trio.fail_after(SECONDS):
                while _served() > before + len(wanted) // 8:  # noqa: ASYNC110 (the last ones end)
                    await trio.sleep(0.05)
        finally:
            gc.enable()

    await world.run(task)


def _served() -> int:
    """How many connections with TLS there are in memory at their server's end, as far as OpenSSL goes."""
    objects = [each for each in gc.get_objects() if isinstance(each, ssl.SSLObject)]
    return sum(1 for each in objects if getattr(each, "_sslobj", None) is not None and each.server_side)
