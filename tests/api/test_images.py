"""Image references and the pull policy that follows from them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.api.images import (
    ImageName,
    InvalidImageName,
    default_pull_policy,
    parse_image_name,
    with_default_tag,
)

DIGEST = "sha256:" + "ab" * 32


@pytest.mark.parametrize(
    ("image", "parsed", "asked_for"),
    [
        ("busybox", ("docker.io/library/busybox", "latest", ""), "busybox:latest"),
        ("busybox:1", ("docker.io/library/busybox", "1", ""), "busybox:1"),
        ("me/app", ("docker.io/me/app", "latest", ""), "me/app:latest"),
        ("docker.io/app", ("docker.io/library/app", "latest", ""), "docker.io/app:latest"),
        ("index.docker.io/app", ("docker.io/library/app", "latest", ""), "index.docker.io/app:latest"),
        ("localhost/app:2", ("localhost/app", "2", ""), "localhost/app:2"),
        ("r.example:5000/a/b", ("r.example:5000/a/b", "latest", ""), "r.example:5000/a/b:latest"),
        ("[::1]:5000/a", ("[::1]:5000/a", "latest", ""), "[::1]:5000/a:latest"),
        (f"app@{DIGEST}", ("docker.io/library/app", "", DIGEST), f"app@{DIGEST}"),
        (f"app:3@{DIGEST}", ("docker.io/library/app", "3", DIGEST), f"app:3@{DIGEST}"),
        ("Upper/app", ("Upper/app", "latest", ""), "Upper/app:latest"),
        ("no_host.example/app", ("no_host.example/app", "latest", ""), "no_host.example/app:latest"),
    ],
)
def test_references(image: str, parsed: tuple[str, str, str], asked_for: str) -> None:
    assert parse_image_name(image) == ImageName(*parsed)
    assert with_default_tag(image) == asked_for


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        ("", "invalid reference format"),
        ("a" * 64, "cannot specify 64-byte hexadecimal strings"),
        ("App", "repository name (library/App) must be lowercase"),
        ("app:", "invalid reference format"),
        ("app name", "invalid reference format"),
        ("http://r.example/app", "invalid reference format"),
        ("app@sha256:abc", "invalid reference format"),
        ("app@sha256:" + "a" * 40, "invalid checksum digest length"),
        ("app@md5:" + "a" * 32, "unsupported digest algorithm"),
        ("app@sha256:" + "A" * 64, "invalid checksum digest format"),
        ("a/" + "b" * 300, "repository name must not be more than 255 characters"),
        ("app\n", "invalid reference format"),
        ("a:b:c", "invalid reference format"),
        ("a//b", "invalid reference format"),
        ("a:" + "t" * 129, "invalid reference format"),
    ],
)
def test_bad_references(image: str, reason: str) -> None:
    with pytest.raises(InvalidImageName, match=re.escape(reason)):
        parse_image_name(image)
    assert default_pull_policy(image) == "IfNotPresent"


@given(st.text(max_size=40))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        name = parse_image_name(text)
    except InvalidImageName:
        return
    assert with_default_tag(text) in (text, f"{text}:latest")
    whole = (
        name.repository + (f":{name.tag}" if name.tag else "") + (f"@{name.digest}" if name.digest else "")
    )
    assert parse_image_name(whole) == name


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        ("nginx", "Always"),
        ("nginx:latest", "Always"),
        ("nginx:1", "IfNotPresent"),
        (f"a@{DIGEST}", "IfNotPresent"),
    ],
)
def test_pull_policy(image: str, policy: str) -> None:
    assert default_pull_policy(image) == policy
