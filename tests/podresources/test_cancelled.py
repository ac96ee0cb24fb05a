"""Clients that leave, and a service that ends, in the middle of a call: no connection stays open."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from tests.cancelling import cancelled_at_each_step, descriptors, settled
from tests.podresources.test_server import preface, serving


async def test_a_client_that_leaves_after_any_byte(tmp_path: Path) -> None:
    said = preface()
    async with serving(tmp_path) as path:
        before = descriptors()
        for sent in range(len(said) + 1):
            async with await trio.open_unix_socket(path) as stream:
                if sent:
                    await stream.send_all(said[:sent])
        await settled(before, 0, "all clients have left")


@pytest.mark.parametrize("awake", [True, False], ids=["awake", "waiting"])
async def test_a_service_that_ends_at_any_point(awake: bool, tmp_path: Path) -> None:
    async def once() -> None:
        async with serving(tmp_path) as path, await trio.open_unix_socket(path) as stream:
            await stream.send_all(preface())
            heard = b""
            while b"web-0" not in heard:
                heard += await stream.receive_some(4096)

    assert await cancelled_at_each_step(once, awake) > 5
