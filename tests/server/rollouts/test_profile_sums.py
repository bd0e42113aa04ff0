"""Sums of profiles: what many rollouts come to, also where nothing is known of some."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rollyard.cli.rollout_profile import _lines
from rollyard.kinds.rollout_profile import RolloutProfile, TokenParts, ToolUse, TurnBand
from rollyard.server.rollouts.profile_sums import profile_sums, quantile
from rollyard.store.rollout_search import RolloutWork


def work(queued: float = 1.0, **summary: Any) -> RolloutWork:
    return RolloutWork(json.dumps(summary), queued, scored=True)


def profile(**fields: Any) -> dict[str, Any]:
    return RolloutProfile(**fields).model_dump(mode="json", exclude_defaults=True)


def test_sums_of_three_rollouts_of_which_one_has_no_profile() -> None:
    bash = ToolUse(tool="bash", calls=3, judged=3, failed=2, tokens=30)
    first = profile(
        model=6.0,
        tools=2.0,
        tokens=TokenParts(prompt=10, answers=5),
        by_tool=[bash],
        bands=[TurnBand(turns=1, read=10)],
    )
    other = ToolUse(tool="edit", calls=1)
    second = profile(
        model=1.0, tokens=TokenParts(prompt=10, outputs=2), by_tool=[other, ToolUse(tool="bash", calls=1, judged=1)],
        bands=[TurnBand(turns=1, read=10), TurnBand(turns=2, read=4, sampled=6, context=60)],
    )  # fmt: skip
    found = profile_sums(
        7,
        [
            work(init=1.0, run=10.0, eval=0.5, profile=first),
            work(3.0, init=3.0, run=1.0, profile=second),
            work(2.0, init=2.0),
        ],
    )
    assert (found.matching, found.rollouts, found.profiled, found.scored) == (7, 3, 2, 3)
    stages = {one.stage: one for one in found.stages}
    assert (stages["queued"].p50, stages["init"].p50, stages["init"].rollouts) == (2.0, 2.0, 3)
    assert stages["run"].p95 == pytest.approx(9.55)
    assert (stages["eval"].rollouts, stages["eval"].p95) == (1, 0.5)
    assert (found.model, found.tools, found.environment, found.other) == (7.0, 2.0, 0.0, 2.0)
    assert found.tokens == TokenParts(prompt=20, answers=5, outputs=2)
    assert [(row.tool, row.calls, row.judged, row.failed, row.rollouts) for row in found.by_tool] == [
        ("bash", 4, 4, 2, 2),
        ("edit", 1, 0, 0, 1),
    ]
    assert [(band.first, band.last, band.turns, band.read) for band in found.bands] == [(1, 1, 2, 20), (2, 3, 2, 4)]
    text = "\n".join(_lines(found))
    assert "the newest of 7" in text
    assert "turns and tokens of 2 rollouts; those of the others are not known" in text
    assert [line.split() for line in text.splitlines() if line.startswith(("bash", "edit"))] == [
        ["bash", "4", "2", "50%", "30", "2"],
        ["edit", "1", "-", "-", "0", "1"],
    ]


def test_what_nobody_knows_is_said() -> None:
    assert _lines(profile_sums(0, [])) == ["0 ended rollouts, 0 with a reward"]
    text = "\n".join(_lines(profile_sums(1, [work(run=2.0)])))
    assert "turns and tokens: not known" in text
    assert [line.split() for line in text.splitlines() if line.startswith("EVAL")] == [["EVAL", "-", "-", "-", "0%"]]


def test_quantiles_are_interpolated() -> None:
    assert quantile([], 0.5) is None
    assert quantile([4.0], 0.95) == 4.0
    assert quantile([0.0, 10.0], 0.5) == 5.0
