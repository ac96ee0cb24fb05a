"""Chains of the kernel's packet filter that other components expect of a node (kubelet: `initNetworkUtil`).

`KUBE-IPTABLES-HINT` shows by being there which variant of iptables the node uses; `KUBE-FIREWALL` drops what
comes from outside for loopback addresses. Each minute a canary tells whether somebody has flushed the tables.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import trio

from trio_kubelet.common.log import get_logger
from trio_kubelet.common.programs import ProgramFailed, run_program
from trio_kubelet.common.trouble import Trouble

log = get_logger(__name__)

PERIOD: Final = 60.0
_SECONDS: Final = 15.0
_CANARY: Final = "KUBE-KUBELET-CANARY"
_CANARY_TABLES: Final = ("mangle", "nat", "filter")
_FIREWALL: Final = "KUBE-FIREWALL"
_WAIT: Final = ("-w", "5")
"""Others change the tables, too: so many seconds for their lock."""


class Rule(msgspec.Struct, frozen=True):
    """A rule that has to be in a chain; `how` is how it is put there if it is not: `-I` or `-A`."""

    how: str
    table: str
    chain: str
    words: tuple[str, ...]


_MARTIANS: Final = (
    *("-m", "comment", "--comment", "block incoming localnet connections"),
    *("--dst", "127.0.0.0/8", "!", "--src", "127.0.0.0/8"),
    *("-m", "conntrack", "!", "--ctstate", "RELATED,ESTABLISHED,DNAT", "-j", "DROP"),
)


def chains(*, ipv6: bool) -> tuple[tuple[str, str], ...]:
    """Tables and the chains that have to be in them. Pure."""
    hint = ("mangle", "KUBE-IPTABLES-HINT")
    return (hint,) if ipv6 else (hint, ("filter", _FIREWALL))


def rules(*, ipv6: bool) -> tuple[Rule, ...]:
    """The rules that have to be there; IPv6 needs none. Pure."""
    if ipv6:
        return ()
    return (
        Rule("-I", "filter", "OUTPUT", ("-j", _FIREWALL)),
        Rule("-I", "filter", "INPUT", ("-j", _FIREWALL)),
        Rule("-A", "filter", _FIREWALL, _MARTIANS),
    )


class UtilChains:
    """Keeps them in place for one protocol. `prefix` is put before each command."""

    def __init__(
        self,
        *,
        ipv6: bool = False,
        prefix: Sequence[str] = (),
        find: Callable[[str], str | None] = shutil.which,
    ) -> None:
        self._ipv6 = ipv6
        self._prefix = tuple(prefix)
        self._find = find
        self._program = ""

    async def run(self) -> None:
        """Looks after them until cancelled; waits for ever where there is no iptables."""
        name = "ip6tables" if self._ipv6 else "iptables"
        self._program = self._find(name) or ""
        if not self._program:
            log.info("No iptables support on this system; not creating the KUBE-IPTABLES-HINT chain")
            await trio.sleep_forever()
        protocol, trouble = ("IPv6" if self._ipv6 else "IPv4"), Trouble()
        begun = False  # at the start canaries tell nothing: they outlive the rules of a table that is emptied
        while True:
            try:
                if not (begun and await self._canaries_live()):
                    await self._put_in_place()
                    log.info("Initialized iptables rules.", protocol=protocol)
                begun = True
                trouble.over()
            except (ProgramFailed, OSError, trio.TooSlowError) as error:
                text = "Failed to initialize iptables rules; some functionality may be missing."
                if trouble.is_new(str(error)):
                    log.info(text, protocol=protocol, err=error, said=getattr(error, "complaint", ""))
            await trio.sleep(PERIOD)

    async def _canaries_live(self) -> bool:
        for table in _CANARY_TABLES:
            if not await self._succeeds("-t", table, "-n", "-L", _CANARY):
                return False
        return True

    async def _put_in_place(self) -> None:
        for table, chain in chains(ipv6=self._ipv6):
            await self._ensure_chain(table, chain)
        for rule in rules(ipv6=self._ipv6):
            if not await self._succeeds("-t", rule.table, "-C", rule.chain, *rule.words):
                await self._do("-t", rule.table, rule.how, rule.chain, *rule.words)
        for table in _CANARY_TABLES:
            await self._ensure_chain(table, _CANARY)

    async def _ensure_chain(self, table: str, chain: str) -> None:
        if not await self._succeeds("-t", table, "-n", "-L", chain):
            await self._do("-t", table, "-N", chain)

    async def _succeeds(self, *words: str) -> bool:
        try:
            await self._do(*words)
        except ProgramFailed:
            return False
        return True

    async def _do(self, *words: str) -> None:
        with trio.fail_after(_SECONDS):
            await run_program([*self._prefix, self._program, *_WAIT, *words], os.environ, b"")
