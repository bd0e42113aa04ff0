"""The score of an answer that a checker process judges."""

from __future__ import annotations

from typing import Any

from rollyard.core.errors import TaskError
from rollyard.tasks.base import Score
from rollyard.tasks.scoring.checker_pool import CheckerKilled, CheckerPool
from rollyard.tasks.scoring.final_answer import MAX_ANSWER_CHARS

_TOO_HARD = "the answer cannot be compared with the reference within the limits of CPU time and memory"


async def checked_score(checkers: CheckerPool, reference: str, answer: str) -> Score:
    """Ask a checker whether the answer is right. `reference`: the first part of the checker's question. Raises TaskError if
    the reference is at fault."""
    if len(answer) > MAX_ANSWER_CHARS:
        why = f"the answer has {len(answer)} characters; the limit is {MAX_ANSWER_CHARS}"
        return Score(0.0, {"answered": 1.0, "too_long": 1.0}, [why])
    verdict = await _verdict(checkers, reference, answer)
    notes, parts = verdict.pop("notes", [_TOO_HARD]), verdict.pop("parts", {})
    return Score(verdict.pop("right", 0.0), {"answered": 1.0, **verdict}, notes, parts)


async def _verdict(checkers: CheckerPool, reference: str, answer: str) -> dict[str, Any]:
    """Return {"right": 1.0 or 0.0, "notes": reasons}, with metrics and perhaps parts, or a metric named for the reason why the
    answer cannot be judged."""
    expected = reference.encode("utf-8", "replace")
    try:
        verdict = await checkers.ask(expected, answer.encode("utf-8", "replace"))
    except CheckerKilled as why:
        verdict = {str(why): 1.0}
    if "right" not in verdict and "bad_reference" not in verdict:
        try:
            computable = "too_large" not in await checkers.ask(expected, b"")
        except CheckerKilled:
            computable = False
        if not computable:
            raise TaskError(f"the reference answer {reference!r} cannot be computed within the limits")
    if "bad_reference" in verdict:
        raise TaskError(f"the reference answer {reference!r} cannot be read as mathematics")
    return verdict
