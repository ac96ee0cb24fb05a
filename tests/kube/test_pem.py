"""PEM blocks among other text."""

from __future__ import annotations

import ssl

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from hypothesis import given
from hypothesis import strategies as st

from tests.kube.certs import CA
from trio_kubelet.kube.certificates.files import certificate_block, clean_chain, pem_contents
from trio_kubelet.kube.certificates.pair import key_pem, new_key, parse_key

contents = st.binary(max_size=200)
noise = st.text("abc \t:-\n", max_size=20).map(lambda text: text.replace("-----", "").encode() + b"\n")
headers = st.sampled_from([b"", b"Name: value\n\n", b"A: b\nC: d\n\n"])
ends = st.sampled_from([b"\n", b"\r\n", b" \t\n"])


@given(st.lists(st.tuples(contents, noise, headers, ends), max_size=4), noise)
def test_what_is_written_is_found_whatever_stands_around_it(
    blocks: list[tuple[bytes, bytes, bytes, bytes]], last: bytes
) -> None:
    text = b""
    for content, before, header, end in blocks:
        block = certificate_block(content).replace(b"CERTIFICATE-----\n", b"CERTIFICATE-----\n" + header, 1)
        text += before + block.replace(b"\n", end)
    found = list(pem_contents(text + last))
    assert found == [content for content, *_ in blocks]
    clean = b"".join(map(certificate_block, found))
    assert clean_chain((text + last).decode()) == clean
    assert clean_chain(clean.decode()) == clean


def test_a_certificate_is_written_as_others_write_it() -> None:
    pem = CA().pem
    assert certificate_block(ssl.PEM_cert_to_DER_cert(pem.decode())) == pem
    assert list(pem_contents(pem)) == [ssl.PEM_cert_to_DER_cert(pem.decode())]


@pytest.mark.parametrize(
    "broken",
    [
        "-----BEGIN CERTIFICATE-----\nYQ==\n",
        "-----BEGIN CERTIFICATE-----\nYQ==\n-----END OTHER-----\n",
        "-----BEGIN CERTIFICATE-----\nY?==\n-----END CERTIFICATE-----\n",
        "-----BEGIN CERTIFICATE-----\nYQ=\n-----END CERTIFICATE-----\n",
        "x -----BEGIN CERTIFICATE-----\nYQ==\n-----END CERTIFICATE-----\n",
        "-----BEGIN CERTIFICATE-----\nYQ==\n-----END CERTIFICATE----- x\n",
    ],
)
def test_broken_blocks_are_passed_over(broken: str) -> None:
    whole = certificate_block(b"whole")
    assert list(pem_contents(broken.encode())) == []
    assert list(pem_contents(broken.encode() + whole)) == [b"whole"]


def test_much_that_is_nearly_a_block_is_read_in_time() -> None:
    text = b"-----BEGIN A-----\n" * 20_000 + b"x\n" * 200_000
    assert list(pem_contents(text)) == []


@pytest.mark.parametrize(
    "before",
    [
        "-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n",
        "-----BEGIN PUBLIC KEY-----\nYQ==\n-----END PUBLIC KEY-----\n",
        certificate_block(b"whole").decode(),
        "some text\n",
    ],
)
def test_a_private_key_is_found_behind_other_blocks(before: str) -> None:
    key = new_key()
    assert key_pem(parse_key(before.encode() + key_pem(key), "file")) == key_pem(key)


def test_keys_that_no_certificate_can_have_are_refused() -> None:
    pem = ed25519.Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with pytest.raises(OSError, match="file: neither an elliptic curve nor an RSA key"):
        parse_key(pem, "file")
