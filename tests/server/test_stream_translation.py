"""What a client of translated streams is told of how a command ended."""

from __future__ import annotations

import msgspec
import pytest

from trio_kubelet.server.streams.translation import told_status


@pytest.mark.parametrize(
    "said",
    [
        b'{"metadata":{},"status":"Success"}',
        b'{"metadata":{},"status":"Failure","message":"command terminated with non-zero exit code: 3",'
        b'"reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"3"}]}}',
        b"no JSON",
        b'["no status"]',
        b'{"status":7}',
    ],
)
def test_ends_are_passed_on_as_the_runtime_says_them(said: bytes) -> None:
    assert told_status(said) == said


def test_other_failures_are_internal_errors_in_the_words_of_the_runtime() -> None:
    words = 'error executing command in container: "/nope": not found'
    said = {"metadata": {}, "status": "Failure", "message": words, "reason": "InternalError", "code": 500}
    told = msgspec.json.decode(told_status(msgspec.json.encode(said)))
    assert told == {
        "metadata": {},
        "status": "Failure",
        "message": f"Internal error occurred: {words}",
        "reason": "InternalError",
        "details": {"causes": [{"message": words}]},
        "code": 500,
    }
