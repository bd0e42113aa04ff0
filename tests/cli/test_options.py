"""The words behind a command name; an option that would have no effect is refused."""

from __future__ import annotations

import click
import pytest

from rollyard.cli.options import kind_and_names, named
from rollyard.cli.parameter_types import DURATION
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
