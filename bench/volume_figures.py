"""How long many pods wait for their volumes, against what the driver takes by itself; what mounted ones cost.

    python -m bench.volume_figures --pods 100 --volumes 2 --idle 30 --disks

As root. The tests' CSI driver is a process of its own. With `--disks` it formats and mounts a loop device for
each volume, as a driver does that has something to do; without it mounts a filesystem in memory, which takes
a millisecond, so that what the agent adds is seen at its largest. The baseline, in the same run: the same
calls (stage, publish) for paths of the same shape, from a loop around the same gRPC client, as many volumes
at a time as is fastest. Driver and agent were asked for some volumes before; the interpreter is set up as an
agent's.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import tempfile
import time
from pathlib import Path
from typing import Final

import trio

from tests.storage.drivers import DriverProcess
from tests.storage.world import DRIVER, Claims, World, pod_of, running_world
from trio_kubelet.api import v1
from trio_kubelet.common.interpreter import share_with_threads
from trio_kubelet.grpc.loop import open_asyncio_loop
from trio_kubelet.storage.calls import GrpcCalls
from trio_kubelet.storage.csi.driver import CSIDriverClient
from trio_kubelet.storage.names import csi_global_mount, csi_pod_mount
from trio_kubelet.storage.proto import csi_pb2 as csi
from trio_kubelet.volumes.files import make_dirs, unmount_all

WARM: Final = 16
"""Volumes that are mounted before anything is measured: a driver's first calls take longer."""
AT_ONCE: Final = (math.inf, 64, 16)
"""Volumes at a time when the driver is measured alone; the fastest counts."""


async def baseline(
    directory: Path, driver: DriverProcess, names: list[str], at_once: float = math.inf
) -> float:
    """Seconds for the driver's own work."""
    limit = trio.CapacityLimiter(at_once)

    async def one(client: CSIDriverClient, name: str) -> None:
        async with limit:
            await mount_one(client, directory, name)

    async with open_asyncio_loop() as loop:
        with GrpcCalls(loop) as calls:
            client = CSIDriverClient(DRIVER, str(driver.socket), calls)
            await client.abilities()
            began = time.perf_counter()
            async with trio.open_nursery() as nursery:
                for name in names:
                    nursery.start_soon(one, client, name)
            return time.perf_counter() - began


async def mount_one(client: CSIDriverClient, directory: Path, name: str) -> None:
    """One volume of one pod."""
    target = csi_pod_mount(str(directory), f"uid-{name}", f"pv-{name}")
    await mount_at_paths(client, name, csi_global_mount(str(directory), DRIVER, name), target)


async def mount_at_paths(client: CSIDriverClient, handle: str, staging: str, target: str) -> None:
    """What a driver is asked for a volume, and the directories that it expects."""
    make_dirs(staging)
    make_dirs(os.path.dirname(target))
    wanted = csi.VolumeCapability(mount=csi.VolumeCapability.MountVolume(fs_type="ext4"))
    stage = csi.NodeStageVolumeRequest(
        volume_id=handle, staging_target_path=staging, volume_capability=wanted
    )
    await client.call("NodeStageVolume", stage, csi.NodeStageVolumeResponse)
    publish = csi.NodePublishVolumeRequest(
        volume_id=handle, staging_target_path=staging, target_path=target, volume_capability=wanted
    )
    await client.call("NodePublishVolume", publish, csi.NodePublishVolumeResponse)


async def figures(pods: int, volumes: int, idle: float, disks: bool, directory: Path) -> dict[str, float]:
    """All figures of one run."""
    names = [f"v{number}" for number in range(pods * volumes)]
    driver = DriverProcess(DRIVER, directory / "driver")
    driver.set(**({"size": 4 << 20} if disks else {"fs": "tmpfs"}))
    driver.start()
    base = directory / "base"
    await baseline(base, driver, [f"warm-{number}" for number in range(WARM)])
    runs = []
    for at_once in AT_ONCE:
        cpu = cpu_seconds()
        others = [f"{at_once}-{name}" for name in names]
        took = await baseline(base, driver, others, at_once)
        runs.append((took, cpu_seconds() - cpu))
        unmount_all(str(base))
        driver.free_disks()
    alone, called = min(runs)
    claims = Claims()
    claims.driver()
    for name in names:
        claims.claim(name)
    made = [pod_of(f"p{n}", *names[n * volumes : (n + 1) * volumes]) for n in range(pods)]
    claims.claim("first")
    async with running_world(directory, claims=claims, driver=driver) as world:
        await set_up(world, pod_of("first", "first"))
        began, cpu = time.perf_counter(), cpu_seconds()
        async with trio.open_nursery() as nursery:
            for pod in made:
                nursery.start_soon(set_up, world, pod)
        took, used = time.perf_counter() - began, cpu_seconds() - cpu
        cpu = cpu_seconds()
        await trio.sleep(idle)
        rest = (cpu_seconds() - cpu) / idle
        began = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for pod in made:
                nursery.start_soon(world.tear_down, pod)
        gone = time.perf_counter() - began
        await world.tear_down(pod_of("first", "first"))
        await world.until(lambda: not world.left(), 120)
    unmount_all(str(directory))
    driver.clean()
    return {
        "driver alone, s": round(alone, 3),
        "pods have their volumes, s": round(took, 3),
        "ratio": round(took / alone, 2),
        "CPU of the baseline's side, s": round(called, 3),
        "CPU of the agent's side, s": round(used, 3),
        "at rest, of a core, %": round(100 * rest, 3),
        "pods have given them up, s": round(gone, 3),
    }


async def set_up(world: World, pod: v1.Pod) -> None:
    short = await world.set_up(pod, patience=120)
    assert not short.unmounted, short


def cpu_seconds() -> float:
    """CPU of this process; the driver is another one."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=100)
    parser.add_argument("--volumes", type=int, default=2)
    parser.add_argument("--idle", type=float, default=30.0)
    parser.add_argument("--disks", action="store_true")
    options = parser.parse_args()
    share_with_threads()
    with tempfile.TemporaryDirectory() as directory:
        found = trio.run(figures, options.pods, options.volumes, options.idle, options.disks, Path(directory))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
