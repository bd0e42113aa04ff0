"""The pure rules of routing: admission, trust, and which sessions should move."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rollyard.kinds.base import Reason
from rollyard.server.routing.admission import UNLIMITED, Admission, EndpointLoad, admission
from rollyard.server.routing.health import (
    EJECTED_CAP_SECONDS,
    EJECTED_SECONDS,
    REMEMBER_EJECTIONS_SECONDS,
    TRUSTED,
    VOTE_SECONDS,
    with_complaint,
    with_probe,
)
from rollyard.server.routing.surplus_sessions import MOVE_SHARE, EndpointShare, excess, to_move

UNREACHABLE = Reason("Unreachable", "refused")

# admission


def test_who_says_nothing_of_its_cache_takes_whatever_comes() -> None:
    assert admission(EndpointLoad(sessions=500, running=200), UNLIMITED) == UNLIMITED


def test_nothing_more_while_the_cache_is_full_and_fewer_while_it_overflows() -> None:
    full = admission(EndpointLoad(40, running=30, waiting=0, kv_usage=0.95), UNLIMITED)
    assert full == Admission(40, "its cache is 95% full")
    assert admission(EndpointLoad(40, running=30, waiting=5, kv_usage=0.95), UNLIMITED).limit == 38
    assert admission(EndpointLoad(0, running=1, waiting=0, kv_usage=0.99), UNLIMITED).limit == 1


def test_sessions_that_wait_for_tools_count_too() -> None:
    crowded = admission(EndpointLoad(60, running=20, waiting=0, kv_usage=0.6), UNLIMITED)
    assert crowded == Admission(60, "its 60 sessions together need 1.8 times its cache")
    assert admission(EndpointLoad(60, running=5, waiting=0, kv_usage=0.2), UNLIMITED) == UNLIMITED, (
        "too few run to speak for the rest"
    )


def test_a_line_in_front_of_the_engine_is_no_place_to_wait_in() -> None:
    assert admission(EndpointLoad(40, running=16, waiting=20, kv_usage=0.2), UNLIMITED).limit == 40
    assert admission(EndpointLoad(40, running=16, waiting=10, kv_usage=0.2), UNLIMITED) == UNLIMITED


def test_a_limit_stays_in_between_grows_when_there_is_room_and_goes() -> None:
    limited = Admission(40, "full")
    assert admission(EndpointLoad(39, running=30, waiting=0, kv_usage=0.85), limited) == limited
    assert admission(EndpointLoad(30, running=25, waiting=0, kv_usage=0.5), limited) == Admission(44, "full")
    assert admission(EndpointLoad(5, running=4, waiting=0, kv_usage=0.1), limited) == UNLIMITED


LOADS = st.builds(
    EndpointLoad,
    sessions=st.integers(0, 300),
    running=st.integers(0, 300),
    waiting=st.none() | st.integers(0, 300),
    kv_usage=st.none() | st.floats(0, 1),
)


@settings(max_examples=300, deadline=None)
@given(loads=st.lists(LOADS, max_size=30))
def test_it_never_locks_up(loads: list[EndpointLoad]) -> None:
    state = UNLIMITED
    for load in loads:
        state = admission(load, state)
        assert state.limit is None or state.limit >= 1
        assert state.admits(0)
    for _ in range(60):  # and whatever it came to, an engine at rest is open again before long
        state = admission(EndpointLoad(0, 0, 0, 0.0), state)
    assert state == UNLIMITED


@settings(max_examples=200, deadline=None)
@given(load=LOADS, limit=st.integers(1, 300))
def test_one_and_the_same_load_does_not_swing(load: EndpointLoad, limit: int) -> None:
    """The limit goes one way or stays, whatever it starts from."""
    states = [Admission(limit, "full")]
    for _ in range(6):
        states.append(admission(load, states[-1]))
    limits = [float("inf") if s.limit is None else s.limit for s in states]
    assert limits == sorted(limits) or limits == sorted(limits, reverse=True)


# trust


def test_one_complaint_asks_for_a_probe_and_ejects_nothing() -> None:
    once = with_complaint(TRUSTED, "n1", "refused", 100.0)
    assert (once.ejected, once.probe_due(100.0)) == (False, True)
    assert not with_complaint(once, "n1", "refused", 101.0).ejected, "the same one again is still one"
    cleared = with_probe(once, None, 102.0)
    assert (cleared.ejected, cleared.probe_due(102.0), cleared.votes) == (False, False, {})
    late = with_complaint(once, "n2", "refused", 100.0 + VOTE_SECONDS)
    assert not late.ejected, "the first has been forgotten"


def test_complaints_of_several_or_a_failed_probe_eject() -> None:
    once = with_complaint(TRUSTED, "n1", "refused", 0.0)
    both = with_complaint(once, "n2", "refused", 1.0)
    assert (both.ejected, both.why) == (True, Reason("Ejected", "reported by 2 of its callers: refused"))
    assert with_probe(once, UNREACHABLE, 1.0).ejected


def test_it_comes_back_by_a_probe_and_stays_out_longer_each_time() -> None:
    trust, now, spells = with_complaint(TRUSTED, "n1", "refused", 0.0), 0.0, []
    for _ in range(9):
        trust = with_probe(trust, UNREACHABLE, now)
        assert trust.out_until is not None
        spells.append(trust.out_until - now)
        assert not trust.probe_due(trust.out_until - 0.1)
        now = trust.out_until
        assert trust.probe_due(now)
    assert spells == [min(EJECTED_CAP_SECONDS, EJECTED_SECONDS * 2**n) for n in range(9)]
    back = with_probe(trust, None, now)
    assert not back.ejected
    again = with_probe(with_complaint(back, "n1", "refused", now + 1), UNREACHABLE, now + 2)
    assert again.ejections == 10, "so soon, it goes on where it was"
    later = with_probe(
        with_complaint(back, "n1", "refused", now + 1), UNREACHABLE, now + REMEMBER_EJECTIONS_SECONDS + 1
    )
    assert later.ejections == 1


def test_a_probe_that_began_before_the_votes_does_not_overrule_them() -> None:
    out = with_complaint(with_complaint(TRUSTED, "n1", "x", 0.0), "n2", "x", 0.1)
    assert with_probe(out, None, 0.2).ejected
    assert out.out_until is not None
    assert not with_probe(out, None, out.out_until).ejected


# which sessions move


def test_what_drains_gives_all_to_those_that_stay() -> None:
    places = [EndpointShare("a", 10, 1.0, leaving=True), EndpointShare("b", 10, 1.0)]
    assert to_move(places) == {"a": 10}
    assert to_move([EndpointShare("a", 10, 1.0, leaving=True)]) == {}, "there is nowhere to go"
    assert to_move([EndpointShare("a", 10, 1.0, leaving=True), EndpointShare("b", 0, 0.0)]) == {}


def test_skew_is_left_alone_until_it_is_large_and_goes_a_part_at_a_time() -> None:
    assert to_move([EndpointShare("a", 12, 1.0), EndpointShare("b", 8, 1.0)]) == {}
    assert to_move([EndpointShare("a", 30, 1.0), EndpointShare("b", 0, 1.0)]) == {"a": 3}
    assert excess([EndpointShare("a", 30, 1.0), EndpointShare("b", 0, 1.0)]) == {"a": 12}
    assert to_move([EndpointShare("a", 3, 1.0), EndpointShare("b", 0, 1.0)]) == {}, "a few are no skew"
    assert to_move([EndpointShare("large", 40, 4.0), EndpointShare("small", 10, 1.0)]) == {}


def test_what_takes_nothing_for_now_keeps_what_it_has() -> None:
    assert to_move([EndpointShare("loading", 50, 0.0), EndpointShare("b", 10, 1.0), EndpointShare("c", 10, 1.0)]) == {}


PLACES = st.lists(
    st.tuples(st.integers(0, 200), st.sampled_from([0.0, 0.1, 1.0, 2.0]), st.booleans()), min_size=1, max_size=8
)


@settings(max_examples=300, deadline=None)
@given(given_places=PLACES)
def test_moving_settles_and_never_flaps(given_places: list[tuple[int, float, bool]]) -> None:
    """Sessions that leave go to the least loaded; no endpoint both gives and gets, and it comes to rest."""
    places = {f"e{i}": EndpointShare(f"e{i}", *rest) for i, rest in enumerate(given_places)}
    gave, got = set[str](), set[str]()
    for _ in range(200):
        moves = to_move(list(places.values()))
        if not moves:
            break
        for id, n in moves.items():
            assert 0 < n <= places[id].sessions
            assert places[id].leaving or n <= max(1, places[id].sessions * MOVE_SHARE)
            for _ in range(n):
                able = [p for p in places.values() if p.weight and not p.leaving and p.id != id]
                if not able:
                    break
                to = min(able, key=lambda p: (p.sessions + 1) / p.weight)
                places[id] = EndpointShare(id, places[id].sessions - 1, places[id].weight, places[id].leaving)
                places[to.id] = EndpointShare(to.id, to.sessions + 1, to.weight, to.leaving)
                gave.add(id), got.add(to.id)
    else:
        raise AssertionError("it goes on for ever")
    if not any(leaving for _, _, leaving in given_places):
        assert not gave & got
