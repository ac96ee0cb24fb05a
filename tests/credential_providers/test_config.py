"""The configuration of plugins: what is read, and what is refused at start, in which words."""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.credential_providers.config import (
    InvalidProviderConfig,
    ProviderConfig,
    decode,
    load_providers,
    problems,
    read_providers,
)

V1 = "credentialprovider.kubelet.k8s.io/v1"
NO_NAME = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
    "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
TOKEN = {"serviceAccountTokenAudience": "aud", "requireServiceAccount": True, "cacheType": "Token"}


def a_provider(**fields: Any) -> dict[str, Any]:
    return {
        "name": "ask",
        "matchImages": ["*.example.org"],
        "defaultCacheDuration": "1h",
        "apiVersion": V1,
    } | fields


def a_file(*providers: dict[str, Any], version: str = "v1", **fields: Any) -> bytes:
    head = {"apiVersion": f"kubelet.config.k8s.io/{version}", "kind": "CredentialProviderConfig"}
    return json.dumps(head | {"providers": list(providers)} | fields).encode()


def found(**fields: Any) -> list[str]:
    return list(problems(decode(a_file(a_provider(**fields))), tokens=True))


def plugins(directory: Path, *names: str) -> str:
    directory.mkdir()
    for name in names:
        (directory / name).write_text("#!/bin/sh\n")
        (directory / name).chmod(0o755)
    return str(directory)


