"""Variables: expansion, sources, the downward API."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runtime_configs.pods import NODE, container, first, node, pod
from tests.slowness import within_cpu
from trio_kubelet.podinfo.context import EnvSources, Features
from trio_kubelet.podinfo.doors import ConfigError
from trio_kubelet.podinfo.downward import expand, expand_all, metadata_field, pod_field
from trio_kubelet.runtime.configs.env import env_file_values, environment, expand_sub_path

_VARIABLES = {"A": "1", "B": "$(A)", "": "empty"}


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$(A)", "1"),
        ("x$(A)y$(A)", "x1y1"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$$$$(A)", "$$(A)"),
        ("$(NOPE)", "$(NOPE)"),
        ("$(B)", "$(A)"),  # what was put in is not looked at again
        ("$A ${A} $", "$A ${A} $"),
        ("$(A", "$(A"),
        ("$(A$$", "$(A$"),
        ("$($(A))", "$($(A))"),  # a name reaches to the first parenthesis
        ("$()", "empty"),
        ("%$(A)%\n$(A)", "%1%\n1"),
    ],
)
def test_expansion(text: str, expanded: str) -> None:
    assert expand(text, _VARIABLES.get) == expanded


@given(st.text(alphabet="$()Ax"))
def test_expansion_agrees_with_a_reader_of_one_character_at_a_time(text: str) -> None:
    done, rest = "", text
    while rest:
        if rest.startswith("$$"):
            done, rest = done + "$", rest[2:]
        elif rest.startswith("$(") and ")" in rest:
            name, _, rest = rest[2:].partition(")")
            done += _VARIABLES.get(name, f"$({name})")
        else:
            done, rest = done + rest[0], rest[1:]
    assert expand(text, _VARIABLES.get) == done


def test_what_a_command_may_grow_to() -> None:
    env = {"A": "a" * 100}
    assert expand("$(A)$(A)x", env.get, 200) == "a" * 200 + "x"
    assert expand_all(["x" * 500, "$(A)", "$(A)"], env, 200) == ["x" * 500, "a" * 100, "a" * 100]
    for texts in (["$(A)$(A)$(A)"], ["$(A)", "$(A)", "$(A)"]):
        with pytest.raises(ConfigError, match="stand for more than"):
            expand_all(texts, env, 200)


def test_references_without_an_end_take_no_longer_than_others() -> None:
    """Each was looked for to the end of the text: an hour of the event loop for a megabyte of them."""
    for _ in within_cpu(2):
        assert expand("$(" * 500_000, _VARIABLES.get) == "$(" * 500_000
        assert expand("$(A)" + "$(" * 500_000 + "$$", _VARIABLES.get) == "1" + "$(" * 500_000 + "$"


def test_variables_made_of_variables_do_not_fill_the_memory() -> None:
    """Ten times ten times ten …: without a limit 10 GB out of a few hundred bytes."""
    variables = [{"name": "V0", "value": "x" * 10}]
    for number in range(1, 10):
        variables.append({"name": f"V{number}", "value": f"$(V{number - 1})" * 10})
    assert len(_env(*variables[:6])["V5"]) == 10**6
    with pytest.raises(ConfigError, match="references to variables stand for more than"):
        _env(*variables)


def test_many_variables_of_one_large_object_do_not_fill_the_memory() -> None:
    sources = EnvSources(config_maps={"c": {"k": "x" * 1_000_000}})
    ref = {"configMapKeyRef": {"name": "c", "key": "k"}}
    taken = [{"name": f"V{number}", "valueFrom": ref} for number in range(20)]
    assert len(_env(*taken[:16], sources=sources)) == 16
    with pytest.raises(ConfigError, match="the variables have more than"):
        _env(*taken, sources=sources)
    keys = {str(number): "" for number in range(20)}
    long = [{"prefix": "x" * 1_000_000, "configMapRef": {"name": "c"}}]
    with pytest.raises(ConfigError, match="the variables have more than"):
        _env(sources=EnvSources(config_maps={"c": keys}), envFrom=long)
    all_of = [{"prefix": f"P{number}_", "configMapRef": {"name": "c"}} for number in range(20)]
    with pytest.raises(ConfigError, match="the variables have more than"):
        _env(sources=sources, envFrom=all_of)


def test_very_many_empty_variables_are_too_many() -> None:
    maps = {f"m{n}": {f"k{key:05d}": "" for key in range(50_000)} for n in range(6)}
    sources = [{"prefix": f"P{n}_", "configMapRef": {"name": f"m{n}"}} for n in range(6)]
    few, many = (pod(container(envFrom=sources[:n])) for n in (4, 6))
    assert len(environment(few, first(few), NODE, EnvSources(config_maps=maps))) == 200_000
    with pytest.raises(ConfigError, match=r"^the variables have more than"):
        environment(many, first(many), NODE, EnvSources(config_maps=maps))


def test_a_variable_of_a_secret_takes_no_longer_for_what_else_is_in_there() -> None:
    """Each of thousands of variables had all of the secret read."""
    data = {f"k{key}": b"v" for key in range(20_000)}
    env = [
        {"name": f"A{n}", "valueFrom": {"secretKeyRef": {"name": "s", "key": f"k{n}"}}} for n in range(2000)
    ]
    made = pod(container(env=env))
    for _ in within_cpu(0.5):  # for each variable: forty million of them
        values = environment(made, first(made), NODE, EnvSources(secrets={"s": data}))
        assert len(values) == 2000


def test_a_sub_path_is_no_longer_than_a_path() -> None:
    assert expand_sub_path("$(A)/$(A)", {"A": "a" * 2000}) == "a" * 2000 + "/" + "a" * 2000
    with pytest.raises(ConfigError, match="stand for more than 4096"):
        expand_sub_path("$(A)/$(A)", {"A": "a" * 2050})


def _env(*variables: dict[str, Any], sources: EnvSources | None = None, **fields: Any) -> dict[str, str]:
    made = pod(container(env=list(variables), **fields))
    return environment(made, first(made), NODE, sources or EnvSources(), ("10.0.0.1",))


def test_a_variable_sees_those_before_it_and_services() -> None:
    sources = EnvSources(services={"SVC_HOST": "10.0.0.9", "A": "service"})
    env = _env(
        {"name": "B", "value": "$(A) $(SVC_HOST)"},
        {"name": "A", "value": "own"},
        {"name": "C", "value": "$(A)"},
        sources=sources,
    )
    assert env == {"B": "service 10.0.0.9", "A": "own", "C": "own", "SVC_HOST": "10.0.0.9"}


def test_env_wins_over_env_from_and_later_sources_over_earlier() -> None:
    sources = EnvSources(config_maps={"m": {"K": "map", "X": "map"}}, secrets={"s": {"K": b"secret"}})
    env = _env(
        {"name": "X", "value": "own $(p_K)"},
        sources=sources,
        envFrom=[{"configMapRef": {"name": "m"}}, {"secretRef": {"name": "s"}, "prefix": "p_"}],
    )
    assert env == {"K": "map", "X": "own secret", "p_K": "secret"}


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ({"configMapKeyRef": {"name": "none", "key": "k"}}, 'configmap "none" not found'),
        ({"secretKeyRef": {"name": "none", "key": "k"}}, 'secret "none" not found'),
        ({"configMapKeyRef": {"name": "m", "key": "k"}}, "couldn't find key k in ConfigMap ns/m"),
    ],
)
def test_missing_source_fails_unless_optional(source: dict[str, Any], error: str) -> None:
    sources = EnvSources(config_maps={"m": {}})
    with pytest.raises(ConfigError, match=error):
        _env({"name": "V", "valueFrom": source}, sources=sources)
    (ref,) = source.values()
    ref["optional"] = True
    assert _env({"name": "V", "valueFrom": source}, sources=sources) == {}


def test_without_service_links_settled_nothing_is_made() -> None:
    made = pod(enableServiceLinks=None)
    with pytest.raises(ConfigError, match="enableServiceLinks"):
        environment(made, first(made), NODE, EnvSources())


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "p"),
        ("metadata.uid", "u1"),
        ("metadata.labels['app']", "web"),
        ("metadata.labels['other']", ""),
        ("metadata.annotations['a/b']", 'x"y'),
        ("metadata.labels", 'app="web"\ntier="1"'),
        ("spec.nodeName", "node1"),
        ("spec.serviceAccountName", "sa"),
        ("status.hostIP", "192.0.2.2"),
        ("status.hostIPs", "192.0.2.2,2001:db8::2"),
        ("status.podIP", "10.0.0.1"),
        ("status.podIPs", "10.0.0.1,fd00::1"),
    ],
)
def test_fields_of_the_pod(path: str, value: str) -> None:
    variable = {"name": "V", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}
    meta = {"labels": {"tier": "1", "app": "web"}, "annotations": {"a/b": 'x"y'}}
    made = pod(container(env=[variable]), meta=meta, nodeName="node1", serviceAccountName="sa")
    env = environment(made, first(made), NODE, EnvSources(), ("fd00:0::1", "10.0.0.1", "10.0.0.2"))
    assert env == {"V": value}


@pytest.mark.parametrize("path", ["status.phase", "spec.restartPolicy", "metadata.name['x']"])
def test_other_fields_are_refused(path: str) -> None:
    with pytest.raises(ConfigError, match="fieldPath"):
        metadata_field(pod(), path)


@pytest.mark.parametrize(
    ("node_ips", "value"),
    [
        ((), "10.0.0.1,fd00::1"),
        (("192.0.2.2", "2001:db8::2"), "10.0.0.1,fd00::1"),
        (("2001:db8::2", "192.0.2.2"), "fd00::1,10.0.0.1"),
        (("::",), "fd00::1,10.0.0.1"),
    ],
)
def test_the_nodes_address_family_comes_first(node_ips: tuple[str, ...], value: str) -> None:
    context = node(node_ips=node_ips)
    assert pod_field(pod(), "status.podIPs", ("010.000.000.001", "fd00:0::1"), context) == value


@pytest.mark.parametrize(
    ("resource", "divisor", "value"),
    [
        ("requests.cpu", "0", "1"),
        ("requests.cpu", "1m", "250"),
        ("limits.cpu", "1", "4"),  # not set: the node's
        ("limits.memory", "1Mi", "100"),
        ("limits.memory", "1G", "1"),
        ("requests.memory", "1", "0"),
        ("limits.ephemeral-storage", "1Gi", "100"),
        ("requests.hugepages-2Mi", "1Mi", "4"),
    ],
)
def test_resources_are_in_units_of_the_divisor_rounded_up(resource: str, divisor: str, value: str) -> None:
    selector = {"resource": resource, "divisor": divisor}
    env = _env(
        {"name": "V", "valueFrom": {"resourceFieldRef": selector}},
        resources={"requests": {"cpu": "250m", "hugepages-2Mi": "4Mi"}, "limits": {"memory": "100Mi"}},
    )
    assert env == {"V": value}


def test_limit_that_only_the_pod_has_is_the_containers() -> None:
    selector = {"resource": "limits.memory", "divisor": "1Mi"}
    variable = {"name": "V", "valueFrom": {"resourceFieldRef": selector}}
    made = pod(container(env=[variable]), resources={"limits": {"memory": "64Mi"}})
    assert environment(made, first(made), NODE, EnvSources()) == {"V": "64"}
    without = node(features=Features(pod_level_resources=False))
    assert environment(made, first(made), without, EnvSources()) == {"V": "1000"}


def test_limit_of_a_named_init_container_has_no_default() -> None:
    selector = {"resource": "limits.cpu", "containerName": "init"}
    variable = {"name": "V", "valueFrom": {"resourceFieldRef": selector}}
    made = pod(container(env=[variable]), initContainers=[container(name="init")])
    assert environment(made, first(made), NODE, EnvSources()) == {"V": "0"}


def test_command_and_sub_path_are_expanded() -> None:
    assert expand_all(["run", "$(A)"], {"A": "x"}) == ["run", "x"]
    assert expand_sub_path("logs/$(POD)", {"POD": "p"}) == "logs/p"
    with pytest.raises(ConfigError, match="missing value for A, B"):
        expand_sub_path("$(B)/$(A)/$(C)", {"A": "", "C": "c"})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("K='v'\n", "v"),
        ("# c\n\n  K='a b' # why\n", "a b"),
        ("K='two\nlines'\nK='second'", "two\nlines"),
        ("K= 'x'", ""),
        ("OTHER='x'", ""),
        ("K='v'\nbroken", "v"),
    ],
)
def test_env_file(text: str, value: str) -> None:
    assert env_file_values(text, {"K"}).get("K", "") == value


@pytest.mark.parametrize("text", ["broken", "K ='v'", "='v'", "K=v", "K='open", "K='v' x"])
def test_env_file_that_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="line 1"):
        env_file_values(text, {"K"})


def test_an_env_file_is_read_for_all_keys_at_once() -> None:
    text = "A='1'\nB='2'\nA='3'\nC= x\nD='4'\nbroken"
    assert env_file_values(text, {"A", "B", "C"}) == {"A": "1", "B": "2", "C": ""}
    with pytest.raises(ValueError, match="line 6"):
        env_file_values(text, {"A", "none"})
