"""Image references and the pull policy that follows from them."""

from __future__ import annotations

import pytest

from trio_kubelet.api.images import default_pull_policy, parse_image

SHA = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("image", "parts"),
    [
        ("nginx", ("docker.io/library/nginx", "latest", "")),
        ("nginx:1.2", ("docker.io/library/nginx", "1.2", "")),
        ("user/app", ("docker.io/user/app", "latest", "")),
        ("docker.io/app", ("docker.io/library/app", "latest", "")),
        ("index.docker.io/app", ("docker.io/library/app", "latest", "")),
        ("localhost/app", ("localhost/app", "latest", "")),
        ("reg:5000/a/b:1", ("reg:5000/a/b", "1", "")),
        ("REG/a", ("REG/a", "latest", "")),
        ("[::1]:5000/a", ("[::1]:5000/a", "latest", "")),
        (f"nginx@{SHA}", ("docker.io/library/nginx", "", SHA)),
        (f"nginx:1@{SHA}", ("docker.io/library/nginx", "1", SHA)),
    ],
)
def test_parts(image: str, parts: tuple[str, str, str]) -> None:
    assert parse_image(image) == parts


@pytest.mark.parametrize(
    "image",
    ["", "Nginx", "a:b:c", " nginx", "f" * 64, "a@sha256:abc", "a/" + "b" * 256, "a//b", "a:" + "t" * 129],
)
def test_malformed(image: str) -> None:
    assert parse_image(image) is None
    assert default_pull_policy(image) == "IfNotPresent"


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        ("nginx", "Always"),
        ("nginx:latest", "Always"),
        ("nginx:1", "IfNotPresent"),
        (f"a@{SHA}", "IfNotPresent"),
    ],
)
def test_pull_policy(image: str, policy: str) -> None:
    assert default_pull_policy(image) == policy
