"""Verdicts on runs of tests."""

from __future__ import annotations

import pytest

from rollyard.kinds.swe_task import SweTask
from rollyard.tasks.swe.verdict import RunStatuses, judge
from tests.support.swe_repository import swe_fields


def task(**more: object) -> SweTask:
    return SweTask.model_validate(swe_fields(fail_to_pass=["a", "b"], pass_to_pass=["c"], **more))


@pytest.mark.parametrize(
    ("letters", "resolved"),
    [("PPP", True), ("PXP", True), ("PSP", False), ("P-P", False), ("PFP", False), ("PPE", False), ("---", False)],
)
def test_only_tests_that_passed_have_passed(letters: str, resolved: bool) -> None:
    verdict = judge(task(), [RunStatuses(letters, 0)])
    assert (verdict.resolved, verdict.ran) == (resolved, letters != "---")
    assert len(verdict.notes) == sum(letter not in "PX" for letter in letters)


def test_a_flaky_test_passes_by_the_majority_or_by_all_runs() -> None:
    runs = [RunStatuses("PPP", 0), RunStatuses("PFP", 0), RunStatuses("PPP", 0)]
    assert judge(task(repeats=3, verdict="majority"), runs).resolved
    assert judge(task(repeats=3), runs).notes == ["b: passed failed passed"]
    assert not judge(task(repeats=2, verdict="majority"), runs[:2]).resolved, "one of two is no majority"


def test_expected_statuses_must_be_all_and_the_only_ones() -> None:
    lists = {"fail_to_pass": [], "pass_to_pass": []}
    expected = SweTask.model_validate(swe_fields(**lists, expected={"a": "FAILED", "b": "PASSED"}))
    assert judge(expected, [RunStatuses("FP", 0)]).resolved
    assert not judge(expected, [RunStatuses("PP", 0)]).resolved
    assert not judge(expected, [RunStatuses("FP", 1)]).resolved
