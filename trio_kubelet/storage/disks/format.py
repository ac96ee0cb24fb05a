"""Checks, formats and mounts a disk with the system's own tools (kubelet: `SafeFormatAndMount`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import trio

from trio_kubelet.common.go_words import error_words
from trio_kubelet.common.log import get_logger
from trio_kubelet.common.programs import run_to_end
from trio_kubelet.storage.errors import Ending, FilesystemMismatch, OperationError

log = get_logger(__name__)

DEADLINE: Final = 110.0
_LONGEST_OUTPUT: Final = 4096
_FSCK_CORRECTED: Final = 1
_FSCK_UNCORRECTED: Final = 4
_BLKID_NOTHING: Final = 2
DEFAULT_FS: Final = "ext4"


async def format_and_mount(device: str, target: str, fs_type: str, options: Sequence[str]) -> None:
    """Mounts a disk at a directory; an empty disk is formatted first unless it is to be read only. Raises
    OperationError.
    """
    read_only, wanted, options = "ro" in options, fs_type or DEFAULT_FS, [*options, "defaults"]
    try:
        found = await disk_format(device)
    except OperationError as error:
        text = f"failed to get disk format of disk {device}: {error}"
        raise OperationError(text, error.ending) from error
    if not found:
        if read_only:
            raise OperationError(
                f"cannot mount unformatted disk {device} as we are manipulating it in read-only mode"
            )
        await _make_filesystem(device, target, wanted, options)
    else:
        if found != wanted:
            log.warning("Disk has another filesystem", device=device, filesystem=found, wanted=wanted)
        if not read_only:
            await check_filesystem(device)
    try:
        await mount_with_tool(device, target, wanted, options)
    except OperationError as error:
        if found and found != wanted:
            raise FilesystemMismatch(str(error), error.ending) from error
        raise


def joined(options: Sequence[str], own: Sequence[str]) -> list[str]:
    """Mount options of a volume and the agent's own, each once (kubelet: `JoinMountOptions`)."""
    return sorted({*filter(None, options), *own})


async def disk_format(device: str) -> str:
    """The filesystem on a disk, "" for none. One with a table of partitions has something else. Raises
    OperationError.
    """
    code, output = await run_tool(["blkid", "-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", device])
    if code == _BLKID_NOTHING:
        return ""
    if code != 0:
        raise OperationError(f"exit status {code}")
    lines = [line.split("=") for line in output.splitlines() if line]
    if any(len(words) != 2 for words in lines):
        raise OperationError(f"blkid returns invalid output: {output}")
    values = {words[0]: words[1] for words in lines}
    return "unknown data, probably partitions" if values.get("PTTYPE") else values.get("TYPE", "")


async def _make_filesystem(device: str, target: str, fs_type: str, options: Sequence[str]) -> None:
    """Formats a disk, which is to be mounted so. Raises OperationError."""
    arguments = [device]
    if fs_type in ("ext3", "ext4"):
        arguments = ["-F", "-m0", device]
    elif fs_type == "xfs":
        arguments = ["-f", device]
    try:
        code, output = await run_tool([f"mkfs.{fs_type}", *arguments])
        failed = f"exit status {code}" if code else ""
    except OperationError as error:
        failed, output = str(error), ""
    if failed:
        text = (
            f'format of disk "{device}" failed: type:("{fs_type}") target:("{target}") '
            f'options:("{",".join(options)}") errcode:({failed}) output:({output}) '
        )
        raise OperationError(text, Ending.UNCERTAIN)


async def check_filesystem(device: str) -> None:
    """Repairs what can be repaired by itself. Raises OperationError for a disk with errors that cannot."""
    try:
        code, output = await run_tool(["fsck", "-a", device])
    except OperationError as error:
        log.warning("A disk is mounted unchecked", device=device, err=error)
        return
    if code == _FSCK_CORRECTED:
        log.info("Errors of a disk were corrected", device=device)
    elif code == _FSCK_UNCORRECTED:
        raise OperationError(f"'fsck' found errors on device {device} but could not correct them: {output}")


async def resize_filesystem(device: str, path: str) -> None:
    """Makes the filesystem of a disk, mounted at a path, as large as the disk (kubelet: `ResizeFs`). Raises
    OperationError.
    """
    try:
        found = await disk_format(device)
    except OperationError as error:
        raise OperationError(
            f"ResizeFS.Resize - error checking format for device {device}: {error}", error.ending
        ) from error
    commands = {
        "ext3": ["resize2fs", device],
        "ext4": ["resize2fs", device],
        "xfs": ["xfs_growfs", "-d", path],
        "btrfs": ["btrfs", "filesystem", "resize", "max", path],
    }
    if not found:  # it takes all of the disk when it is made
        return
    if found not in commands:
        raise OperationError(
            f"ResizeFS.Resize - resize of format {found} is not supported for device {device} mounted at "
            f"{path}"
        )
    command = commands[found]
    code, output = await run_tool(command)
    if code != 0:
        shown = device if found.startswith("ext") else path
        raise OperationError(
            f"resize of device {shown} failed: exit status {code}. {command[0]} output: {output}"
        )


async def mount_with_tool(source: str, target: str, fs_type: str, options: Sequence[str]) -> None:
    """mount(8), which knows the helpers of filesystems. Raises OperationError with the kubelet's text."""
    command = ["mount", "-t", fs_type, *(["-o", ",".join(options)] if options else []), source, target]
    code, output = await run_tool(command)
    if code != 0:
        raise OperationError(
            f"mount failed: exit status {code}\nMounting command: mount\n"
            f"Mounting arguments: {' '.join(command[1:])}\nOutput: {output}\n"
        )


async def run_tool(command: Sequence[str]) -> tuple[int, str]:
    """A program's exit status and the end of its output, of which there may be any amount: a disk says what a
    checker finds. One that does not end is killed and left behind. Raises OperationError.
    """
    try:
        with trio.fail_after(DEADLINE):
            code, output = await run_to_end(command, _LONGEST_OUTPUT)
    except FileNotFoundError:
        raise OperationError(f'exec: "{command[0]}": executable file not found in $PATH') from None
    except OSError as error:
        raise OperationError(error_words(error, "fork/exec")) from error
    except trio.TooSlowError:
        raise OperationError(f"{command[0]} did not end within {DEADLINE:g} s", Ending.UNCERTAIN) from None
    return code, output.decode("utf-8", "replace").strip()
