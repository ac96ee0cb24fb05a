"""Leaks of 1 GB/s, with real containers: whoever leaks ends, by its own limit or by an eviction that is ahead
of the OOM killer, and nobody else.

Before each is the limit of all pods together, where the kernel would choose for itself: at that speed it is
less than five seconds away when the threshold is crossed, and the pod that leaks does not heed SIGTERM.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import trio

from tests.containerd.conftest import NewNode
from tests.containerd.harness import PATIENCE, Node, container, wait_until
from tests.containerd.scenes import Journal
from tests.containerd.test_pod_objects import described
from tests.containerd.test_pressure import (
    MIB,
    PodsPool,
    cluster_node,
    is_evicted,
    journal_pod,
    pool_config,
    status_of,
)
from trio_kubelet.machine.facts import read_machine
from trio_kubelet.standalone.run import command

MIB_PER_SECOND = 1024
POOL = min(6 << 30, read_machine("/").memory * 3 // 4)
"""What the pods of the node may have together."""
LEFT = POOL * 4 // 5
"""Below this much left of it, somebody is evicted: after 1.2 GiB, or less on a small machine."""

LEAK = r"""
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define STEP 4L /* MiB that are taken at once, and at once are there */

static volatile sig_atomic_t told;

static void note(int number) { (void)number; told = 1; }

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_BOOTTIME, &at);
    return at.tv_sec + at.tv_nsec / 1e9;
}

static void say(int journal, const char *who, const char *what, long mib) {
    char line[100];
    int size = snprintf(line, sizeof line, "%.3f %s%s %ld\n", now(), who, what, mib);
    if (write(journal, line, size) != size) exit(1);
}

/* Takes so many MiB of memory per second, for ever, and tells the journal how many it has. */
int main(int count, char **words) {
    int journal = open("/journal/log", O_WRONLY | O_APPEND);
    double began, ahead, rate = count > 2 ? atof(words[2]) : 1;
    signal(SIGTERM, note);
    while (access("/journal/go", F_OK) != 0) usleep(5000);
    began = now();
    for (long mib = 0;; mib += STEP) {
        if (mib % 64 == 0) say(journal, words[1], "", mib);
        if (told == 1) { say(journal, words[1], "-end", mib); told = 2; }
        if (mmap(0, STEP << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0)
            == MAP_FAILED) return 1;
        ahead = mib / rate - (now() - began);
        if (ahead > 0) usleep(ahead * 1e6);
    }
}
"""


def said(journal: Journal, who: str) -> list[tuple[float, int]]:
    """When it had told how many MiB it has, and how many."""
    told = ((line.at, line.word.partition(" ")) for line in journal.lines())
    return [(at, int(number)) for at, (word, _, number) in told if word == who]


def speed(journal: Journal, who: str) -> float:
    """MiB per second, from its first word to its last."""
    (began, _), *_, (ended, mib) = said(journal, who)
    return mib / (ended - began)


async def is_gone(node: Node, name: str) -> bool:
    return not await node.running(name)


@pytest.mark.alone
@pytest.mark.node
async def test_a_leak_of_a_gigabyte_per_second_ends_nobody_else(new_node: NewNode, tmp_path: Path) -> None:
    async with cluster_node(new_node, tmp_path, pool_config(POOL, LEFT)) as (cluster, node):
        journal = Journal.of(node, "leaks")
        out = str(journal.directory / "leak")
        await command(["gcc", "-x", "c", "-O1", "-static", "-o", out, "-"], seconds=60, stdin=LEAK.encode())
        calm = [f"calm-{number}" for number in range(20)]
        for name in calm:
            cluster.pod(node, name, container())
        cpu = {"cpu": "500m"}  # or it would not be so fast beside anything else on the machine
        memory = {"memory": "300Mi"}
        for name, resources in (
            ("limited", {"requests": cpu | memory, "limits": memory}),
            ("leak", {"requests": cpu}),
        ):
            leak = container(script=f"exec /journal/leak {name} {MIB_PER_SECOND}", resources=resources)
            journal_pod(cluster, node, journal, name, leak, restartPolicy="Never")
        before = {name: [each.id for each in await node.wait_running(name, "main")] for name in calm}
        for name in ("limited", "leak"):
            await node.wait_running(name, "main")
        pool = PodsPool(node, POOL, LEFT)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pool.watch)
            (journal.directory / "go").touch()
            await wait_until(partial(is_evicted, cluster, node, "leak"), 60, "the leaking pod is evicted")
            await wait_until(partial(is_gone, node, "leak"), 30, "it has ended")
            nursery.cancel_scope.cancel()
        [(ended_at, mib)] = said(journal, "leak-end")
        print(
            f"speed: {speed(journal, 'leak'):.0f} MiB/s, with a limit {speed(journal, 'limited'):.0f} MiB/s"
        )
        print(f"from the crossing to SIGTERM: {ended_at - pool.crossed_at:.2f} s, at {mib} MiB")
        print(f"left of {POOL // MIB} MiB when it was least: {pool.least // MIB} MiB")
        assert ended_at - pool.crossed_at <= 1.0 * PATIENCE
        assert pool.least > 0
        [shown] = status_of(cluster, node, "limited")["containerStatuses"]
        ended = shown["state"]["terminated"]
        assert (ended["reason"], ended["exitCode"]) == ("OOMKilled", 137), "by its own cgroup"
        [shown] = status_of(cluster, node, "leak")["containerStatuses"]
        assert shown["state"].get("terminated", {}).get("reason") != "OOMKilled", "it was evicted before"
        await trio.sleep(1)
        assert {name: [each.id for each in await node.running(name)] for name in calm} == before
        evicted = [
            change.new["involvedObject"]["name"]
            for change in cluster.store.history
            if change.resource == "events" and change.new and change.new["reason"] == "Evicted"
        ]
        assert evicted == [f"leak-{node.name}"]
        story = await described(node, "describe", "pod", f"leak-{node.name}")
        assert "number 1 of " in story
