"""Messages about resizes, as a Go encoder writes them."""

from __future__ import annotations

from tests.pods.build import api_pod
from trio_kubelet.api import v1
from trio_kubelet.pods.resize.rules import resize_message


def test_the_resources_asked_for_are_told() -> None:
    asked = v1.ResourceRequirements(
        requests={"memory": "40Mi", "cpu": "70m"}, limits={"memory": "96Mi", "cpu": "150m"}
    )
    pod = api_pod(generation=2, containers=[v1.Container(name="c", resources=asked)])
    assert resize_message("started", pod) == (
        'Pod resize started: {"containers":[{"name":"c","resources":'
        '{"limits":{"cpu":"150m","memory":"96Mi"},"requests":{"cpu":"70m","memory":"40Mi"}}}],"generation":2}'
    )


def test_init_containers_come_first_and_errors_last() -> None:
    pod = api_pod(
        generation=3,
        containers=[v1.Container(name="c")],
        spec={"init_containers": [v1.Container(name="i")]},
    )
    assert resize_message("error", pod, 'a "b" <c> & ü') == (
        'Pod resize error: {"initContainers":[{"name":"i","resources":{}}],'
        '"containers":[{"name":"c","resources":{}}],"generation":3,'
        '"error":"a \\"b\\" \\u003cc\\u003e \\u0026 ü"}'
    )
