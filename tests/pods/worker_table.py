"""Every pair of a worker's stage and a message, as the table in docs/pod-worker-states.md.

`python -m tests.pods.worker_table` writes the table into the document; a test keeps the two in agreement.
"""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from tests.pods.build import api_pod, make_pod
from trio_kubelet.api import v1
from trio_kubelet.observed.types import RunningPod
from trio_kubelet.pods.worker_state import (
    AttemptOutcome,
    Create,
    Done,
    Effect,
    Kill,
    KillOrphan,
    Message,
    Remove,
    Retry,
    Stage,
    Sync,
    Turn,
    Update,
    Worker,
    step,
)

DOCUMENT = Path(__file__).parents[2] / "docs" / "pod-worker-states.md"
BEGIN, END = "<!-- table begins -->", "<!-- table ends -->"

POD = make_pod()
DELETED = api_pod(deleted_at="2026-01-01T00:00:00Z", deletion_grace=5)
OVER = api_pod(status=v1.PodStatus(phase="Succeeded"))
RUNNING = RunningPod(uid=POD.metadata.uid, name="web", namespace="default")

MESSAGES: dict[str, Message] = {
    "Create": Create(pod=POD),
    "Create, its name is taken": Create(pod=POD, slot_free=False),
    "Create, over and stopped": Create(pod=OVER, quiet=True),
    "Create, over but still running": Create(pod=OVER),
    "Update": Update(pod=POD),
    "Update, deleted with 5 s": Update(pod=DELETED),
    "Sync": Sync(pod=POD),
    "Retry": Retry(),
    "Remove": Remove(),
    "Kill": Kill(pod=POD, cause="killed by the node"),
    "Kill with 5 s": Kill(pod=POD, grace=5, evict=True, cause="evicted"),
    "KillOrphan": KillOrphan(running=RUNNING, grace=1),
    "Turn": Turn(),
    "Done: ok": Done(Stage.SYNCING, AttemptOutcome.OK),
    "Done: terminal": Done(Stage.SYNCING, AttemptOutcome.TERMINAL),
    "Done: failed": Done(Stage.SYNCING, AttemptOutcome.FAILED),
    "Done: interrupted": Done(Stage.SYNCING, AttemptOutcome.INTERRUPTED),
    "Done of an earlier stage": Done(Stage.WAITING, AttemptOutcome.OK),
}


def worker_in(stage: Stage, *, reborn: bool = False) -> Worker:
    """A worker as it usually looks in that stage."""
    orphan = stage is Stage.ORPHAN
    ending = stage not in (Stage.WAITING, Stage.SYNCING)
    return Worker(
        uid=POD.metadata.uid,
        full_name="web_default",
        stage=stage,
        since_ns=1,
        pod=None if orphan else POD,
        running=RUNNING if orphan else None,
        pending=stage is Stage.WAITING,
        grace=(1 if orphan else 30) if ending else None,
        deleted=ending,
        reborn=reborn,
    )


STATES: dict[str, Worker | None] = {
    "no worker": None,
    **{stage.value: worker_in(stage) for stage in Stage},
    "terminating, wanted again": worker_in(Stage.TERMINATING, reborn=True),
    "terminated, wanted again": worker_in(Stage.TERMINATED, reborn=True),
}


def in_stage(message: Message, worker: Worker | None) -> Message:
    """A `Done` about the stage the worker is in, other messages as they are."""
    if isinstance(message, Done) and message.stage is Stage.SYNCING and worker is not None:
        return Done(worker.stage, message.outcome)
    return message


def table() -> str:
    """The table in Markdown: one section for each state."""
    lines: list[str] = []
    for state, worker in STATES.items():
        lines += [
            "",
            f"### {state}",
            "",
            "| message | next | effects | in words |",
            "| --- | --- | --- | --- |",
        ]
        for name, message in MESSAGES.items():
            result = step(worker, in_stage(message, worker), 2)
            lines.append(
                f"| {name} | {_next(worker, result.worker)} | {_effects(result.effects)} | {result.note} |"
            )
    return "\n".join(lines) + "\n"


def _next(before: Worker | None, after: Worker | None) -> str:
    if after is None:
        return "no worker"
    if before == after:
        return "="
    words = [after.stage.value]
    if before is not None:
        plain = replace(before, stage=after.stage, since_ns=after.since_ns)
        if after.reborn and not plain.reborn:
            words.append("wanted again")
        if after.grace != plain.grace and plain.grace is not None:
            words.append(f"grace {after.grace} s")
        if plain.reborn and not after.reborn:
            words.append("not wanted any more")
    return ", ".join(words)


def _effects(effects: Effect) -> str:
    names = {
        Effect.START: "start task",
        Effect.WAKE: "wake",
        Effect.CANCEL: "cancel attempt",
        Effect.STOPPED: "tell: stopped",
        Effect.ENDED: "tell: ended",
    }
    return ", ".join(text for effect, text in names.items() if effect in effects)


def main() -> None:
    """Writes the table into the document."""
    text = DOCUMENT.read_text()
    head, rest = text.split(BEGIN)
    tail = rest.split(END)[1]
    DOCUMENT.write_text(head + BEGIN + "\n" + table() + "\n" + END + tail)


if __name__ == "__main__":
    main()
