"""The words behind a command name; an option that would have no effect is refused."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import click
import pytest

from rollyard.cli.options import kind_and_names, named
from rollyard.cli.parameter_types import DURATION
from rollyard.cli.rollout_lists import MOMENT
from rollyard.cli.weights import _parse_update
from rollyard.core.errors import Invalid


def test_a_command_without_a_name_does_not_look_done() -> None:
    assert [key.name for key in named(("rp", "a", "b"), "default")] == ["a", "b"]
    with pytest.raises(click.UsageError, match="KIND NAME or KIND/NAME"):
        named(("rp",), "default")


@pytest.mark.parametrize("other", ["ip/policy", "policy", "none/policy"])
def test_a_name_that_is_not_of_the_first_kind_is_neither_dropped_nor_looked_for_there(other: str) -> None:
    assert [key.name for key in named(("rp/a", "rolloutpools/b"), "default")] == ["a", "b"]
    with pytest.raises(click.UsageError, match=rf"rp/NAME.*not '{other}'"):
        kind_and_names(("rp/demo", other), "default")


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("batches", "rollyard batches list"),
        ("batch", "rollyard batches list"),
        ("evaluations", "rollyard eval list"),
        ("eval", "rollyard eval list"),
        ("rollouts", "rollyard rollouts list"),
        ("Datasets", "rollyard datasets list"),
        ("demo", "such as rp/demo"),
    ],
)
def test_what_is_no_object_is_told_with_the_command_that_lists_it(word: str, hint: str) -> None:
    with pytest.raises(click.UsageError, match=rf"there is no resource '{word}'.*{hint}"):
        kind_and_names((word,), "default")


def test_a_moment_is_what_people_write() -> None:
    now = time.time()
    day = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0).timestamp()
    assert MOMENT.convert("2h", None, None) == pytest.approx(now - 7200, abs=60)
    assert MOMENT.convert("3d", None, None) == pytest.approx(now - 3 * 86_400, abs=60)
    assert MOMENT.convert("2026-11-30", None, None) == datetime(2026, 11, 30, tzinfo=UTC).timestamp()
    assert MOMENT.convert("2026-11-30 14:00", None, None) == datetime(2026, 11, 30, 14, tzinfo=UTC).timestamp()
    assert MOMENT.convert("2026-11-30T14:00+02:00", None, None) == datetime(2026, 11, 30, 12, tzinfo=UTC).timestamp()
    assert MOMENT.convert("0:30", None, None) - day in (1800, 1800 + 86_400), "midnight may pass"
    assert MOMENT.convert("yesterday", None, None) + 86_400 - day in (0, 86_400)
    assert MOMENT.convert("today", None, None) - day in (0, 86_400)
    for wrong in ("last week", "25:00", "2026-13-01", "", "5 minutes"):
        with pytest.raises(click.BadParameter, match=r"2h or 7d, a date such as 2026-11-30 .*`yesterday`"):
            MOMENT.convert(wrong, None, None)


def test_a_wrong_order_of_weights_is_told_without_the_words_of_a_library() -> None:
    with pytest.raises(Invalid, match=r"^set exactly one of `path`"):
        _parse_update({"version": "v1"})
    with pytest.raises(Invalid, match=r"^--path: write an absolute path"):
        _parse_update({"version": "v1", "path": "weights"})


def test_a_name_with_a_kind_after_a_kind_is_refused() -> None:
    with pytest.raises(click.UsageError, match="without a kind, not 'rp/b'"):
        kind_and_names(("rp", "a", "rp/b"), "default")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5", 5), ("5s", 5), ("90s", 90), ("10m", 600), ("1m30s", 90), ("2h", 7200), ("0.5s", 0.5), ("30d", 2592000)],
)
def test_every_command_takes_the_same_durations(text: str, seconds: float) -> None:
    assert DURATION.convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "m", "5 s", "-5s", "5w", "s5", "1e3"])
def test_what_is_no_duration_is_told_with_examples(text: str) -> None:
    with pytest.raises(click.BadParameter, match="such as 90s, 10m or 1h30m"):
        DURATION.convert(text, None, None)
