"""The choice: the least load of those that take work, and nothing else, whatever happened before."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from rollyard.server.routing.admission import Admission
from rollyard.server.routing.endpoint_choice import Candidate, EndpointRanking
from tests.support import make


def order(*, node: str = "", **sessions: int) -> EndpointRanking:
    made = EndpointRanking()
    for name, count in sessions.items():
        made.put(Candidate(make.endpoint(name), node if name == "local" else ""), count)
    return made


def taken(made: EndpointRanking, n: int, **how: object) -> Counter[str]:
    heap = made.burst()
    return Counter(found.id for _ in range(n) if (found := heap.checkout(**how)) is not None)  # type: ignore[arg-type]


def test_the_fewest_sessions_first_until_they_are_level() -> None:
    counts = {"a": 9, "b": 3, "c": 0}
    made = order(**counts)
    for _ in range(12):
        (name,) = taken(made, 1)
        counts[name] += 1
        made.set_sessions(name, counts[name])
    assert counts == {"a": 9, "b": 8, "c": 7} or counts == {"a": 9, "b": 7, "c": 8}
    assert taken(EndpointRanking(), 3) == {}


def test_by_capacity() -> None:
    made = EndpointRanking()
    made.put(Candidate(make.endpoint("small"), capacity=1), 0)
    made.put(Candidate(make.endpoint("large"), capacity=4), 0)
    assert taken(made, 50) == {"small": 10, "large": 40}


def test_ties_go_by_chance() -> None:
    firsts = {name for _ in range(200) for name in taken(order(a=1, b=1, c=1), 1)}
    assert firsts == {"a", "b", "c"}


def test_one_that_starts_slowly_gets_its_share_alone_and_an_idle_one_its_first() -> None:
    made = order(old=9)
    made.put(Candidate(make.endpoint("new"), share=0.2), 0)
    assert taken(made, 1) == {"new": 1}
    made.set_sessions("new", 1)
    assert taken(made, 10)["new"] <= 2
    made.put(Candidate(make.endpoint("new"), share=1.0), 1)
    assert taken(made, 3)["new"] == 3


def test_the_same_node_where_it_costs_next_to_nothing() -> None:
    assert taken(order(node="n1", local=9, far=9), 1, node="n1") == {"local": 1}
    assert taken(order(node="n1", local=10, far=9), 1, node="n1") == {"local": 1}
    assert taken(order(node="n1", local=11, far=9), 1, node="n1") == {"far": 1}
    assert taken(order(node="n1", local=1, far=0), 1, node="n1") == {"far": 1}, "one more is a lot where there are few"
    assert taken(order(node="n1", local=9, far=8), 1, node="n2") == {"far": 1}


def test_a_warm_prefix_goes_before_the_same_node() -> None:
    assert taken(order(node="n1", local=9, warm=9, far=9), 1, node="n1", warm=["warm"]) == {"warm": 1}
    assert taken(order(node="n1", local=9, warm=30, far=9), 1, node="n1", warm=["gone", "warm"]) == {"local": 1}


def test_only_what_is_allowed_and_the_rest_is_still_there() -> None:
    heap = order(a=0, b=5, c=7).burst()
    assert heap.checkout(allow=lambda e: e.id == "c") == make.endpoint("c")
    assert heap.checkout(allow=lambda e: False) is None
    assert heap.checkout() == make.endpoint("a")


def test_a_limit_holds_but_an_idle_one_takes_one() -> None:
    made = EndpointRanking()
    made.put(Candidate(make.endpoint("a"), admission=Admission(3)), 1)
    made.put(Candidate(make.endpoint("b"), admission=Admission(0)), 0)
    assert taken(made, 9) == {"a": 2, "b": 1}
    made.set_sessions("a", 3)
    made.set_sessions("b", 1)
    assert taken(made, 9) == {}
    made.set_sessions("a", 2)
    assert taken(made, 9) == {"a": 1}


def test_a_burst_that_is_not_stored_has_never_happened() -> None:
    made = order(a=0, b=0)
    taken(made, 10)
    assert taken(made, 10) == {"a": 5, "b": 5}


NAMES = [f"e{i}" for i in range(6)]
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from(NAMES), st.integers(0, 8), st.sampled_from([None, 0, 3, 6])),
        st.tuples(st.just("count"), st.sampled_from(NAMES), st.integers(0, 8), st.none()),
        st.tuples(st.just("drop"), st.sampled_from(NAMES), st.just(0), st.none()),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(before=CHANGES, meanwhile=CHANGES, capacity=st.sampled_from([1.0, 2.0]))
def test_after_any_changes_the_best_of_those_that_take_work(
    before: list[tuple[str, str, int, int | None]],
    meanwhile: list[tuple[str, str, int, int | None]],
    capacity: float,
) -> None:
    made, truth = EndpointRanking(), dict[str, tuple[int, int | None]]()

    def change(what: str, name: str, sessions: int, limit: int | None) -> None:
        if what == "put":
            made.put(
                Candidate(make.endpoint(name), node=f"n{name[1]}", capacity=capacity, admission=Admission(limit)),
                sessions,
            )
            truth[name] = (sessions, limit)
        elif what == "count":
            made.set_sessions(name, sessions)
            if name in truth:
                truth[name] = (sessions, truth[name][1])
        else:
            made.drop(name)
            truth.pop(name, None)

    for one in before:
        change(*one)
    able = {n: s for n, (s, most) in truth.items() if most is None or s < most or s == 0}
    heap = made.burst()
    for one in meanwhile:  # a heap is of its moment, whatever changes after it
        change(*one)
    found = heap.checkout()
    assert (found is None) == (not able)
    if found is not None:
        assert able[found.id] == min(able.values())
