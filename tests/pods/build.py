"""Pods for tests, from few words."""

from __future__ import annotations

from typing import Any

from trio_kubelet.api import v1

SOURCE = "kubernetes.io/config.source"


def make_pod(
    name: str = "web",
    uid: str = "",
    *,
    namespace: str = "default",
    source: str = "file",
    grace: int | None = 30,
    restart_policy: str = "Always",
    containers: list[v1.Container] | None = None,
    annotations: dict[str, str] | None = None,
    spec: dict[str, Any] | None = None,
    status: v1.PodStatus | None = None,
    deleted_at: str | None = None,
    deletion_grace: int | None = None,
    created_at: str | None = None,
    generation: int = 0,
) -> v1.Pod:
    """A pod with one container; `spec` sets further fields by their Python names."""
    return v1.Pod(
        metadata=v1.ObjectMeta(
            name=name,
            namespace=namespace,
            uid=uid or f"uid-{name}",
            annotations={SOURCE: source, **(annotations or {})},
            deletion_timestamp=deleted_at,
            deletion_grace_period_seconds=deletion_grace,
            creation_timestamp=created_at,
            generation=generation,
        ),
        spec=v1.PodSpec(
            containers=containers if containers is not None else [v1.Container(name="c", image="img")],
            restart_policy=restart_policy,
            termination_grace_period_seconds=grace,
            **(spec or {}),
        ),
        status=status if status is not None else v1.PodStatus(),
    )


def api_pod(name: str = "web", uid: str = "", **kwargs: Any) -> v1.Pod:
    """A pod of the API server."""
    return make_pod(name, uid, source="api", **kwargs)
