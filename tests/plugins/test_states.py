"""What is done about the difference of desired and actual plugins."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.plugins.states import (
    PAUSES,
    FailedRegistration,
    PluginInfo,
    Registered,
    SocketIdentity,
    after_failure,
    decide,
)

ONE, TWO = SocketIdentity(1, 1, 1), SocketIdentity(1, 1, 2)
PLUGIN = PluginInfo(type="CSIPlugin", name="a.example", endpoint="/a.sock", versions=("1.0.0",))


def registered(path: str, identity: SocketIdentity = ONE) -> Registered:
    return Registered(socket=path, identity=identity, plugin=PLUGIN)


def test_a_new_socket_is_registered() -> None:
    decision = decide({"/a": ONE}, {}, (), {}, 0)
    assert decision.register == (("/a", ONE),)
    assert decision.unregister == ()


def test_a_socket_that_was_made_anew_is_another_plugin() -> None:
    old = registered("/a")
    decision = decide({"/a": TWO}, {"/a": old}, (), {}, 0)
    assert decision.unregister == (old,)
    assert decision.register == (), "the old one goes first"


def test_a_socket_that_is_worked_on_is_left_alone() -> None:
    decision = decide({"/a": ONE, "/b": ONE}, {"/c": registered("/c")}, {"/a", "/c"}, {}, 0)
    assert (decision.register, decision.unregister) == ((("/b", ONE),), ())


def test_after_a_failure_there_is_a_pause_but_not_for_the_next_incarnation() -> None:
    retry = FailedRegistration(ONE, 1, 10.0)
    waiting = decide({"/a": ONE}, {}, (), {"/a": retry}, 9.0)
    assert (waiting.register, waiting.wake_at) == ((), 10.0)
    assert decide({"/a": ONE}, {}, (), {"/a": retry}, 10.0).register
    assert decide({"/a": TWO}, {}, (), {"/a": retry}, 9.0).register


def test_pauses_double_up_to_the_kubelets_longest() -> None:
    retry, pauses = None, []
    for _ in range(12):
        retry = after_failure(retry, ONE, 0)
        pauses.append(retry.not_before)
    assert pauses[:4] == [0.5, 1, 2, 4]
    assert pauses[-1] == PAUSES.most
    assert after_failure(retry, TWO, 0).failures == 1


IDENTITIES = st.sampled_from([ONE, TWO])
PATHS = st.sampled_from(["/a", "/b", "/c", "/d"])


@given(st.dictionaries(PATHS, IDENTITIES), st.dictionaries(PATHS, IDENTITIES))
def test_two_rounds_of_decisions_bring_actual_to_desired(
    desired: dict[str, SocketIdentity], there: dict[str, SocketIdentity]
) -> None:
    actual = {path: registered(path, identity) for path, identity in there.items()}
    for _ in range(2):
        decision = decide(desired, actual, (), {}, 0)
        for gone in decision.unregister:
            del actual[gone.socket]
        for path, identity in decision.register:
            assert path not in actual, "nothing is registered over another"
            actual[path] = registered(path, identity)
    assert {path: each.identity for path, each in actual.items()} == desired
    assert decide(desired, actual, (), {}, 0).register == ()
