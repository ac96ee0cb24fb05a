"""Pairs on disk: whatever moment the power goes, there is the old pair or the new one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kube.certs import CA
from trio_kubelet.common.clock import NANOSECONDS
from trio_kubelet.kube.certificates.files import PairFiles
from trio_kubelet.kube.certificates.pair import parse_key
from trio_kubelet.kube.certificates.store import PairStore

NOW = 1_763_700_000 * NANOSECONDS
CALLS = ("open", "fchmod", "fsync", "replace", "symlink", "rename")


class PowerCut(BaseException):
    """Nothing of the program runs after it."""


def test_a_power_cut_leaves_the_old_pair_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca = CA()
    seen = set[str]()
    for cut in range(1, 12):
        directory = tmp_path / str(cut)
        store = PairStore(str(directory), "kubelet-client")
        store.update(*ca.pair("old"), NOW)
        left = cut

        def fails(name: str) -> Callable[..., Any]:
            real = getattr(os, name)

            def call(*args: Any, **kwargs: Any) -> Any:
                nonlocal left
                left -= 1
                if left == 0:
                    raise PowerCut
                return real(*args, **kwargs)

            return call

        with monkeypatch.context() as patched:
            for name in CALLS:
                patched.setattr(os, name, fails(name))
            try:
                store.update(*ca.pair("new"), NOW + NANOSECONDS)
                finished = True
            except PowerCut:
                finished = False
        found = PairStore(str(directory), "kubelet-client").current()
        assert found is not None
        seen.add(found.leaf.common_name)
        if finished:
            assert found.leaf.common_name == "new"
        again = PairStore(str(directory), "kubelet-client").update(*ca.pair("next"), NOW + 2 * NANOSECONDS)
        assert again.leaf.common_name == "next"
    assert seen == {"old", "new"}


def test_what_a_kubelet_was_interrupted_at_is_finished(tmp_path: Path) -> None:
    store = PairStore(str(tmp_path), "kubelet-server")
    store.update(*CA().pair("n"), NOW)
    os.rename(store.current_path, tmp_path / "kubelet-server-updated.pem")
    found = store.current()
    assert found is not None
    assert found.leaf.common_name == "n"
    assert Path(store.current_path).is_symlink()


def test_stored_before_given_before_old_names(tmp_path: Path) -> None:
    ca = CA()

    def write(certificate: Path, key: Path, name: str) -> None:
        pair = ca.pair(name)
        certificate.write_bytes(pair[0])
        key.write_bytes(pair[1])

    given = PairFiles(str(tmp_path / "tls.crt"), str(tmp_path / "tls.key"))
    store = PairStore(str(tmp_path), "kubelet-client", given)
    assert store.current() is None
    write(tmp_path / "kubelet-client.crt", tmp_path / "kubelet-client.key", "legacy")
    names = [_name(store)]
    write(tmp_path / "tls.crt", tmp_path / "tls.key", "given")
    names.append(_name(store))
    store.update(*ca.pair("stored"), NOW)
    names.append(_name(store))
    assert names == ["legacy", "given", "stored"]


def _name(store: PairStore) -> str:
    found = store.current()
    assert found is not None
    return found.leaf.common_name


def test_a_file_in_the_links_place_is_not_overwritten(tmp_path: Path) -> None:
    store = PairStore(str(tmp_path), "kubelet-client")
    certificate, key = CA().pair("mine")
    Path(store.current_path).write_bytes(certificate + key)
    assert _name(store) == "mine"
    with pytest.raises(OSError, match="expected a symbolic link, found a file"):
        store.update(*CA().pair("new"), NOW)
    assert _name(store) == "mine"


def test_what_is_no_pair_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    ca = CA()
    store = PairStore(str(tmp_path / "pki"), "kubelet-client")
    certificate, key = ca.pair("n")
    with pytest.raises(OSError, match="the signed certificate: no readable certificate"):
        store.update(b"no", key, NOW)
    with pytest.raises(OSError, match="the key: no readable private key"):
        store.update(certificate, b"no", NOW)
    assert not (tmp_path / "pki").exists()
    with pytest.raises(OSError, match="not the key of the certificate"):
        store.update(certificate, ca.pair("other")[1], NOW)
    assert store.current() is None


def test_keys_of_other_kinds_are_refused() -> None:
    with pytest.raises(OSError, match="x: no readable private key"):
        parse_key(b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "x")
