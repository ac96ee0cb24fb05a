"""Desired and actual state of plugins as values, and what is to be done about their difference. Pure.

Desired is what the registration directory holds: each socket with what tells one incarnation of it from the
next. Actual is what handlers have taken. A socket that is made anew under the same path is another plugin:
the old one is de-registered first (kubelet: `pluginmanager/reconciler`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

import msgspec

from trio_kubelet.common.backoff import Pauses

PAUSES: Final = Pauses(0.5, 122.0)
"""Seconds between attempts to register, doubled from first to longest (kubelet: exponentialbackoff)."""


class SocketIdentity(NamedTuple):
    """What tells one socket from its successor under the same path; a change of its mode does not."""

    device: int
    inode: int
    modified_ns: int


class PluginInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a plugin says of itself (`GetInfo`). `endpoint`: the socket its service is on."""

    type: str
    name: str
    endpoint: str
    versions: tuple[str, ...] = ()


class Registered(msgspec.Struct, frozen=True, kw_only=True):
    """A plugin that a handler has taken, and the socket it came from."""

    socket: str
    identity: SocketIdentity
    plugin: PluginInfo


class FailedRegistration(NamedTuple):
    """Attempts to register one incarnation of a socket that failed; `not_before` in Trio's time. `name` is
    what its plugin calls itself, "" if it did not come to that.
    """

    identity: SocketIdentity
    failures: int
    not_before: float
    name: str = ""


class RegistrationWork(msgspec.Struct, frozen=True, kw_only=True):
    """What to begin now, and when to decide again if nothing happens before."""

    unregister: tuple[Registered, ...] = ()
    register: tuple[tuple[str, SocketIdentity], ...] = ()
    wake_at: float | None = None


def decide(
    desired: Mapping[str, SocketIdentity],
    actual: Mapping[str, Registered],
    busy: Collection[str],
    retries: Mapping[str, FailedRegistration],
    now: float,
) -> RegistrationWork:
    """What brings actual to desired. Sockets in `busy` have work under way and are left alone."""
    unregister = [
        each for path, each in actual.items() if path not in busy and desired.get(path) != each.identity
    ]
    register = []
    wake_at: float | None = None
    for path, identity in desired.items():
        if path in busy or path in actual:
            continue
        retry = retries.get(path)
        if retry is not None and retry.identity == identity and retry.not_before > now:
            wake_at = retry.not_before if wake_at is None else min(wake_at, retry.not_before)
        else:
            register.append((path, identity))
    return RegistrationWork(unregister=tuple(unregister), register=tuple(register), wake_at=wake_at)


def after_failure(
    retry: FailedRegistration | None, identity: SocketIdentity, now: float, name: str = ""
) -> FailedRegistration:
    """The next attempt after one that failed at `now`; another incarnation starts anew."""
    failures = retry.failures + 1 if retry is not None and retry.identity == identity else 1
    return FailedRegistration(identity, failures, now + PAUSES.after(failures), name)
