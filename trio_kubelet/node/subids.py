"""Which ids of the machine pods with user namespaces may have: those set apart for the user `kubelet`.

`/etc/subuid` and `/etc/subgid` say so, read through `getsubids`, for a directory service may say it instead.
Without that user or program it is every id but the first range, which is the node's own (kubelet:
`getKubeletMappings`, `MakeUserNsManager`).
"""

from __future__ import annotations

import os
import pwd
import shutil

import msgspec
import trio

from trio_kubelet.common.go_words import error_words
from trio_kubelet.common.lanes import NAMES
from trio_kubelet.common.log import get_logger

log = get_logger(__name__)

DEFAULT_IDS_PER_POD = 65536
_UNIT = 65536
ALL_IDS = 2**32
_USER = "kubelet"
_SECONDS = 20.0


class IDRange(msgspec.Struct, frozen=True):
    """Ids from `first`, `length` of them, given out in parts of `per_pod`."""

    first: int
    length: int
    per_pod: int = DEFAULT_IDS_PER_POD


def every_id(per_pod: int = DEFAULT_IDS_PER_POD) -> IDRange:
    """All ids but the first part."""
    return IDRange(per_pod, ALL_IDS - per_pod, per_pod)


def parse_getsubids(text: str) -> tuple[int, int]:
    """First id and number of ids in the one line that `getsubids` prints (`0: kubelet 65536 7208960`).
    Raises ValueError.
    """
    lines = text.strip("\n").split("\n")
    if len(lines) != 1:
        raise ValueError(f'error parsing line "{text}": it must contain only one line')
    words = lines[0].split()
    if len(words) != 4:
        raise ValueError(f'invalid line "{text}"')
    if not all(word.isdecimal() and int(word) < ALL_IDS for word in words[2:]):
        raise ValueError(f'error parsing line "{text}": not two ids')
    return int(words[2]), int(words[3])


def range_problem(ids: IDRange, max_pods: int) -> str:
    """Why these ids cannot be given to so many pods, "" if they can."""
    per_pod = ids.per_pod
    if per_pod % _UNIT:
        return f"kubelet user namespace length {per_pod} is not a multiple of {_UNIT}"
    if ids.first % per_pod:
        return f"kubelet user assigned ID {ids.first} is not a multiple of {per_pod}"
    if ids.first < per_pod:
        return f"kubelet user assigned ID {ids.first} must be greater or equal to {per_pod}"
    if ids.length % per_pod:
        return f"kubelet user assigned IDs length {ids.length} is not a multiple of {per_pod}"
    if ids.length // per_pod < max_pods:
        return f"kubelet user assigned IDs are not enough to support {max_pods} pods"
    return ""


async def kubelet_ids(per_pod: int, max_pods: int) -> IDRange:
    """The ids for pods of this machine. Raises ValueError when what is set apart cannot be used, or is not
    known although there is such a user.
    """
    program = await NAMES.run(_program)
    if not program:
        ids = every_id(per_pod)
    else:
        users, groups = await _ask(program, "uids"), await _ask(program, "gids", "-g")
        if users != groups:
            raise ValueError(f'kubelet mappings: mismatched subuids and subgids for user "{_USER}"')
        try:
            ids = IDRange(*parse_getsubids(users), per_pod)
        except ValueError as error:
            raise ValueError(f"kubelet mappings: {error}") from error
    if problem := range_problem(ids, max_pods):
        raise ValueError(problem)
    return ids


def _program() -> str:
    """The program to ask, "" where there is nothing to ask for."""
    try:
        pwd.getpwnam(_USER)
    except KeyError:
        log.v(5).info("user namespaces: user not found, using default mappings", user=_USER)
        return ""
    if (path := shutil.which("getsubids")) is None:
        log.v(2).info("user namespaces: executable not found, using default mappings", executable="getsubids")
    return path or ""


async def _ask(program: str, what: str, *options: str) -> str:
    from trio_kubelet.common.programs import ProgramFailed, run_program  # few nodes set ids apart

    with trio.move_on_after(_SECONDS):
        try:
            said = await run_program([program, *options, _USER], os.environ, b"")
        except (OSError, ProgramFailed) as error:
            text = f'kubelet mappings: error retrieving additional {what} for user "{_USER}"'
            raise ValueError(f"{text}: {error_words(error)}") from error
        return said.decode(errors="replace")
    raise ValueError(f'kubelet mappings: error retrieving additional {what} for user "{_USER}": no answer')
