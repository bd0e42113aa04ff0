"""A test of a log is found under the name that a family's list has for it."""

from __future__ import annotations

import json

import pytest

from rollyard.tasks.swe.log_results import statuses
from rollyard.tasks.swe.observed_tests import ObservedTests

OBSERVED = ObservedTests(
    {
        "t.py::test_one": "PASSED",
        "t.py::test_log[a b-1]": "PASSED",
        "t.py::test_log[a b-2]": "PASSED",
        "t.py::test_mixed[a b]": "PASSED",
        "t.py::test_mixed[a c]": "FAILED",
        "sorts numbers (12 ms)": "FAILED",
        "compares  ": "PASSED",
        "adds (1 ms)": "FAILED",
        "adds (2 ms)": "PASSED",
    }
)


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("t.py::test_one", "PASSED"),
        ("t.py::test_on", None),
        ("t.py::test_log[a", "PASSED"),
        ("t.py::test_mixed[a", None),
        ("sorts numbers (3 ms)", "FAILED"),
        ("sorts numbers [ 0.3 s ]", "FAILED"),
        ("compares", "PASSED"),
        ("adds", None),
        ("", None),
    ],
)
def test_names_are_found_as_the_families_write_them(name: str, status: str | None) -> None:
    assert OBSERVED.status(name) == status


def test_tests_under_a_cut_name_are_no_further_tests() -> None:
    log = "".join(f"PASSED t.py::{test}\n" for test in ("test_log[a b-1]", "test_log[a b-2]", "test_two"))
    job = {"tests": ["test_log[a", "test_two"], "parser": "r2e-dotted"}
    text = f"= test session starts =\n= short test summary info =\n{log}= 3 passed in 0.01s =\n".encode()
    assert statuses(json.dumps(job).encode(), text) == {"letters": "PP", "others": 0, "similar": {}}
    assert statuses(json.dumps({**job, "tests": ["test_log[a"]}).encode(), text) == {
        "letters": "P",
        "others": 1,
        "similar": {},
    }


def test_a_name_without_end_takes_a_time_that_grows_with_its_length_alone() -> None:
    assert ObservedTests({" " * 100_000 + "[": "PASSED"}).status("x" + " " * 100_000 + "1") is None
