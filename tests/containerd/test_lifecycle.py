"""A pod's life on a real node: restarts, order of start and end, hooks, grace periods."""

from __future__ import annotations

import itertools

from tests.containerd.harness import PATIENCE, Node, container, wait_until
from tests.containerd.scenes import Journal, container_state, living, say, uid_of, until_waiting, uptime
from trio_kubelet.volumes.linux import unmount


async def test_a_crash_is_restarted_at_once_then_with_back_off(node: Node) -> None:
    journal = Journal.of(node, "crash")
    crash = container("crash", f"{say('crash')}; exit 3")
    node.write(journal.pod("crash", container("steady", living("steady")), crash))
    await journal.until("crash", "crash")
    shown = await until_waiting(node, "crash", "CrashLoopBackOff", "crash")
    assert shown["message"].startswith("back-off 10s restarting failed container=crash pod=crash-")
    assert (await container_state(node, "crash", "crash"))["lastState"]["terminated"]["exitCode"] == 3
    await journal.until("crash", "crash", "crash", timeout=20)
    first, second, third = journal.times("crash")[:3]
    assert second - first < 9.5, "without back-off"
    assert 9.5 < third - second < 19.5, "the first step of the back-off, not the second"
    assert journal.words().count("steady") == 1

    async def pruned() -> bool:
        return [each.metadata.attempt for each in await node.containers("crash", "crash")] == [2]

    await wait_until(pruned, 5, "of the dead containers the newest is kept until the next start")


async def test_init_containers_and_sidecars_start_and_end_in_order(node: Node) -> None:
    journal = Journal.of(node, "order")
    always = {"restartPolicy": "Always"}
    inits = [
        container("a", f"{say('a')}; sleep 0.3; {say('a-done')}"),
        container("s1", living("s1"), **always),
        container("s2", living("s2"), **always),
        container("b", f"{say('b')}; sleep 0.3; {say('b-done')}"),
    ]
    main = container("main", living("main", "sleep 0.5; exit 0"))
    node.write(journal.pod("order", main, initContainers=inits, terminationGracePeriodSeconds=20))
    await node.wait_running("order", "main", "s1", "s2")
    await journal.until("s1", "s2", "main")
    ended = [word for word in journal.words() if word not in ("s1", "s2")]
    assert ended == ["a", "a-done", "b", "b-done", "main"]
    # A sidecar counts from the moment the runtime has started it; on a busy machine it speaks later.
    order = [(await node.containers("order", name))[0].id for name in ("a", "s1", "s2", "b", "main")]
    for one, next_one in itertools.pairwise([await node.container_status(each) for each in order]):
        assert 0 < (one.finished_at or one.started_at) <= next_one.created_at
    node.remove("order")
    await node.wait_gone("order")
    assert journal.words()[7:] == ["main-end", "s2-end", "s1-end"]


async def test_a_failing_init_container_holds_the_pod_back(node: Node) -> None:
    journal = Journal.of(node, "init")
    init = container("init", f"{say('init')}; test -e /journal/open")
    node.write(journal.pod("init", container("main", living("main")), initContainers=[init]))
    await journal.until("init", "init")
    await until_waiting(node, "init", "PodInitializing")
    assert "main" not in journal.words()
    (journal.directory / "open").touch()
    await journal.until("main", timeout=20)


async def test_the_stop_hook_runs_before_the_signal(node: Node) -> None:
    journal = Journal.of(node, "hook")
    hook = {"exec": {"command": ["sh", "-c", f"{say('hook')}; sleep 1; {say('hook-done')}"]}}
    main = container("main", living("main"), lifecycle={"preStop": hook})
    node.write(journal.pod("hook", main, terminationGracePeriodSeconds=20))
    await journal.until("main")
    await node.wait_running("hook")
    node.remove("hook")
    await node.wait_gone("hook")
    assert journal.words() == ["main", "hook", "hook-done", "main-end"]


