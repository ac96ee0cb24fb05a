"""What a look at a pod led to, however much is to be said of it."""

from __future__ import annotations

from tests.slowness import within_cpu
from trio_kubelet.runtime.results import LONGEST_MESSAGE, PodSyncResult, Reason, SyncAction


def failed(*failures: tuple[str, str]) -> PodSyncResult:
    result = PodSyncResult()
    for name, message in failures:
        result.add(SyncAction.START_CONTAINER, name, Reason.POST_START_HOOK_ERROR, message)
    return result


def test_a_message_has_a_longest_length() -> None:
    [short, long] = failed(("a", "x" * LONGEST_MESSAGE), ("b", "x" * 1_400_000)).results
    assert short.message == "x" * LONGEST_MESSAGE
    assert len(long.message) == LONGEST_MESSAGE
    assert long.message.endswith("...(1400000 characters)")


def test_a_failure_of_the_whole_has_a_longest_length() -> None:
    result, other = PodSyncResult(), PodSyncResult()
    other.fail("x" * 1_400_000)
    result.extend(other)
    assert len(result.error) == LONGEST_MESSAGE
    assert result.error.endswith("...(1400000 characters)")


def test_equal_failures_are_told_once_in_the_order_they_came() -> None:
    text = 'failed to "StartContainer" for "{}" with PostStartHookError: "no"'
    assert str(failed(("b", "no"), ("a", "no"), ("b", "no"))) == f"[{text.format('b')}, {text.format('a')}]"
    assert str(failed(("b", "no"), ("b", "no"))) == text.format("b")


def test_the_failures_of_many_containers_are_told_at_once() -> None:
    result = failed(*((f"c{number}", "no") for number in range(20_000)))
    for _ in within_cpu(0.3):
        assert str(result).count("StartContainer") == 20_000
