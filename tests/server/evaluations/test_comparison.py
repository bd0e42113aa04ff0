"""Verdict of a comparison of two evaluations, in words."""

from __future__ import annotations

import re

import pytest

from rollyard.kinds.evaluation import EvaluationRequest
from rollyard.kinds.rollout import Status
from rollyard.server.evaluations.evaluation_view import comparison
from rollyard.store.evaluation_store import EvaluationResult, StoredEvaluation


@pytest.mark.parametrize(
    ("worse", "p", "words"),
    [
        (0, 1.0, "no task differs; of 16 tasks, that does not show that none would"),
        (4, 0.125, "not shown which is better: .* p is not below 0.05, although the interval does not contain 0"),
        (6, 0.03125, "before is better: p is below 0.05"),
    ],
)
def test_p_decides_whether_one_is_better(worse: int, p: float, words: str) -> None:
    sides = []
    for name, zeros in (("before", 0), ("after", worse)):
        results = [
            EvaluationResult(
                f"{task:016x}", f"{name}.{task}", "math", "{}", Status.COMPLETED, None, float(task >= zeros), "v", 1.0
            )
            for task in range(16)
        ]
        request = EvaluationRequest(name=name, pool="p", dataset="d", tasks=16, tasks_digest="5f" * 32, k=1)
        sides.append((StoredEvaluation("default", request, 0.0), results))
    found = comparison(sides[0], sides[1], 1.0).mean
    assert found is not None
    assert found.p_value == p
    assert re.fullmatch(words, found.conclusion)
    assert (found.high < 0) == (worse > 0), "the interval alone would call both differences one"