async def test_a_container_deaf_to_signals_is_killed_after_its_grace(node: Node) -> None:
    journal = Journal.of(node, "deaf")
    ticking = f"trap '' TERM; while :; do {say('tick')}; sleep 0.2; done"
    slow_hook = {"preStop": {"exec": {"command": ["sh", "-c", f"{say('hook')}; sleep 100"]}}}
    pod = journal.pod("deaf", container("main", ticking), terminationGracePeriodSeconds=3)
    hooked = journal.pod("hooked", container("main", f"{say('up')}; sleep 100", lifecycle=slow_hook))
    node.write(pod)
    node.write(hooked)
    await journal.until("tick", "up")
    await node.wait_running("deaf")
    await node.wait_running("hooked")
    removed = uptime()
    node.remove("deaf")
    node.remove("hooked")
    await node.wait_gone("deaf")
    assert 2.5 < journal.lines()[-1].at - removed < 5 * PATIENCE
    # The hook ate the whole grace of two seconds; the signal has two more.
    await node.wait_gone("hooked")
    assert "hook" in journal.words()
    assert uptime() - removed < 15 * PATIENCE


async def test_the_start_hook_holds_back_the_next_container(node: Node) -> None:
    journal = Journal.of(node, "post")
    hook = {"exec": {"command": ["sh", "-c", f"{say('hook')}; sleep 1; {say('hook-done')}"]}}
    one = container("one", living("one"), lifecycle={"postStart": hook})
    node.write(journal.pod("post", one, container("two", living("two"))))
    await journal.until("one", "hook", "hook-done", "two")
    words = journal.words()
    assert words.index("hook-done") < words.index("two")
    assert set(words) == {"one", "hook", "hook-done", "two"}


async def test_a_failing_start_hook_ends_its_container(node: Node) -> None:
    journal = Journal.of(node, "bad-post")
    hook = {"exec": {"command": ["sh", "-c", "echo no; exit 7"]}}
    main = container("main", living("main"), lifecycle={"postStart": hook})
    node.write(journal.pod("bad-post", main))
    # The reason stands from the first failure to the second, which ends in a back-off: look often.
    await until_waiting(node, "bad-post", "PostStartHookError", interval=0.005)
    await journal.until("main", "main-end")


async def test_never_and_on_failure_are_honoured(node: Node) -> None:
    journal = Journal.of(node, "policy")
    ends = f"{say('ok')}; exit 0"
    fails = f"{say('bad')}; exit 1"
    node.write(journal.pod("never", container("main", fails), restartPolicy="Never"))
    on_failure = [container("good", ends), container("bad", fails.replace("bad", "again"))]
    node.write(journal.pod("onfailure", *on_failure, restartPolicy="OnFailure"))
    await journal.until("bad", "ok", "again", "again")

    async def phase() -> bool:
        return (await node.pod_status("never")).get("phase") == "Failed"

    await wait_until(phase, 10)
    assert journal.words().count("bad") == 1
    assert journal.words().count("ok") == 1
    assert (await node.pod_status("onfailure"))["phase"] == "Running"


async def test_mounts_cross_between_a_pod_and_the_node_below_the_root_directory(node: Node) -> None:
    """Where `/` is private, too: the agent has made its root directory a shared mount."""
    journal = Journal.of(node, "mounts")
    volume = {"name": "data", "emptyDir": {}}

    def with_data(name: str, script: str, propagation: str, **fields: object) -> dict[str, object]:
        mount = {"name": "data", "mountPath": "/data", "mountPropagation": propagation}
        return container(name, script, volumeMounts=[mount], **fields)

    giver = with_data(
        "giver",
        f"mkdir -p /data/own && mount -t tmpfs own /data/own && touch /data/own/file && {living('given')}",
        "Bidirectional",
        securityContext={"privileged": True},
    )
    taker = with_data(
        "taker",
        f"while ! test -e /data/own/file; do sleep 0.1; done; {living('taken')}",
        "HostToContainer",
    )
    node.write(journal.pod("mounts", giver, taker, volumes=[volume], terminationGracePeriodSeconds=1))
    await journal.until("given", "taken", timeout=20)
    uid = await uid_of(node, "mounts")
    own = node.layout.agent_root / "pods" / uid / "volumes/kubernetes.io~empty-dir/data/own"
    assert own.is_mount()
    unmount(str(own))
    node.remove("mounts")
    await node.wait_gone("mounts")
