"""Turns of a rollout as text: where the token prefix breaks, the line names the cause, as on the page."""

from __future__ import annotations

from typing import Any

import pytest

from rollyard.cli.rollout_turns import _print_ended
from rollyard.cli.rollouts import transcript
from rollyard.kinds.rollout import Status
from rollyard.trajectory import Segment, Trajectory, Turn

WHY = {"cause": "ThoughtsDropped", "why": "the thoughts of turn 1 are left out\x1b[2J"}


def segment(extras: dict[str, Any]) -> Segment:
    return Segment(
        token_ids=[1, 2], loss_mask=[0, 1], logprobs=[None, -0.5], weights_version=[None, "v"], prompt_length=1,
        extras=extras,
    )  # fmt: skip


def turn(number: int, of: int) -> Turn:
    return Turn(segment=of, prompt_length=1, response_length=1, text=f"text {number}", finish_reason="stop")


BROKEN = Trajectory(
    id="r", group=None, sample_index=0, attempt=1, task={"kind": "math"}, status=Status.COMPLETED, reward=0.5,
    segments=[segment({}), segment({"opened_by": WHY}), segment({})],
    turns=[turn(1, 0), turn(2, 0), turn(3, 1), turn(4, 2)], breaks={"ThoughtsDropped": 1},
)  # fmt: skip


def test_a_break_is_told_before_its_turn_and_counted_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    _print_ended(BROKEN, None)
    printed = capsys.readouterr().out
    for text in ("\n".join(transcript(BROKEN)), printed):
        lines = text.splitlines()
        place = next(i for i, line in enumerate(lines) if line.startswith("--- segment 2 begins: "))
        assert lines[place].startswith("--- segment 2 begins: ThoughtsDropped: the thoughts of turn 1 are left out")
        assert lines[place + 1].startswith("--- turn 3")
        assert "--- segment 3 begins: the cause is not recorded" in lines
        assert lines[-1].strip() == "breaks of the token prefix: ThoughtsDropped 1"
    assert "\x1b" not in printed
