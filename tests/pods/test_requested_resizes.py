"""What the metric of requested resizes counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pods.build import make_pod
from trio_kubelet.api import v1
from trio_kubelet.pods.resize.rules import requested_resizes

AMOUNTS = st.sampled_from([None, "0", "1m", "500m", "1", "1000m"])


def pod(requests: dict[str, str], limits: dict[str, str] | None = None, name: str = "c") -> v1.Pod:
    resources = v1.ResourceRequirements(requests=requests, limits=limits)
    return make_pod("web", containers=[v1.Container(name=name, image="i", resources=resources)])


@pytest.mark.parametrize(
    ("old", "new", "counted"),
    [
        (pod({"cpu": "1"}), pod({"cpu": "1000m"}), []),
        (pod({"cpu": "1"}), pod({"cpu": "2"}), [("cpu", "requests", "increase")]),
        (pod({"memory": "2Mi"}), pod({"memory": "1Mi"}), [("memory", "requests", "decrease")]),
        (pod({}, {"cpu": "1"}), pod({}), [("cpu", "limits", "remove")]),
        (
            pod({"cpu": "0"}),
            pod({"cpu": "1m"}, {"memory": "1Mi"}),
            [("memory", "limits", "add"), ("cpu", "requests", "add")],
        ),
        (pod({"ephemeral-storage": "1Gi"}), pod({"ephemeral-storage": "2Gi"}), []),
        (pod({"cpu": "1"}), pod({"cpu": "2"}, name="other"), []),
    ],
)
def test_counted(old: v1.Pod, new: v1.Pod, counted: list[tuple[str, str, str]]) -> None:
    assert list(requested_resizes(old, new)) == counted


@given(AMOUNTS, AMOUNTS)
def test_the_way_back_is_the_opposite(one: str | None, other: str | None) -> None:
    opposite = {"add": "remove", "remove": "add", "increase": "decrease", "decrease": "increase"}
    old, new = (pod({} if amount is None else {"cpu": amount}) for amount in (one, other))
    there, back = (list(requested_resizes(*pair)) for pair in ((old, new), (new, old)))
    assert [opposite[entry.operation] for entry in there] == [entry.operation for entry in back]
