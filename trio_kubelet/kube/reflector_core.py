"""The decisions of a reflector: what to ask the API server next, and what an answer makes of our copy.

No I/O and no clock in here: the shell (`reflector`) does what `next_step` says and reports what came of it,
with the time as an argument. The rules:

- WatchList first. Where it is refused, or its end never comes (etcd before 3.5, servers that do not know
  it), a paged list and a watch from its version, and WatchList again some minutes later.
- The copy is replaced only by a complete list: until then the last known objects stay.
- A version the server has forgotten (410) means a new list. A version from the future (the store was put
  back to an older state) is watched in silence for ever, so silence is looked into: a list of one object
  tells where the store is.
- Every failure waits, doubled and jittered; a watch that did not live for some seconds counts as one, also
  when a list came before it: only a watch that lives ends a row of failures.
- A list has an end: a page has to bring something new, and all of them together are bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.common.backoff import Pauses
from trio_kubelet.kube.errors import APIError, APIFailure, APIUnavailable
from trio_kubelet.kube.watch_events import Bookmark, ObjectDecoder, Removal, Unreadable, Upsert

T = TypeVar("T", bound=v1.Object)

PAGE_SIZE: Final = 500
FIRST_PAUSE: Final = 0.8
LONGEST_PAUSE: Final = 30.0
GOOD_WATCH: Final = 5.0
"""Seconds after which a watch counts as having worked."""
INITIAL_SILENCE: Final = 15.0
"""Seconds without an event after which initial events are not waited for any longer."""
SILENCE: Final = 90.0
"""Seconds without an event or bookmark (one comes each minute) after which the server is asked."""
SUSPICIOUS_SILENCE: Final = 10.0
"""The same for the first watch after a failure, when the store may have been put back."""
REFUSED_REST: Final = 600.0
"""Seconds for which WatchList is not tried again where it is not known."""
BROKEN_REST: Final = 60.0
"""The same after one that failed for another reason, such as an object too large for the connection."""
WATCH_LIST_UNKNOWN: Final = (400, 404, 405, 406, 422, 500, 501)
"""How servers refuse a WatchList; 500: one whose etcd is too old for it."""
WATCH_SECONDS: Final = (300, 600)
MOST_BYTES: Final = 256 * 1024 * 1024
"""All pages of a list, or all initial events."""
_DIGITS: Final = 100
PING_PERIOD: Final = 15.0
"""Seconds between two questions whether the connection of a watch lives."""


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """The periods above that are not the same for everyone: small watches, of which there are hundreds, take
    their time, and tests on a real clock have none.
    """

    first_pause: float = FIRST_PAUSE
    initial_silence: float = INITIAL_SILENCE
    silence: float = SILENCE
    suspicious_silence: float = SUSPICIOUS_SILENCE
    ping_period: float = PING_PERIOD


class FetchPage(NamedTuple):
    """GET with these parameters and report with `on_page`."""

    params: Mapping[str, str]


class WatchFrom(NamedTuple):
    """Watch with these parameters and report each event with `on_event`."""

    params: Mapping[str, str]


Step: TypeAlias = FetchPage | WatchFrom


class Reaction(NamedTuple):
    """What an event or page asks of the shell: tell about changes, end the watch.

    `key` is the object that changed; empty: any of them may have.
    """

    changed: bool = False
    key: str = ""
    stop: bool = False
    unreadable: tuple[Unreadable, ...] = ()


class ReflectorCore(Generic[T]):
    """State and decisions of one reflector."""

    def __init__(self, kind: type[T], params: Mapping[str, str], timings: Timings = Timings()) -> None:  # noqa: B008
        """`params`: selectors for lists and watches alike."""
        self.objects: dict[str, T] = {}
        self.synced = False
        self._decoder = ObjectDecoder(kind)
        self._params = params
        self._timings = timings
        self._version = ""
        self._arriving: dict[str, T] | None = None
        self._arrived = 0  # bytes
        self._continue = ""
        self._paged = True
        self._streaming = False
        self._watch_list_after = float("-inf")
        self._failures = 0
        self._suspicious = False
        self._expired = False
        self._opened = 0.0

    @property
    def version(self) -> str:
        """The resource version that the copy has reached; empty: a list is needed."""
        return self._version

    @property
    def failures(self) -> int:
        """Failures in a row."""
        return self._failures

    # --- what to do next ---------------------------------------------------------------------------

    def next_step(self, now: float, jitter: float) -> Step:
        """What to ask the server for now; `jitter` in [0, 1)."""
        shortest, longest = WATCH_SECONDS
        timeout = {"timeoutSeconds": str(round(shortest + (longest - shortest) * jitter))}
        watch = {**self._params, "allowWatchBookmarks": "true", **timeout}
        self._opened = now
        if self._version:
            return WatchFrom({**watch, "resourceVersion": self._version})
        if now >= self._watch_list_after:
            self._arriving, self._arrived, self._streaming = {}, 0, True
            return WatchFrom(
                {
                    **watch,
                    "sendInitialEvents": "true",
                    "resourceVersionMatch": "NotOlderThan",
                    "resourceVersion": "",
                }
            )
        self._streaming = False
        if not self._continue:
            self._arriving, self._arrived = {}, 0
        page = {"limit": str(PAGE_SIZE)} if self._paged else {}
        if self._continue:
            page["continue"] = self._continue
        return FetchPage({**self._params, **page})

    def silence_allowed(self) -> float:
        """Seconds without an event after which `on_silence` is asked."""
        if self._streaming:
            return self._timings.initial_silence
        return self._timings.suspicious_silence if self._suspicious else self._timings.silence

    # --- what came of it ---------------------------------------------------------------------------

    def on_page(self, data: bytes) -> Reaction:
        """A page of the list. Raises APIUnavailable when it cannot be read."""
        page = self._decoder.page(data)
        if self._arriving is None:
            self._arriving = {}
        self._arrives(data)
        before = len(self._arriving)
        self._arriving.update((item.key, item.object) for item in page.items)
        self._keep_last(page.unreadable)
        if page.continue_ and len(self._arriving) == before and not page.unreadable:
            raise APIUnavailable("not a list: a page brings nothing new and says that there is more")
        self._continue = page.continue_
        if page.continue_:
            return Reaction(unreadable=tuple(page.unreadable))
        return self._complete(page.resource_version)._replace(unreadable=tuple(page.unreadable))

    def on_event(self, data: bytes) -> Reaction:
        """One event of a watch. Raises APIError for an ERROR event, APIUnavailable for nonsense."""
        event = self._decoder.event(data)
        if isinstance(event, APIError):
            raise event
        if self._arriving is None and self._went_back(event.resource_version):
            self._relist()
            return Reaction(stop=True)
        if isinstance(event, Bookmark) and event.initial_end and self._streaming:
            return self._complete(event.resource_version)
        if self._arriving is not None:
            self._arrives(data)
        objects = self.objects if self._arriving is None else self._arriving
        changed = True
        unreadable: tuple[Unreadable, ...] = ()
        match event:
            case Upsert():
                objects[event.key] = event.object
            case Removal():
                changed = objects.pop(event.key, None) is not None
            case Unreadable():
                unreadable, changed = (event,), False
                if self._arriving is not None:
                    self._keep_last(unreadable)
            case Bookmark():
                changed = False
        if self._arriving is None:
            self._version = event.resource_version or self._version
            key = event.key if changed and isinstance(event, Upsert | Removal) else ""
            return Reaction(changed, key, unreadable=unreadable)
        return Reaction(unreadable=unreadable)

    def on_end(self, now: float, jitter: float) -> float:
        """The server ended the watch in good order; seconds to wait before the next step."""
        if self._streaming:
            self._forget_arriving()
            self._watch_list_after = now + REFUSED_REST
        if now - self._opened >= GOOD_WATCH:
            self._watch_was_good()
            return 0.0
        return self._pause(None, jitter)

    def on_recovery(self) -> None:
        """The server has been away and is back: what fails now fails for the first time."""
        self._failures = 0

    def on_failure(self, error: APIFailure, now: float, jitter: float) -> float:
        """A step failed; seconds to wait before the next one."""
        if not self._streaming and self._version and now - self._opened >= GOOD_WATCH:
            self._watch_was_good()
        self._suspicious = True
        if self._streaming:
            self._watch_list_after = now + BROKEN_REST
        retry_after = None
        if isinstance(error, APIError):
            retry_after = error.retry_after
            if error.gone:
                # A lost continue token: the list once more and in one piece, it may never end otherwise.
                self._paged = not self._continue
                self._relist()
                if not self._expired:
                    self._expired = True
                    return 0.0
            elif self._streaming and error.code in WATCH_LIST_UNKNOWN:
                self._watch_list_after = now + REFUSED_REST
                self._forget_arriving()
                return 0.0
            elif error.reason == "Timeout" and "Too large resource version" in str(error):
                self._relist()
        self._forget_arriving()
        return self._pause(retry_after, jitter)

    def on_silence(self, now: float) -> bool:
        """Nothing came for `silence_allowed`; whether to ask the server where it is (`probe_params`).

        Initial events that do not come are not asked for: the watch ends and a list follows.
        """
        if not self._streaming:
            return True
        self._forget_arriving()
        self._watch_list_after = now + REFUSED_REST
        return False

    def probe_params(self) -> Mapping[str, str]:
        """A list as small as can be: only its version matters."""
        return {**self._params, "limit": "1"}

    def on_probe(self, data: bytes) -> bool:
        """The server's answer to a probe; whether the watch should end. Raises APIUnavailable."""
        version = self._decoder.page(data).resource_version
        if self._went_back(version):
            self._relist()
            return True
        # A silent watch while the store moves on is worth little; opening it again costs one request.
        behind = not self._suspicious and _number(version) > _number(self._version)
        self._suspicious = False
        return behind

    # --- helpers -----------------------------------------------------------------------------------

    def _complete(self, version: str) -> Reaction:
        assert self._arriving is not None
        self.objects, self._arriving = self._arriving, None
        self._version = version
        self._continue = ""
        self._paged, self.synced = True, True
        self._streaming = self._suspicious = False
        return Reaction(changed=True)

    def _watch_was_good(self) -> None:
        self._failures, self._expired = 0, False

    def _arrives(self, data: bytes) -> None:
        self._arrived += len(data)
        if self._arrived > MOST_BYTES:
            raise APIUnavailable(f"not a list: it does not end within {MOST_BYTES} bytes")

    def _keep_last(self, unreadable: Iterable[Unreadable]) -> None:
        """An object that cannot be read stays as it was known."""
        assert self._arriving is not None
        for item in unreadable:
            if item.key in self.objects:
                self._arriving[item.key] = self.objects[item.key]

    def _went_back(self, version: str) -> bool:
        return 0 < _number(version) < _number(self._version)

    def _relist(self) -> None:
        self._version = self._continue = ""

    def _forget_arriving(self) -> None:
        self._arriving, self._streaming, self._continue = None, False, ""

    def _pause(self, retry_after: float | None, jitter: float) -> float:
        self._failures += 1
        pauses = Pauses(self._timings.first_pause, LONGEST_PAUSE, jitter=1.0)
        return max(pauses.after(self._failures, jitter), retry_after or 0.0)


def _number(version: str) -> int:
    """Resource versions of one server are ordered numbers (KEP-5504); anything else compares as nothing."""
    return int(version) if version.isascii() and version.isdecimal() and len(version) <= _DIGITS else 0
