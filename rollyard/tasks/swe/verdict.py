"""The verdict on an agent's work: the tests that must pass, and what they did in each run. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rollyard.kinds.swe_task import SweTask
from rollyard.tasks.swe.log_results import ABSENT, LETTERS

MAX_NAMED = 8
"""Greatest number of tests that a note names."""
_WORDS = {letter: status.lower() for status, letter in LETTERS.items()} | {ABSENT: "did not run"}
GOOD = (LETTERS["PASSED"], LETTERS["XFAIL"])


@dataclass(frozen=True)
class RunStatuses:
    """Statuses of the tests in one run."""

    letters: str
    """One letter for each of the task's tests (`log_results.LETTERS`)."""
    others: int
    """Number of further tests."""
    similar: Mapping[str, str] = field(default_factory=dict)
    """Absent test -> name in the log that is like its name."""

    @property
    def ran(self) -> bool:
        """Whether any of the task's tests ran."""
        return bool(self.letters.strip(ABSENT))


@dataclass(frozen=True)
class SweVerdict:
    resolved: bool
    passed: float
    """Share of the task's tests that passed, or did what is expected."""
    ran: bool
    notes: Sequence[str]


def tests_of(swe: SweTask) -> list[str]:
    return list(swe.expected) or [*swe.fail_to_pass, *swe.pass_to_pass]


def judge(swe: SweTask, runs: Sequence[RunStatuses]) -> SweVerdict:
    """Return the verdict on one or more runs. A test that was skipped or did not run has not passed."""
    tests, wanted = tests_of(swe), [LETTERS[status] for status in swe.expected.values()]
    good = [[letter == wanted[i] if wanted else letter in GOOD for i, letter in enumerate(run.letters)] for run in runs]
    counts = [sum(of_test) for of_test in zip(*good, strict=True)]
    passed = [2 * count > len(runs) if swe.verdict == "majority" else count == len(runs) for count in counts]
    extra = bool(wanted) and any(run.others for run in runs)
    notes = [
        f"{test}: {' '.join(_WORDS[run.letters[i]] for run in runs)}{_similar(test, runs)}"
        for i, test in enumerate(tests)
        if not passed[i]
    ]  # fmt: skip
    if len(notes) > MAX_NAMED:
        notes[MAX_NAMED:] = [f"{len(notes) - MAX_NAMED} further tests did not pass"]
    if extra:
        notes.append("tests ran that the task does not expect")
    return SweVerdict(all(passed) and not extra, sum(passed) / len(tests), any(run.ran for run in runs), notes)


def _similar(test: str, runs: Sequence[RunStatuses]) -> str:
    names = [run.similar[test] for run in runs if test in run.similar]
    return f"; the log has `{names[0]}`" if names else ""
