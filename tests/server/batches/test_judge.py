"""Verdicts on groups: a table of cases, and that no later end overturns one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollyard.kinds.batch import BatchFilter
from rollyard.kinds.rollout import Status
from rollyard.server.batches.judge import Verdict, judge
from rollyard.store.batch_records import EndedRollout

OPEN, INFORMATIVE, FAULTY = Verdict.OPEN, Verdict.INFORMATIVE, Verdict.FAULTY
LOW, HIGH, OTHER = Verdict.ALL_LOW, Verdict.ALL_HIGH, Verdict.OTHER
X = None


def ended(rewards: list[float | None]) -> list[EndedRollout]:
    return [
        EndedRollout(i, Status.INFRA_FAILED if reward is None else Status.COMPLETED, reward, 1, 1, 1.0)
        for i, reward in enumerate(rewards)
    ]


CASES: list[tuple[dict[str, Any], int, list[float | None], Verdict]] = [
    ({}, 4, [], OPEN),
    ({}, 4, [1], OPEN),
    ({}, 4, [1, 1, 1], OPEN),
    ({}, 4, [1, 0], INFORMATIVE),
    ({}, 4, [1, 1, 1, 1], HIGH),
    ({}, 4, [0, 0, 0, 0], LOW),
    ({}, 4, [-1, -1, -1, -1], LOW),
    ({}, 4, [0.5] * 4, HIGH),
    ({"reward_range": [0, 1]}, 4, [0.5] * 4, OTHER),
    ({"reward_range": [-1, 1]}, 4, [-1] * 4, LOW),
    ({}, 4, [X, X], OPEN),
    ({}, 4, [X, X, X], FAULTY),
    ({}, 4, [X, X, 1, 1], HIGH),
    ({}, 4, [X, X, 1, 0], INFORMATIVE),
    ({"min_usable": 3}, 4, [1, 0], OPEN),
    ({"min_usable": 3}, 4, [X, X], FAULTY),
    ({"min_usable": 3}, 4, [1, 0, 0], INFORMATIVE),
    ({"kind": "none"}, 4, [1], OPEN),
    ({"kind": "none"}, 4, [1, 1], INFORMATIVE),
    ({"kind": "none"}, 4, [X, X, X], FAULTY),
    ({"min_mean": 0.3}, 4, [1, 0], OPEN),
    ({"min_mean": 0.3}, 4, [1, 0, 0, 0], LOW),
    ({"max_mean": 0.7}, 4, [1, 1, 1, 0], HIGH),
    ({"min_mean": 0.3, "max_mean": 0.7}, 4, [1, 1, 0, 0], INFORMATIVE),
    ({"min_mean": 0.6, "reward_range": [0, 1]}, 8, [0, 0, 0], OPEN),
    ({"min_mean": 0.6, "reward_range": [0, 1]}, 8, [0, 0, 0, 0], LOW),
    ({"max_mean": 0.4, "reward_range": [0, 1]}, 8, [1, 1, 1, 1], HIGH),
    ({"min_mean": 0.1, "reward_range": [0, 1]}, 4, [1, 0], INFORMATIVE),
    ({"kind": "none", "max_mean": 0.5, "reward_range": [0, 1]}, 2, [1, X], FAULTY),
]


@pytest.mark.parametrize(("fields", "n", "rewards", "verdict"), CASES)
def test_verdicts(fields: dict[str, Any], n: int, rewards: list[float | None], verdict: Verdict) -> None:
    filter = BatchFilter.model_validate(fields)
    assert judge(filter, filter.min_usable or 2, n, ended(rewards)) is verdict


filters = st.builds(
    lambda kind, low, high, ranged: BatchFilter.model_validate(
        {"kind": kind, "min_mean": low, "max_mean": high, "reward_range": [0, 1] if ranged else None}
    ),
    st.sampled_from(["nonuniform", "none"]),
    st.one_of(st.none(), st.sampled_from([0.0, 0.25, 0.5])),
    st.one_of(st.none(), st.sampled_from([0.5, 0.75, 1.0])),
    st.booleans(),
)


@given(filters, st.integers(1, 4), st.lists(st.sampled_from([0.0, 0.5, 1.0, None]), min_size=4, max_size=8))
def test_no_later_end_overturns_a_verdict(filter: BatchFilter, least: int, rewards: list[float | None]) -> None:
    n = len(rewards)
    last = judge(filter, least, n, ended(rewards))
    assert last is not OPEN, "all have ended"
    first = next(v for v in (judge(filter, least, n, ended(rewards[:i])) for i in range(n + 1)) if v is not OPEN)
    if first in (INFORMATIVE, FAULTY):
        assert last is first
    else:
        assert last is not INFORMATIVE
