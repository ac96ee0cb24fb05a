"""The UID text is written in several threads at once: each source reads in its own."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from trio_kubelet.api import uid_text as module
from trio_kubelet.api.decode import decode
from trio_kubelet.api.defaults import set_pod_defaults
from trio_kubelet.api.managed_fields import ManifestPod
from trio_kubelet.api.uid_text import uid_text


def a_pod() -> ManifestPod:
    pod = decode(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "a"},
            "spec": {
                "volumes": [{"name": "v", "hostPath": {"path": "/tmp"}}],
                "containers": [
                    {
                        "name": "main",
                        "image": "busybox",
                        "ports": [{"containerPort": 80}],
                        "livenessProbe": {"httpGet": {"port": 80}},
                        "securityContext": {"runAsUser": 1},
                    }
                ],
            },
        },
        ManifestPod,
    )
    set_pod_defaults(pod)
    return pod


def test_another_thread_writes_while_one_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """The writers are compiled at their first use, which no other thread may see half done."""
    expected = uid_text(a_pod())
    module._struct_writer.cache_clear()
    compile_slot = module._slot
    told: list[str] = []
    made = 0

    def interrupted(*args: Any) -> Any:
        nonlocal made
        made += 1
        if made == 3:
            other = threading.Thread(target=lambda: told.append(uid_text(a_pod())))
            other.start()
            other.join()
        return compile_slot(*args)

    monkeypatch.setattr(module, "_slot", interrupted)
    assert uid_text(a_pod()) == expected
    assert told == [expected]
