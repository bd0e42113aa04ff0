"""How many warm sandboxes are wanted, and which start or end first."""

from __future__ import annotations

from dataclasses import replace

from rollyard.sandbox.warm_demand import RECENT_SECONDS, Need, to_end, to_start, wanted


def test_an_image_that_is_used_once_gets_none() -> None:
    assert wanted([], 0, 100.0) == 0
    assert wanted([100.0], 0, 100.0) == 0


def test_as_many_as_were_claimed_at_once_or_are_expected() -> None:
    assert wanted([90.0, 95.0], 0, 100.0) == 1
    assert wanted([90.0, 95.0, 95.2, 95.9, 99.0], 0, 100.0) == 3
    assert wanted([90.0, 95.0], 4, 100.0) == 4
    assert wanted([], 1, 100.0) == 1


def test_old_claims_do_not_count() -> None:
    claims = [90.0, 90.1, 95.0]
    assert wanted(claims, 0, 90.1 + RECENT_SECONDS - 0.05) == 1
    assert wanted(claims, 0, 95.0 + RECENT_SECONDS) == 0


def test_each_shape_gets_one_before_another_gets_two() -> None:
    needs = {"a": Need(3, 0, 5.0), "b": Need(1, 0, 9.0), "c": Need(2, 2, 10.0)}
    assert to_start(needs, 0) == []
    assert to_start(needs, -3) == []
    assert to_start(needs, 1) == ["b"]
    assert to_start(needs, 3) == ["b", "a", "a"]
    assert to_start(needs, 9) == ["b", "a", "a", "a"]


def test_what_is_expected_longest_comes_first_and_ends_last() -> None:
    needs = {
        "often": Need(1, 0, 90.0),
        "second": Need(1, 0, 50.0, expected_since=51.0),
        "first": Need(1, 0, 40.0, expected_since=41.0),
    }
    assert to_start(needs, 2) == ["first", "second"]
    assert to_start(needs, 9) == ["first", "second", "often"]
    ready = {shape: replace(need, have=1) for shape, need in needs.items()}
    assert to_end(ready, 2) == ["often", "second"]


def test_nobodys_end_first_then_the_one_that_was_claimed_longest_ago() -> None:
    needs = {"old": Need(2, 2, 1.0), "new": Need(1, 3, 9.0)}
    assert to_end(needs, 0) == ["new", "new"]
    assert to_end(needs, 3) == ["new", "new", "old"]
    assert to_end(needs, 99) == ["new", "new", "old", "old", "new"]
    assert to_end({}, 5) == []
