"""pflag's syntax and the values of the flag types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.config.flag_table import kubelet_flags
from trio_kubelet.config.pflag import FlagError, parse_command_line
from trio_kubelet.config.types import MemoryReservation, Taint, VModuleItem


def values(*args: str) -> dict[str, Any]:
    return dict(parse_command_line(args, kubelet_flags()).values)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--max-pods=5"], {"max-pods": 5}),
        (["--max-pods", "5"], {"max-pods": 5}),
        (["--max_pods", "-5"], {"max-pods": -5}),
        (["--max-pods=0x10"], {"max-pods": 16}),
        (["--max-pods=010"], {"max-pods": 8}),
        (["--max-pods=1", "--max-pods=2"], {"max-pods": 2}),
        (["--fail-swap-on"], {"fail-swap-on": True}),
        (["--fail-swap-on=false"], {"fail-swap-on": False}),
        (["--fail-swap-on=T"], {"fail-swap-on": True}),
        (["-v", "4"], {"v": 4}),
        (["-v4"], {"v": 4}),
        (["-v=4"], {"v": 4}),
        (["--v=4"], {"v": 4}),
        (["--v", "4"], {"v": 4}),
        (["-hv4"], {"help": True, "v": 4}),
        (["--version"], {"version": "true"}),
        (["--version=raw"], {"version": "raw"}),
        (["--hostname-override="], {"hostname-override": ""}),
        (["--hostname-override", "--x"], {"hostname-override": "--x"}),
        (["--hostname-override=a=b"], {"hostname-override": "a=b"}),
        (["--sync-frequency=1m30s"], {"sync-frequency": 90.0}),
        (
            ["--cluster-dns=1.1.1.1,2.2.2.2", "--cluster-dns", "3.3.3.3"],
            {"cluster-dns": ["1.1.1.1", "2.2.2.2", "3.3.3.3"]},
        ),
        (["--cluster-dns="], {"cluster-dns": []}),
        (['--allowed-unsafe-sysctls="a,b",c'], {"allowed-unsafe-sysctls": ["a,b", "c"]}),
        (["--kube-reserved=cpu=1, memory = 2Gi"], {"kube-reserved": {"cpu": "1", "memory": "2Gi"}}),
        (["--kube-reserved=cpu=1", "--kube-reserved=pid=5"], {"kube-reserved": {"cpu": "1", "pid": "5"}}),
        (["--cpu-manager-policy-options=a=1,2"], {"cpu-manager-policy-options": {"a": "1,2"}}),
        (["--eviction-hard=memory.available<5%"], {"eviction-hard": {"memory.available": "5%"}}),
        (["--eviction-hard="], {"eviction-hard": {}}),
        (["--feature-gates=A=true,B=0"], {"feature-gates": {"A": True, "B": False}}),
        (["--node-labels=a=b,c"], {"node-labels": {"a": "b", "c": ""}}),
        (
            ["--manifest-url-header=a:1,b:2", "--manifest-url-header=a:3"],
            {"manifest-url-header": {"a": ["1", "3"], "b": ["2"]}},
        ),
        (
            ["--vmodule=a=1,b*=2,"],
            {
                "vmodule": [
                    VModuleItem(file_pattern="a", verbosity=1),
                    VModuleItem(file_pattern="b*", verbosity=2),
                ]
            },
        ),
        (
            ["--reserved-memory=0:memory=1Gi,hugepages-2Mi=2Mi;1:memory=1Gi"],
            {
                "reserved-memory": [
                    MemoryReservation(limits={"memory": "1Gi", "hugepages-2Mi": "2Mi"}),
                    MemoryReservation(numa_node=1, limits={"memory": "1Gi"}),
                ]
            },
        ),
        (
            ["--register-with-taints=node-role.kubernetes.io/control-plane=:NoSchedule,a:NoExecute"],
            {
                "register-with-taints": [
                    Taint(key="node-role.kubernetes.io/control-plane", effect="NoSchedule"),
                    Taint(key="a", effect="NoExecute"),
                ]
            },
        ),
        (["--address=010.1.1.1"], {"address": "010.1.1.1"}),
        (["--address=::"], {"address": "::"}),
        (["--address="], {"address": ""}),
        (
            ["--register-with-taints=a-,b=c:NoSchedule-,d:NoExecute"],
            {"register-with-taints": [Taint(key="d", effect="NoExecute")]},
        ),
        (["--version=v1.36.2-eks.1"], {"version": "v1.36.2-eks.1"}),
        (["--log-text-info-buffer-size=1024Ki"], {"log-text-info-buffer-size": "1Mi"}),
    ],
)
def test_values(args: Sequence[str], expected: dict[str, Any]) -> None:
    assert values(*args) == expected


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--max-podz=5"], "unknown flag: --max-podz (did you mean --max-pods?)"),
        (["--qqqqqqqqqqq"], "unknown flag: --qqqqqqqqqqq"),
        # dockershim's, gone since v1.24
        (["--image-pull-progress-deadline=1m"], "unknown flag: --image-pull-progress-deadline"),
        (["-x"], "unknown shorthand flag: 'x' in -x"),
        (["--max-pods"], "flag needs an argument: --max-pods"),
        (["-v"], "flag needs an argument: 'v' in -v"),
        (["--=5"], "bad flag syntax: --=5"),
        (["---v"], "bad flag syntax: ---v"),
        (["--max-pods=x"], "invalid argument 'x' for '--max-pods' flag: 'x' is not an integer"),
        (["--max-pods=3000000000"], "does not fit into 32 bits"),
        (["--max-pods= 5"], "is not an integer"),
        (["--max-pods=٣"], "is not an integer"),
        (["--fail-swap-on=maybe"], "'maybe' is not a boolean"),
        (["-v=-1"], "invalid argument '-1' for '-v, --v' flag: '-1' is not a verbosity"),
        (["--sync-frequency=5"], "missing unit in duration '5'"),
        (["--address=localhost"], "'localhost' is not an IP address"),
        (["--kube-reserved=cpu"], "'cpu' is not of the form key=value"),
        (["--eviction-hard=memory.available=5%"], "is not of the form key<value"),
        (["--feature-gates=A=x"], "A: 'x' is not a boolean"),
        (["--feature-gates=A"], "'A' is not of the form key=value"),
        (["--manifest-url-header=a"], "'a' is not of the form key:value"),
        (["--vmodule=a"], "'a' is not of the form pattern=N"),
        (["--vmodule=a=x"], "'x' is not a verbosity"),
        (["--reserved-memory=memory=1Gi"], "is not of the form numaNode:type=quantity"),
        (["--reserved-memory=0:disk=1Gi"], "unknown memory type 'disk'"),
        (["--register-with-taints=a=b:Never"], "the effect of a taint is one of"),
        (["--register-with-taints=a:NoSchedule,a=b:NoSchedule"], "is given twice"),
        (["--log-text-info-buffer-size=5X"], "quantities must match"),
        (['--cluster-dns="a'], "is not a comma-separated list"),
        (["--cpu-manager-policy-options=a"], "is not of the form key=value"),
        (["--register-with-taints=a"], "'a' is not of the form key=value:effect"),
        (["--register-with-taints=a=b=c:NoSchedule"], "is not of the form key=value:effect"),
        (["--version=v1"], 'version "v1" must match major/minor/patch of default version "v1.36.2"'),
        (["--version=v1.36.20"], "must match major/minor/patch"),
    ],
)
def test_mistakes_are_named(args: Sequence[str], message: str) -> None:
    with pytest.raises(FlagError) as caught:
        values(*args)
    assert message in str(caught.value)


def test_words_and_flags_may_be_mixed() -> None:
    line = parse_command_line(["a", "--max-pods=1", "b", "-", "--", "--max-pods=2"], kubelet_flags())
    assert list(line.words) == ["a", "b", "-", "--max-pods=2"]
    assert line.values == {"max-pods": 1}


def test_a_boolean_does_not_take_the_next_word() -> None:
    line = parse_command_line(["--fail-swap-on", "false"], kubelet_flags())
    assert line.values == {"fail-swap-on": True}
    assert list(line.words) == ["false"]


scalar_flags = st.sampled_from([flag.name for flag in kubelet_flags().values() if flag.kind == "string"])


@given(scalar_flags, st.text())
def test_both_spellings_of_a_flag_mean_the_same(name: str, text: str) -> None:
    assert (
        values(f"--{name}={text}")
        == values(f"--{name}", text)
        == values(f"--{name.replace('-', '_')}={text}")
    )


def outcome(*args: str) -> dict[str, Any] | str:
    """The values of a command line, or why it is refused."""
    try:
        return values(*args)
    except FlagError as error:
        return str(error)


@given(
    st.lists(st.one_of(st.text(), st.sampled_from(["--v", "-v", "--", "--cluster-dns", "--kube-reserved"])))
)
def test_any_command_line_is_read_or_refused_with_a_reason(args: list[str]) -> None:
    result = outcome(*args)
    assert result if isinstance(result, str) else set(result) <= set(kubelet_flags())


@given(st.sampled_from(sorted(kubelet_flags())), st.text())
def test_any_value_is_read_or_refused_with_the_flag_named(name: str, text: str) -> None:
    result = outcome(f"--{name}={text}")
    assert f"--{name}" in result if isinstance(result, str) else list(result) == [name]


def test_each_deprecated_flag_is_told_when_it_is_set() -> None:
    said: list[str] = []
    with pytest.raises(FlagError):
        parse_command_line(
            ["--max-pods=1", "--v=2", "--max_pods=2", "--runonce", "--port=x", "--address=::"],
            kubelet_flags(),
            said.append,
        )
    assert [line.split(" has been deprecated, ")[0] for line in said] == [
        "Flag --max-pods",
        "Flag --max-pods",
        "Flag --runonce",
    ]
    assert said[0].endswith(
        "This parameter should be set via the config file specified by the Kubelet's --config flag. See "
        "https://kubernetes.io/docs/tasks/administer-cluster/kubelet-config-file/ for more information."
    )
