"""Rates of model servers from what their heartbeats say, and what becomes of them when nothing is said."""

from __future__ import annotations

from typing import Any

import pytest

from rollyard.kinds.endpoint_metrics import EndpointMetrics
from rollyard.kinds.pool import PoolKey
from rollyard.server.routing.endpoint_metrics import has_metrics, metrics_of, total_metrics
from rollyard.server.routing.endpoint_rates import UNKNOWN, WINDOW_SECONDS, EndpointRates, History, append, merge, rates
from rollyard.server.routing.endpoint_registry import HEARTBEAT_SECONDS, STALE_SECONDS, EndpointRegistry
from rollyard.server.routing.endpoint_state import EndpointState
from rollyard.server.routing.session_index import SessionIndex
from rollyard.wire.engine import EngineLoad
from tests.support import make
from tests.support.manual_clock import ManualClock

KEY = PoolKey("default", "policy")


def look(at: float, *, life: int = 1, **totals: Any) -> EngineLoad:
    return EngineLoad(life=life, at=at, **totals)


def said(*looks: EngineLoad | None) -> History:
    history: History = ()
    for one in looks:
        history = append(history, one)
    return history


def tokens(per_second: float, seconds: range) -> list[EngineLoad]:
    return [look(at, generated_tokens=int(per_second * at)) for at in seconds]


def test_rates_are_of_the_last_seconds_by_the_clock_of_the_sender() -> None:
    slow, fast = (
        tokens(10, range(0, 100, 2)),
        [look(100 + at, generated_tokens=1000 + 50 * at) for at in range(0, 40, 2)],
    )
    assert rates(said(*slow)).generated_tokens == pytest.approx(10)
    history = said(*slow, *fast)
    assert rates(history).generated_tokens == pytest.approx(50)
    assert WINDOW_SECONDS <= history[-1].at - history[0].at < WINDOW_SECONDS + 2
    assert rates(said(*slow, look(98 + 60, generated_tokens=980 + 600))).generated_tokens == pytest.approx(10), (
        "after a gap it is the mean over the gap"
    )


def test_an_engine_that_was_started_again_begins_anew() -> None:
    before = tokens(100, range(0, 20, 2))
    for after in (
        look(20, generated_tokens=5),
        look(20, life=2, generated_tokens=99_999),
        look(1, generated_tokens=9_999),
    ):
        assert rates(said(*before, after)) == UNKNOWN
        later = look(after.at + 2, life=after.life, generated_tokens=(after.generated_tokens or 0) + 20)
        assert rates(said(*before, after, later)).generated_tokens == pytest.approx(10)


def test_what_is_not_said_is_not_nothing() -> None:
    assert rates(()) == rates(said(look(0, generated_tokens=7))) == UNKNOWN
    found = rates(said(look(0, generated_tokens=0), look(4, generated_tokens=0, prompt_tokens=8)))
    assert found == EndpointRates(generated_tokens=0), "one look alone says nothing of prompt tokens"
    assert said(*tokens(1, range(9)), None) == ()


def test_shares_are_unknown_while_nothing_is_counted_and_weighted_over_several() -> None:
    idle = rates(said(look(0, prefix_queries=9, prefix_hits=3), look(2, prefix_queries=9, prefix_hits=3)))
    assert idle.prefix_hit_rate is idle.mean_first_token_seconds is None
    much = EndpointRates(prefix_queries=900, prefix_hits=900, first_tokens=1, first_token_seconds=1)
    little = EndpointRates(prefix_queries=100, prefix_hits=0, first_tokens=3, first_token_seconds=0.6)
    both = merge([much, UNKNOWN, little])
    assert (both.prefix_hit_rate, both.mean_first_token_seconds) == (pytest.approx(0.9), pytest.approx(0.4))
    assert both.generated_tokens is None
    assert merge([]) == UNKNOWN


def test_words_that_come_close_together_do_not_pile_up() -> None:
    history = said(*(look(at / 10, generated_tokens=at) for at in range(1000)))
    assert len(history) < 2 * WINDOW_SECONDS
    assert rates(history).generated_tokens == pytest.approx(10)
    again = said(*tokens(10, range(5)), *tokens(10, range(4, 5)))
    assert again == said(*tokens(10, range(5))), "the same look said twice counts once"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def endpoints(clock: ManualClock) -> EndpointRegistry:
    return EndpointRegistry(clock, SessionIndex())


def serve(endpoints: EndpointRegistry, name: str) -> None:
    endpoints.register(KEY, make.identity(name), make.endpoint(f"default/{name}"))


def beat(endpoints: EndpointRegistry, name: str, **load: Any) -> EndpointState:
    assert endpoints.heartbeat(f"default/{name}", make.heartbeat(name, **load))
    state = endpoints.get(f"default/{name}")
    assert state is not None
    return state


def test_a_server_that_freezes_takes_its_figures_with_it(endpoints: EndpointRegistry, clock: ManualClock) -> None:
    serve(endpoints, "a")
    for load in tokens(25, range(0, 20, 2)):
        state = beat(endpoints, "a", running=3, waiting=1, kv_usage=0.5, load=load)
        clock.turn(HEARTBEAT_SECONDS)
    assert metrics_of(state) == EndpointMetrics(tokens_per_second=25, running=3, waiting=1, kv_usage=0.5)
    clock.turn(STALE_SECONDS)
    endpoints.expire()
    (state,) = endpoints.of_pool(KEY)
    assert not has_metrics(state)
    assert metrics_of(state) == EndpointMetrics()
    assert beat(endpoints, "a", waiting=0, load=look(70, generated_tokens=1750)).rates == UNKNOWN


def test_a_pool_is_the_sum_of_those_that_say_something(endpoints: EndpointRegistry) -> None:
    for name in ("a", "b", "mute", "silent"):
        serve(endpoints, name)
    beat(endpoints, "mute")
    for load in tokens(25, range(0, 6, 2)):
        beat(endpoints, "a", running=3, waiting=1, kv_usage=0.5, load=load)
        beat(endpoints, "b", running=1, waiting=0, kv_usage=0.25, load=load)
    assert [state.endpoint.id for state in endpoints.all() if has_metrics(state)] == ["default/a", "default/b"]
    assert total_metrics(endpoints.all()) == EndpointMetrics(tokens_per_second=50, running=4, waiting=1, kv_usage=0.375)
    assert total_metrics([]) == EndpointMetrics()


def test_how_long_it_is_known_begins_with_this_server_and_anew_with_its_last_word(
    endpoints: EndpointRegistry, clock: ManualClock
) -> None:
    clock.turn(100)
    assert endpoints.weights_report("e", "default/e").known_for == 100, "not a word so far"
    serve(endpoints, "e")
    uid = make.identity("e").uid
    assert (endpoints.weights_report(uid, "e").is_heard, endpoints.weights_report(uid, "e").known_for) == (
        False,
        0,
    )
    beat(endpoints, "e")
    clock.turn(STALE_SECONDS / 2)
    assert (endpoints.weights_report(uid, "e").is_heard, endpoints.weights_report(uid, "e").known_for) == (
        True,
        100 + STALE_SECONDS / 2,
    )
    clock.turn(STALE_SECONDS / 2)
    assert (endpoints.weights_report(uid, "e").is_heard, endpoints.weights_report(uid, "e").known_for) == (
        False,
        STALE_SECONDS,
    )
