"""Small pods for the tests of the sources."""

from __future__ import annotations

from trio_kubelet.api import v1


def pod(
    uid: str,
    name: str = "",
    *,
    image: str = "busybox",
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    deleted_at: str | None = None,
    grace: int | None = None,
    phase: str = "Pending",
) -> v1.Pod:
    """A pod with one container; the name is the UID's unless given."""
    return v1.Pod(
        metadata=v1.ObjectMeta(
            uid=uid,
            name=name or f"pod-{uid}",
            namespace="default",
            labels=labels,
            annotations=annotations,
            deletion_timestamp=deleted_at,
            deletion_grace_period_seconds=grace,
        ),
        spec=v1.PodSpec(containers=[v1.Container(name="c", image=image)]),
        status=v1.PodStatus(phase=phase),
    )
