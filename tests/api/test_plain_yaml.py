"""The reader of plain YAML: whatever it reads, the one that reads everything reads alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from trio_kubelet.api.errors import DecodeError
from trio_kubelet.api.plain_yaml import load_plain
from trio_kubelet.api.yaml_reader import load_yaml

KUBECONFIG = """\
apiVersion: v1
clusters:
- cluster:
    certificate-authority-data: LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCg==
    server: https://192.0.2.1:6443
  name: kubernetes
contexts:
- context:
    cluster: kubernetes
    user: system:node:n1
  name: system:node:n1@kubernetes
current-context: system:node:n1@kubernetes
kind: Config
preferences: {}
users:
- name: system:node:n1
  user:
    client-certificate: /var/lib/kubelet/pki/kubelet-client-current.pem
    client-key: /var/lib/kubelet/pki/kubelet-client-current.pem
"""
MANIFEST = """\
# by hand
---
apiVersion: v1
kind: Pod
metadata:
  creationTimestamp: null
  annotations:
    example.com/port: "6443"
  name: kube-apiserver
spec:
  containers:
    - command:
      - kube-apiserver
      - --advertise-address=192.0.2.1
      - --service-cluster-ip-range=10.96.0.0/12

      image: registry.k8s.io/kube-apiserver:v1.36.2
      livenessProbe:
        failureThreshold: 8
        httpGet: {}
      readinessProbe:
      securityContext:
        privileged: true
      args: []
  hostNetwork: yes
status: {}
"""


def full(text: str) -> tuple[Any, bool] | None:
    """What the other reader makes of it, and whether a key stood twice; None: nothing."""
    try:
        document = load_yaml(text.encode())
    except (DecodeError, RecursionError):
        return None
    return document.value, bool(document.duplicates)


def agree(text: str) -> bool:
    """Whether it was read here; then the other read the same."""
    plain = load_plain(text.encode())
    if plain is None:
        return False
    found = full(text)
    assert found is not None, text
    assert (json.dumps(plain), False) == (json.dumps(found[0]), found[1]), text
    return True


@pytest.mark.parametrize("text", [KUBECONFIG, MANIFEST], ids=["kubeconfig", "manifest"])
def test_what_tools_write_is_plain(text: str) -> None:
    assert agree(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "word",
        "a: |\n  text",
        "a: 1 # comment",
        "a: one\n  two",
        "a:\n- one\n  two",
        'a: "b\\n"',
        "a: 'it''s'",
        "a: [1]",
        "a: &x 1\nb: *x",
        "a: 1\na: 2",
        "a: 1.5",
        "a: .inf",
        "yes: 1",
        "a: b: c",
        "a: 1\n - b",
        "a: 1\n- b",
        "a: 1\n b: 1",
        "- a: 1\n - b: 1",
        "- - a",
        "-\n  a: 1",
        "a: 1\n---\nb: 1",
        "--- a",
        "a: 1\n...",
        "%YAML 1.1\n---\na: 1",
        "a:\t1",
        "a: 1\r\n",
        "a: é",
        "a: \x07",
        "# \x07\na: 1",
        "<<: {}",
        "? a\n: b",
    ],
)
def test_whatever_else_is_left_to_the_other_reader(text: str) -> None:
    assert load_plain(text.encode()) is None


WORDS = st.sampled_from(
    [
        "a",
        "bc",
        "x-y",
        "1",
        "-1",
        "007",
        "0x1f",
        "1_000",
        "22:22",
        "1e3",
        "0o7",
        "true",
        "no",
        "~",
        "null",
        "2001-01-01",
        "https://h:1/p?",
        "--flag=1,2",
        "-x",
        "a,b",
        "a{b}",
        "<<",
        "=",
        ".5",
        ".",
        "./x",
        "+1",
        "'q'",
        '"q"',
        "{}",
        "[]",
        "a:",
        ":a",
        "#a",
        "a#b",
        "&a",
        "*a",
        "!",
        "|",
        ">",
        "%",
        "@",
        "`",
        "?",
        "-",
        "--",
        "---",
        "...",
        "'x",
        "y'",
        '""',
        "''",
        "a\\b",
    ]
)
KEYS = st.sampled_from(["a", "b", "c", "kind", "a-b", "a.b/c", "y", "null", "1", "<<", "'a'", '"a"'])
LINES = st.builds(
    lambda indent, item, key, value, end: f"{' ' * indent}{item}{key}{value}{end}",
    st.sampled_from([0, 0, 0, 2, 2, 4, 1, 3]),
    st.sampled_from(["", "", "- ", "- ", "-", "-  "]),
    st.one_of(st.just(""), KEYS.map(lambda key: f"{key}: "), KEYS.map(lambda key: f"{key}:")),
    st.one_of(st.just(""), WORDS, st.tuples(WORDS, WORDS).map(" ".join)),
    st.sampled_from(["", "", "", "", " ", "  # c"]),
)


@given(st.lists(LINES, max_size=6).map("\n".join))
@example("a:\n-  b")
@example("a:\n- b:\n  - c\n  d: 1")
def test_any_lines(text: str) -> None:
    agree(text)


@given(st.text(alphabet="ab:-#'\"{}[]\\ \n\t1.|&*!%,?", max_size=30))
def test_any_text(text: str) -> None:
    agree(text)


TREES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(alphabet="ab1 :-#'\"\\.\n", max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.text("abc-.", min_size=1, max_size=5), inner, max_size=4),
    ),
    max_leaves=12,
)


@given(TREES)
def test_whatever_is_written_in_block_style(tree: object) -> None:
    agree(yaml.safe_dump(tree, default_flow_style=False))


EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("**/*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.name for path in EXAMPLES])
def test_the_examples(path: Path) -> None:
    agree(path.read_text(encoding="utf-8"))
