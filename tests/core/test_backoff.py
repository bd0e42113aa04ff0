from __future__ import annotations

import logging

import pytest

from rollyard.core.backoff import until_done
from rollyard.core.errors import ApiError, Fenced, Unavailable


async def test_a_call_is_repeated_and_a_reason_that_lasts_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    answers = iter([Unavailable("gone"), Unavailable("gone"), Unavailable("busy"), "done"])

    async def call() -> str:
        if isinstance(answer := next(answers), Exception):
            raise answer
        return answer

    with caplog.at_level(logging.WARNING):
        assert await until_done(call, "trying") == "done"
    assert [record.getMessage() for record in caplog.records] == ["still trying: gone", "still trying: busy"]


@pytest.mark.parametrize("error", [Fenced("void"), ValueError("no number")])
async def test_other_errors_are_raised_at_once(error: Exception) -> None:
    async def call() -> None:
        raise error

    with pytest.raises(type(error)):
        await until_done(call, "trying", after=(ApiError,), but=(Fenced,))


async def test_after_its_time_the_last_error_is_raised() -> None:
    async def call() -> None:
        raise Unavailable("gone")

    with pytest.raises(Unavailable, match="gone"):
        await until_done(call, "trying", seconds=0.0)
