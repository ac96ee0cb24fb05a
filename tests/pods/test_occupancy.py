"""What the active pods take, kept up, is what they take counted anew."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pods.build import make_pod
from tests.slowness import within_cpu
from trio_kubelet.api import v1
from trio_kubelet.podinfo import amounts
from trio_kubelet.podinfo.totals import pod_requests
from trio_kubelet.pods.admission import occupancy
from trio_kubelet.pods.admission.fit import NodeFacts, failures
from trio_kubelet.pods.admission.occupancy import HostPort, Occupancy, host_ports

NAMES = ("cpu", "memory", "example.com/gpu")


def one(name: str, requests: dict[str, str], ports: list[tuple[str, int]]) -> v1.Pod:
    taken = [v1.ContainerPort(container_port=80, host_port=number, host_ip=ip) for ip, number in ports]
    resources = v1.ResourceRequirements(requests=requests or None)
    return make_pod(name, containers=[v1.Container(name="c", image="i", resources=resources, ports=taken)])


doings = st.lists(
    st.tuples(
        st.sampled_from("abcde"),
        st.booleans(),
        st.dictionaries(st.sampled_from(NAMES), st.sampled_from(["1", "250m", "3"]), max_size=3),
        st.lists(st.tuples(st.sampled_from(["", "127.0.0.1", "10.0.0.1"]), st.integers(1, 3)), max_size=2),
    ),
    max_size=25,
)


@given(doings, st.sampled_from("abcdef"))
def test_sums_are_those_of_the_pods_that_are_there(doings: list[Any], asked: str) -> None:
    kept, there = Occupancy(), dict[str, v1.Pod]()
    for name, comes, requests, ports in doings:
        pod = one(name, requests, ports)
        uid = pod.metadata.uid
        if comes:
            kept.put(pod)
            there[uid] = pod
        else:
            kept.drop(uid)
            there.pop(uid, None)
    uid = f"uid-{asked}"
    others = [pod for each, pod in there.items() if each != uid]
    found = kept.beside(uid)
    assert len(found) == len(others)
    assert found.pods() == others
    for name in NAMES:
        assert found.requested(name) == sum(
            amounts.counted(name, pod_requests(pod).get(name, 0)) for pod in others
        )
    taken = {port for pod in others for port in host_ports(pod)}
    for address in ("0.0.0.0", "127.0.0.1", "10.0.0.1"):
        for number in range(1, 5):
            wanted = HostPort(address, "TCP", number)
            conflict = any(
                its.number == number and (its.address == address or "0.0.0.0" in (address, its.address))
                for its in taken
            )
            assert found.have_port(wanted) is conflict


@pytest.mark.parametrize("pods", [50, 1000])
def test_admission_reads_the_requests_of_one_pod(pods: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are: what is done for a new pod is counted in pods that are gone through."""
    read = 0

    def counted(pod: v1.Pod, **how: bool) -> amounts.Amounts:
        nonlocal read
        read += 1
        return pod_requests(pod, **how)

    there = Occupancy(one(f"p{number}", {"cpu": "1m"}, []) for number in range(pods))
    node = NodeFacts(name="n", allocatable={"cpu": "64", "pods": "2000"})
    monkeypatch.setattr(occupancy, "pod_requests", counted)
    monkeypatch.setattr("trio_kubelet.pods.admission.fit.pod_requests", counted)
    new = one("new", {"cpu": "1"}, [("", 80)])
    assert failures(new, there.beside(new.metadata.uid), node) == []
    there.put(new)
    assert read == 2


@pytest.mark.parametrize("addresses", [[""], ["", "10.0.0.1"]])
def test_the_ports_of_a_large_pod_are_gone_through_once(addresses: list[str]) -> None:
    """Asked for against what the pod has already, as for a resize."""
    ports = [(ip, number) for ip in addresses for number in range(1, 5001)]
    ports += [(f"10.1.{each >> 8}.{each & 255}", 9000) for each in range(5000)]
    pod = one("large", {}, ports)
    for _ in within_cpu(0.5):  # each against each: a hundred million looks
        others = Occupancy([pod]).beside("uid-large")
        assert not any(map(others.have_port, host_ports(pod)))