def test_a_file_of_yaml(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(
        "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n"
        "- name: ask\n  matchImages: ['*.example.org']\n  defaultCacheDuration: 90s\n"
        f"  apiVersion: {V1}\n  args: [get]\n  env: [{{name: A, value: b}}]\n"
    )
    loaded = load_providers(str(path), plugins(tmp_path / "bin", "ask"), tokens=True)
    (provider,) = loaded.providers
    assert (provider.name, provider.cache_seconds, provider.args) == ("ask", 90.0, ["get"])
    data = path.read_bytes()
    digest = hashlib.sha256(len(data).to_bytes(8, "big") + data).hexdigest()
    assert loaded.hash == f"sha256:{digest}"


def test_a_directory_in_order_without_what_is_no_configuration(tmp_path: Path) -> None:
    (tmp_path / "20.json").write_bytes(a_file(a_provider(name="two")))
    (tmp_path / "10.yml").write_bytes(a_file(a_provider(name="one")))
    (tmp_path / "00.txt").write_text("nonsense")
    (tmp_path / "30.yaml").mkdir()
    assert [p.name for p in read_providers(str(tmp_path)).providers] == ["one", "two"]


def test_a_name_stands_once(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_bytes(a_file(a_provider()))
    with pytest.raises(
        InvalidProviderConfig, match='duplicate provider name "ask" found in configuration file'
    ):
        read_providers(str(tmp_path))


def test_what_is_not_there(tmp_path: Path) -> None:
    directory = plugins(tmp_path / "bin")
    empty = tmp_path / "empty"
    empty.mkdir()
    path = tmp_path / "c.json"
    path.write_bytes(a_file(a_provider()))
    for config, where, text in (
        ("", directory, "credential provider config path is empty"),
        (str(path), str(tmp_path / "none"), f"plugin binary directory {tmp_path}/none did not exist"),
        (str(path), directory, f"plugin binary executable {directory}/ask did not exist"),
        (str(tmp_path / "none"), directory, f'unable to access path "{tmp_path}/none": no such file'),
        (str(empty), directory, f'no configuration files found in directory "{empty}"'),
    ):
        with pytest.raises(InvalidProviderConfig) as error:
            load_providers(config, where, tokens=True)
        assert str(error.value).startswith(text)
    (Path(directory) / "ask").write_text("")
    (Path(directory) / "ask").chmod(0o644)
    with pytest.raises(InvalidProviderConfig, match="error inspecting binary executable"):
        load_providers(str(path), directory, tokens=True)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[1]",
        a_file(a_provider(surprise=1)),
        a_file(a_provider(), surprise=1),
        a_file(a_provider(defaultCacheDuration=5)),
        a_file(a_provider(defaultCacheDuration="soon")),
        a_file(a_provider(tokenAttributes=TOKEN), version="v1beta1"),
        a_file(a_provider(), version="v2"),
        a_file(a_provider()).replace(b"CredentialProviderConfig", b"Other"),
        a_file(a_provider()).replace(b'"kind"', b'"kind": "x", "kind"'),
    ],
)
def test_reading_is_strict(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "c.json"
    path.write_bytes(data)
    with pytest.raises(InvalidProviderConfig, match=f'^error decoding config "{path}": '):
        read_providers(str(path))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (
            a_file(a_provider(surprise=1), a_provider(name="b", env=[{"key": "A"}]), surprise=1),
            'strict decoding error: unknown field "providers[0].surprise", '
            'unknown field "providers[1].env[0].key", unknown field "surprise"',
        ),
        (
            a_file(a_provider(tokenAttributes=TOKEN), version="v1beta1"),
            'strict decoding error: unknown field "providers[0].tokenAttributes"',
        ),
        (
            a_file(a_provider(env=[{"name": "PASSWORD", "value": 12345}])),
            "providers[0].env[0].value: expected a string",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_told_by_its_path(tmp_path: Path, data: bytes, text: str) -> None:
    path = tmp_path / "c.json"
    path.write_bytes(data)
    with pytest.raises(InvalidProviderConfig) as error:
        read_providers(str(path))
    assert str(error.value) == f'error decoding config "{path}": {text}'


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, []),
        ({"name": "a/b"}, ["name: Invalid value: \"a/b\": provider name cannot contain '/'"]),
        ({"name": "a b"}, ['name: Invalid value: "a b": provider name cannot contain spaces']),
        ({"name": ".."}, ["name: Invalid value: \"..\": provider name cannot be '..'"]),
        ({"apiVersion": ""}, ["apiVersion: Required value"]),
        (
            {"apiVersion": "v9"},
            [f'apiVersion: Unsupported value: "v9": supported values: "{V1}", "{V1}alpha1", "{V1}beta1"'],
        ),
        ({"matchImages": []}, ["matchImages: Required value: at least 1 item in matchImages is required"]),
        (
            {"matchImages": ["a.b:x/c"]},
            [
                'matchImages: Invalid value: "a.b:x/c": match image is invalid: parse "https://a.b:x/c": '
                'invalid port ":x" after host'
            ],
        ),
        ({"defaultCacheDuration": None}, ["defaultCacheDuration: Required value"]),
        (
            {"defaultCacheDuration": "-1m"},
            ['defaultCacheDuration: Invalid value: "-1m0s": must be greater than or equal to 0'],
        ),
        ({"tokenAttributes": TOKEN}, []),
        (
            {"tokenAttributes": {}},
            [
                "tokenAttributes.serviceAccountTokenAudience: Required value",
                "tokenAttributes.requireServiceAccount: Required value",
                "tokenAttributes.cacheType: Required value: cacheType is required to be set when "
                "tokenAttributes is specified. Supported values are: ServiceAccount, Token",
            ],
        ),
        (
            {"tokenAttributes": TOKEN, "apiVersion": f"{V1}beta1"},
            [f"tokenAttributes: Forbidden: tokenAttributes is only supported for {V1} API version"],
        ),
        (
            {"tokenAttributes": TOKEN | {"cacheType": "Pod"}},
            [
                'tokenAttributes.cacheType: Unsupported value: "Pod": supported values: "ServiceAccount", '
                '"Token"'
            ],
        ),
        (
            {
                "tokenAttributes": TOKEN
                | {
                    "requireServiceAccount": False,
                    "requiredServiceAccountAnnotationKeys": ["a/b", "a/b"],
                    "optionalServiceAccountAnnotationKeys": ["a/b", "Good/Key"],
                }
            },
            [
                "tokenAttributes.requiredServiceAccountAnnotationKeys: Forbidden: "
                "requireServiceAccount cannot be false when requiredServiceAccountAnnotationKeys is set",
                'tokenAttributes.requiredServiceAccountAnnotationKeys: Duplicate value: "a/b"',
                'tokenAttributes: Invalid value: ["a/b"]: annotation keys cannot be both required and '
                "optional",
            ],
        ),
        (
            {"tokenAttributes": TOKEN | {"requiredServiceAccountAnnotationKeys": ["ends-", "ends-"]}},
            [
                *['tokenAttributes.requiredServiceAccountAnnotationKeys: Invalid value: "ends-": ' + NO_NAME]
                * 2,
                'tokenAttributes.requiredServiceAccountAnnotationKeys: Duplicate value: "ends-"',
            ],
        ),
    ],
)
def test_what_is_wrong(fields: dict[str, Any], expected: list[str]) -> None:
    assert found(**fields) == [f"providers.{text}" for text in expected]


def test_no_plugins_and_no_tokens(tmp_path: Path) -> None:
    assert list(problems([], tokens=True)) == [
        "providers: Required value: at least 1 item in plugins is required"
    ]
    (forbidden,) = problems(decode(a_file(a_provider(tokenAttributes=TOKEN))), tokens=False)
    assert forbidden.endswith(
        "is not supported when KubeletServiceAccountTokenForCredentialProviders feature gate is disabled"
    )
    path = tmp_path / "c.json"
    path.write_bytes(a_file(a_provider(name="", apiVersion="")))
    with pytest.raises(InvalidProviderConfig, match=r"^failed to validate credential provider config: prov"):
        load_providers(str(path), str(tmp_path), tokens=True)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        decode(data)


@given(st.text(max_size=20), st.lists(st.text(max_size=20), max_size=3))
def test_any_names_are_judged(name: str, images: list[str]) -> None:
    provider = ProviderConfig(name=name, match_images=images, api_version=V1, default_cache_duration="0")
    assert all(text.startswith("providers.") for text in problems([provider], tokens=True))


def test_values_of_variables_are_not_shown() -> None:
    (provider,) = decode(a_file(a_provider(env=[{"name": "A", "value": "hidden"}])))
    assert "hidden" not in repr(provider)
