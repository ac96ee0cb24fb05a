"""Registry credentials: which entries fit an image, in which order."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.credential_providers.keyring import (
    InvalidDockerConfig,
    Keyring,
    Login,
    is_hub_image,
    matches,
    parse_docker_config,
    parse_legacy_docker_config,
)


def users(keyring: Keyring, image: str) -> list[str]:
    return [found.login.username for found in keyring.lookup(image)]


def a_keyring(*registries: str) -> Keyring:
    return Keyring([{registry: Login(registry, "x") for registry in registries}])


@pytest.mark.parametrize(
    ("location", "image", "fits"),
    [
        ("foo.bar", "foo.bar/a/b", True),
        ("foo.bar", "foo.bar:5000/a", False),
        ("foo.bar:5000", "foo.bar:5000/a", True),
        ("foo.bar:5000", "foo.bar/a", False),
        ("*.bar", "foo.bar/a", True),
        ("*.bar", "x.foo.bar/a", False),
        ("*.*.bar", "x.foo.bar/a", True),
        ("f*.bar", "foo.bar/a", True),
        ("*", "foo.bar/a", False),
        ("foo.bar/a", "foo.bar/a/b", True),
        ("foo.bar/a", "foo.bar/abc", True),
        ("foo.bar/a", "foo.bar/b", False),
        ("*.bar/a", "foo.bar/a/b", True),
        ("foo.bar/*", "foo.bar/a", False),
        ("*oo*.*", "foo.bar/a", True),
        ("**o**o**.bar", "foo.bar/a", True),
        ("f*o*o*o.bar", "foo.bar/a", False),
        ("foo*foo.bar", "foo.bar/a", False),
        ("fo[o].bar", "foo.bar/a", False),
        ("?oo.bar", "foo.bar/a", False),
        ("[::1]:80", "[::1]:80/a", True),
        ("user@foo.bar", "foo.bar/a", True),
        ("foo.bar/%61", "foo.bar/a", True),
        ("foo.bar/%6", "foo.bar/%6", False),
        ("foo.bar:x", "foo.bar:x/a", False),
    ],
)
def test_matching(location: str, image: str, fits: bool) -> None:
    assert matches(location, image) is fits


@pytest.mark.parametrize("stars", [8, 120, 100_000])
def test_a_pattern_takes_no_more_time_than_it_is_long(stars: int) -> None:
    """Patterns come from pods' secrets: one that goes back and forth would hold up the node."""
    host = "a" * 250
    assert not matches("*a" * stars + "*b.example.com", f"{host}.example.com/x")
    assert matches("*a" * min(stars, 250) + ".example.com", f"{host}.example.com/x")


def test_the_longest_path_first() -> None:
    keyring = a_keyring("foo.bar", "https://foo.bar/team", "foo.bar/team/app", "*.bar", "other.bar")
    assert users(keyring, "foo.bar/team/app/web") == [
        "foo.bar/team/app",
        "https://foo.bar/team",
        "foo.bar",
        "*.bar",
    ]
    assert users(keyring, "foo.bar/x") == ["foo.bar", "*.bar"]
    assert users(keyring, "quay.io/x") == []


@pytest.mark.parametrize("entry", ["https://foo.bar/v1/", "http://foo.bar/v2/", "foo.bar/", "foo.bar"])
def test_ways_to_write_a_host(entry: str) -> None:
    assert users(a_keyring(entry), "foo.bar/a") == [entry]


def test_several_logins_of_one_registry_are_all_tried() -> None:
    keyring = Keyring([{"foo.bar": Login("one", "x")}, {"https://foo.bar": Login("two", "x")}])
    assert users(keyring, "foo.bar/a") == ["one", "two"]


def test_docker_hub() -> None:
    keyring = a_keyring("https://index.docker.io/v1/")
    for image in ("docker.io/library/busybox", "index.docker.io/a/b", "library/busybox", "busybox"):
        assert users(keyring, image) == ["https://index.docker.io/v1/"]
    assert users(keyring, "quay.io/a") == []
    assert not is_hub_image("localhost:5000/a")


def test_formats() -> None:
    auth = base64.b64encode(b"user:pass:word").decode()
    modern = json.dumps({"auths": {"a": {"auth": auth, "username": "ignored"}}, "credsStore": "x"}).encode()
    assert parse_docker_config(modern) == {"a": Login("user", "pass:word")}
    assert parse_docker_config(b"{}") == parse_docker_config(b"null") == {}
    wrapped = json.dumps({"auths": {"a": {"auth": f"{auth[:8]}\r\n{auth[8:]}\n"}, "b": None}}).encode()
    assert parse_docker_config(wrapped) == {"a": Login("user", "pass:word"), "b": Login("", "")}
    legacy = json.dumps({"a": {"username": "u", "password": "p", "email": "e"}}).encode()
    assert parse_legacy_docker_config(legacy) == {"a": Login("u", "p", "e")}


def test_names_of_fields_are_taken_in_any_case() -> None:
    """As Go takes them; what stands in them and the names of registries stay."""
    said = rb'{"Auths" : {"A.io": {"UserName": "Auth", "PASSWORD": "\"Auth\":", "Email":"Email"}}}'
    assert parse_docker_config(said) == {"A.io": Login("Auth", '"Auth":', "Email")}
    auth = base64.b64encode(b"user:word")
    assert parse_legacy_docker_config(b'{"a": {"Auth": "%s"}}' % auth) == {"a": Login("user", "word")}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"secret-word",
        b'{"auths": {"a": {"auth": "c2VjcmV0LXdvcmQ="}}}',
        b'{"auths": "secret-word"}',
        b'{"auths": "secret-word", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_nonsense_is_refused_without_showing_it(data: bytes) -> None:
    with pytest.raises(InvalidDockerConfig) as error:
        parse_docker_config(data)
    assert "secret-word" not in str(error.value)
    assert "c2Vj" not in str(error.value)
    assert error.value.__cause__ is None


def test_logins_do_not_show_passwords() -> None:
    assert "hidden" not in repr(Login("u", "hidden"))


@given(st.text(max_size=30), st.text(max_size=30))
def test_any_text_is_matched_or_not(location: str, image: str) -> None:
    keyring = a_keyring(location)
    assert len(keyring.lookup(image)) <= 1
