"""What is no text becomes text as Go's JSON encoder makes it: one U+FFFD for each byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.common import utf8

BAD = "\ufffd"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"plain", "plain"),
        ("größer \U0001f600".encode(), "größer \U0001f600"),
        (b"a\xffb", f"a{BAD}b"),
        (b"\xe2\x82", BAD * 2),  # a character that was cut
        (b"\xed\xa0\x80", BAD * 3),  # half of a surrogate pair
        (b"\xf0\x9f\x98 end", f"{BAD * 3} end"),
    ],
)
def test_bytes_become_text_as_in_go(data: bytes, text: str) -> None:
    assert utf8.decode(data) == text


@given(st.text())
def test_text_stays(text: str) -> None:
    assert utf8.valid(text) == text
    assert utf8.decode(text.encode()) == text


@given(st.text(st.characters(min_codepoint=0xD7F0, max_codepoint=0xE010)))
def test_what_comes_out_can_be_sent(text: str) -> None:
    sent = utf8.valid(text)
    sent.encode()
    assert len(sent) == len(text)
