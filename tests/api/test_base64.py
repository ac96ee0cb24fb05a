"""What is base64 is what Go's decoder takes, and nothing else."""

from __future__ import annotations

import base64
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.api.yaml_scalars import decode_base64

GOOD = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
"""Without line ends. Bits of the last character that belong to no byte may be any."""


@given(st.binary(max_size=100), st.integers(1, 80), st.sampled_from(["\n", "\r\n"]))
def test_lines_may_end_anywhere(data: bytes, width: int, end: str) -> None:
    text = base64.b64encode(data).decode()
    lines = [text[begin : begin + width] for begin in range(0, len(text), width)]
    assert decode_base64(end.join([*lines, ""])) == data


@given(st.text(st.sampled_from("aZ09+/-_= \t\n\ré\ud800"), max_size=9))
def test_anything_else_is_refused(text: str) -> None:
    if GOOD.fullmatch(re.sub(r"[\r\n]", "", text)):
        assert len(decode_base64(text)) <= len(text) * 3 // 4
    else:
        with pytest.raises(ValueError):
            decode_base64(text)
