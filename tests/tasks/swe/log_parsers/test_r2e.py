"""Logs of images of R2E name tests as the maps of expected statuses do."""

from __future__ import annotations

from rollyard.tasks.swe.log_parsers.parser_choice import parse_log

LOG = """\
=========================== short test summary info ============================
PASSED r2e_tests/test_1.py::TestSums::test_total
PASSED r2e_tests/test_1.py::test_format[{x::y}]
SKIPPED [1] r2e_tests/test_1.py:9: no reason
XPASS r2e_tests/test_1.py::test_unexpected
XFAIL r2e_tests/test_1.py::test_expected - later
FAILED r2e_tests/test_1.py::test_old[a - b] - AssertionError: no
ERROR r2e_tests/test_2.py - ImportError
==================== 1 failed, 2 passed, 1 skipped in 0.57s ====================
"""


def test_names_have_no_file_and_skipped_tests_are_left_out() -> None:
    assert parse_log("r2e", LOG) == {
        "TestSums::test_total": "PASSED",
        "test_format[{x::y}]": "PASSED",
        "test_old[a": "FAILED",
    }


def test_names_of_r2e_gym_have_dots() -> None:
    found = parse_log("r2e-dotted", LOG)
    assert found == {"TestSums.test_total": "PASSED", "test_format[{x.y}]": "PASSED", "test_old[a": "FAILED"}
