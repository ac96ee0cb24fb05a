"""Policies and options as configured: which there are, what they need, what is refused."""

from __future__ import annotations

import pytest

from tests.placement.test_cpu_policy import MACHINE, RESERVED
from trio_kubelet.common.cpusets import parse_cpus
from trio_kubelet.config.gates import FeatureGates, resolve_gates
from trio_kubelet.config.load import ConfigurationError
from trio_kubelet.config.types import KubeletConfiguration
from trio_kubelet.placement.allocator import TopologyPolicy
from trio_kubelet.placement.cpu_manager import cpu_policy
from trio_kubelet.placement.settings import topology_policy

GATES: FeatureGates = resolve_gates({"CPUManagerPolicyAlphaOptions": True})


def static(**fields: object) -> KubeletConfiguration:
    return KubeletConfiguration(
        cpu_manager_policy="static",
        kube_reserved={"cpu": "1500m"},
        **fields,  # type: ignore[arg-type]
    )


def test_the_reservation_is_rounded_up_to_whole_cpus() -> None:
    policy = cpu_policy(static(), GATES, MACHINE)
    assert policy is not None
    assert policy.reserved == RESERVED


def test_named_reserved_cpus() -> None:
    policy = cpu_policy(static(reserved_system_cpus="2,10-11"), GATES, MACHINE)
    assert policy is not None
    assert policy.reserved == parse_cpus("2,10-11")


def test_none() -> None:
    assert cpu_policy(KubeletConfiguration(), GATES, MACHINE) is None
    assert topology_policy(KubeletConfiguration(), resolve_gates({}), MACHINE) == TopologyPolicy()


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (KubeletConfiguration(cpu_manager_policy="dynamic"), 'unknown policy: "dynamic"'),
        (KubeletConfiguration(cpu_manager_policy="static"), "unable to determine reserved CPU resources"),
        (
            KubeletConfiguration(cpu_manager_policy="static", kube_reserved={"cpu": "0"}),
            "unable to determine reserved CPU resources",
        ),
        (
            KubeletConfiguration(cpu_manager_policy_options={"b": "1", "a": "x"}),
            r"^new none policy error: None policy: received unsupported options=map\[a:x b:1\]$",
        ),
        (static(cpu_manager_policy_options={"x": "true"}), 'unknown CPU Manager Policy option: "x"'),
        (
            static(cpu_manager_policy_options={"full-pcpus-only": "yes"}),
            '^new static policy error: bad value for option "full-pcpus-only": strconv.ParseBool: '
            'parsing "yes": invalid syntax',
        ),
        (
            static(
                cpu_manager_policy_options={
                    "full-pcpus-only": "true",
                    "distribute-cpus-across-cores": "true",
                }
            ),
            "full-pcpus-only and distribute-cpus-across-cores can not be used at the same time",
        ),
        (
            static(
                cpu_manager_policy_options={"align-by-socket": "true"},
                topology_manager_policy="single-numa-node",
            ),
            "single-numa-node policy is incompatible with CPUManager align-by-socket",
        ),
    ],
)
def test_what_is_refused(config: KubeletConfiguration, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        cpu_policy(config, GATES, MACHINE)


def test_options_need_their_gate() -> None:
    config = static(cpu_manager_policy_options={"distribute-cpus-across-cores": "true"})
    with pytest.raises(ConfigurationError, match="CPU Manager Policy Alpha-level Options not enabled"):
        cpu_policy(config, resolve_gates({}), MACHINE)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"topology_manager_policy": "best"}, 'unknown policy: "best"'),
        ({"topology_manager_policy": "restricted", "topology_manager_scope": "x"}, 'unknown scope: "x"'),
        (
            {
                "topology_manager_policy": "restricted",
                "topology_manager_policy_options": {"max-allowable-numa-nodes": "4"},
            },
            'the minimum value of "max-allowable-numa-nodes" should not be less than 8',
        ),
        (
            {
                "topology_manager_policy": "restricted",
                "topology_manager_policy_options": {"max-allowable-numa-nodes": "-9"},
            },
            'the minimum value of "max-allowable-numa-nodes" should not be less than 8',
        ),
        (
            {
                "topology_manager_policy": "restricted",
                "topology_manager_policy_options": {"max-allowable-numa-nodes": "many"},
            },
            'unable to convert policy option to integer "max-allowable-numa-nodes": '
            'strconv.Atoi: parsing "many": invalid syntax',
        ),
    ],
)
def test_topology_policies_that_are_refused(fields: dict[str, object], text: str) -> None:
    config = KubeletConfiguration(**fields)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=text):
        topology_policy(config, resolve_gates({}), MACHINE)
