"""A directory for a test's volumes; nothing stays mounted below it, and no driver runs on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage.drivers import DriverProcess
from tests.storage.world import DRIVER
from trio_kubelet.storage import loop
from trio_kubelet.volumes.files import unmount_all


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Where a test's root directory and driver live."""
    yield tmp_path
    for bound in (tmp_path / "root/plugins/kubernetes.io/csi/volumeDevices").glob("*/dev/*"):
        loop.detach(str(bound))
    unmount_all(str(tmp_path))
    for image in tmp_path.rglob("*.img"):
        loop.detach(str(image))


@pytest.fixture
def driver(place: Path) -> Iterator[DriverProcess]:
    """The tests' driver, not started yet."""
    process = DriverProcess(DRIVER, place / "driver")
    yield process
    process.clean()


@pytest.fixture
def disk(place: Path) -> Iterator[str]:
    """An empty disk."""
    image = place / "disk.img"
    with image.open("wb") as file:
        file.truncate(32 << 20)
    yield loop.attach(str(image))
    loop.detach(str(image))
