"""What came of a message whose rest does not come."""

from __future__ import annotations

import array
import os
import socket
from pathlib import Path

import trio

from trio_kubelet.dbus.connection import connect

HEAD = b"l\1\0\1\0\0\0\0"  # half of a message's fixed part


async def test_its_descriptors_are_closed_with_the_connection(tmp_path: Path) -> None:
    path = str(tmp_path / "bus")
    reading, writing = os.pipe()
    os.set_blocking(reading, False)

    async def serve(task_status: trio.TaskStatus[None]) -> None:
        with trio.socket.socket(socket.AF_UNIX) as listener:
            await listener.bind(path)
            listener.listen()
            task_status.started()
            peer, _ = await listener.accept()
            with peer:
                said = b""
                while b"BEGIN" not in said:
                    said += (line := await peer.recv(4096))
                    if b"AUTH" in line:
                        await peer.send(b"OK 1234deadbeef1234deadbeef12345678\r\n")
                    if b"NEGOTIATE" in line:
                        await peer.send(b"AGREE_UNIX_FD\r\n")
                rights = array.array("i", [writing])
                await peer.sendmsg([HEAD], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
                os.close(writing)
                await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        await nursery.start(serve)
        connection = await connect(path, lambda arrived: None)
        with trio.move_on_after(0.3):
            await connection.run()
        nursery.cancel_scope.cancel()
    assert os.read(reading, 1) == b""  # nobody has the other end any more
    os.close(reading)
