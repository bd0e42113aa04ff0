"""An owner waits for what it did to be seen, but not for ever."""

from __future__ import annotations

from rollyard.controller.expectations import Expectations
from tests.support.manual_clock import ManualClock


def test_an_owner_waits_until_everything_was_seen() -> None:
    open = Expectations(ManualClock(), timeout_seconds=30)
    assert open.remaining("pool") == 0
    open.expect("pool", ("created", "a"))
    open.expect("pool", ("deleted", "b"))
    open.observed("pool", ("created", "a"))
    assert open.remaining("pool") == 30
    open.observed("pool", ("created", "b"))
    open.observed("other", ("deleted", "b"))
    assert open.remaining("pool") == 30, "neither another change nor another owner's counts"
    open.observed("pool", ("deleted", "b"))
    assert open.remaining("pool") == 0


def test_one_that_is_seen_before_the_call_answers_is_met() -> None:
    open = Expectations(ManualClock())
    open.expect("pool", ("created", "a"))
    open.observed("pool", ("created", "a"))
    open.observed("pool", ("created", "a"))
    assert open.remaining("pool") == 0


def test_a_missed_event_stops_an_owner_only_until_the_time_is_up() -> None:
    clock = ManualClock()
    open = Expectations(clock, timeout_seconds=30)
    open.expect("pool", ("created", "a"))
    clock.turn(20)
    open.expect("pool", ("created", "b"))
    assert open.remaining("pool") == 30, "counted from the last thing done"
    clock.turn(30)
    assert open.remaining("pool") == 0
    open.expect("pool", ("created", "c"))
    open.observed("pool", ("created", "c"))
    assert open.remaining("pool") == 0, "what lapsed is not waited for again"


def test_an_owner_that_is_gone_is_forgotten() -> None:
    open = Expectations(ManualClock())
    open.expect("pool", ("created", "a"))
    open.forget("pool")
    assert open.remaining("pool") == 0
