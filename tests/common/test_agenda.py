"""Who is due when, against a plain table."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.common.agenda import Agenda

KEYS = st.sampled_from("abcde")
MOMENTS = st.integers(0, 9).map(float)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), KEYS, MOMENTS),
        st.tuples(st.just("take out"), KEYS, st.none()),
        st.tuples(st.just("pop"), st.none(), MOMENTS),
    ),
    max_size=60,
)


@given(STEPS)
def test_each_is_due_at_its_last_moment_and_once(steps: list[tuple[str, str, float]]) -> None:
    agenda, plain = Agenda[str](), dict[str, float]()
    for what, key, moment in steps:
        if what == "put":
            agenda.put(key, moment)
            plain[key] = moment
        elif what == "take out":
            assert agenda.take_out(key) == plain.pop(key, None)
        else:
            popped = agenda.pop(moment)
            due = {each for each, at in plain.items() if at <= moment and at == min(plain.values())}
            assert popped in due or (popped is None and not due)
            plain.pop(popped or "", None)
        assert agenda.first() == min(plain.values(), default=math.inf)
        assert {each: agenda.due(each) for each in "abcde"} == {each: plain.get(each) for each in "abcde"}


def test_of_one_moment_who_was_put_first_comes_first() -> None:
    agenda = Agenda[str]()
    for key in "cab":
        agenda.put(key, 1.0)
    agenda.put("c", 1.0)
    assert [agenda.pop(1.0) for _ in range(4)] == ["a", "b", "c", None]
