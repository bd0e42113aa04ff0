"""Logs that real runners wrote about small suites (`suites/` has those of some), and the statuses that the suites have.

In most suites a test prints a forged pass of another one, so that the expected statuses also show what is not believed.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from rollyard.core.errors import UnknownParser
from rollyard.tasks.swe.log_parsers.family_names import FAMILIES, own_name
from rollyard.tasks.swe.log_parsers.parser_choice import NAMES, parse_log
from rollyard.tasks.swe.log_parsers.status import LogStatus

RECORDED = Path(__file__).with_name("recorded")
EXPECTED: defaultdict[tuple[str, str], dict[str, str]] = defaultdict(dict)
for row in (RECORDED / "expected.tsv").read_text().splitlines():
    recorded, parser, status, test = row.split("\t")
    EXPECTED[recorded, parser][test] = status


def log(name: str) -> str:
    return (RECORDED / f"{name}.log").read_text()


@pytest.mark.parametrize(("recorded", "parser"), EXPECTED)
def test_a_recorded_log_has_the_statuses_of_its_suite(recorded: str, parser: str) -> None:
    assert parse_log(parser, log(recorded)) == EXPECTED[recorded, parser]


@pytest.mark.parametrize("form", ["pytest-v", "pytest-xdist", "pytest-color", "pytest-q", "pytest-s", "pytest-6"])
def test_all_forms_of_pytests_output_give_the_same_passed_tests(form: str) -> None:
    def passed(name: str) -> set[str]:
        return {test for test, status in parse_log("pytest", log(name)).items() if status is LogStatus.PASSED}

    assert passed(form) == passed("pytest-rA")


REASONS = {
    "6.2.5": """SKIPPED [1] tests/a.py:21: skip this
XFAIL tests/a.py::test_x
  a - b [x] later
XFAIL tests/a.py::test_par[p - q]
  list [a] ends]
XFAIL tests/a.py::test_norun
  reason: [NOTRUN] never
XPASS tests/a.py::test_c Needs to be fixed
XPASS tests/a.py::test_no_reason 
XPASS tests/a.py::test_parx[x y] Needs [to] - be
XPASS tests/a.py::test_parx[p - q] Needs [to] - be
XPASS tests/a.py::test_parx[[1] x] Needs [to] - be
XPASS tests/a.py::test_parx[a[b] Needs [to] - be
""",
    "7.4.4": """SKIPPED [1] tests/a.py:21: skip this
XFAIL tests/a.py::test_x - a - b [x] later
XFAIL tests/a.py::test_par[p - q] - list [a] ends]
XFAIL tests/a.py::test_norun - reason: [NOTRUN] never
XPASS tests/a.py::test_c Needs to be fixed
XPASS tests/a.py::test_no_reason 
XPASS tests/a.py::test_parx[x y] Needs [to] - be
XPASS tests/a.py::test_parx[p - q] Needs [to] - be
XPASS tests/a.py::test_parx[[1] x] Needs [to] - be
XPASS tests/a.py::test_parx[a[b] Needs [to] - be
""",
    "9.0.1": """SKIPPED [1] tests/a.py:21: skip this
XFAIL tests/a.py::test_x - a - b [x] later
XFAIL tests/a.py::test_par[p - q] - list [a] ends]
XFAIL tests/a.py::test_norun - [NOTRUN] never
XPASS tests/a.py::test_c - Needs to be fixed
XPASS tests/a.py::test_no_reason
XPASS tests/a.py::test_parx[x y] - Needs [to] - be
XPASS tests/a.py::test_parx[p - q] - Needs [to] - be
XPASS tests/a.py::test_parx[[1] x] - Needs [to] - be
XPASS tests/a.py::test_parx[a[b] - Needs [to] - be
""",
}
"""Summaries of `-rA` by pytest's version."""


@pytest.mark.parametrize("version", REASONS)
def test_pytests_reasons_are_no_part_of_names(version: str) -> None:
    head = "=========================== short test summary info ============================\n"
    found = parse_log("pytest", head + REASONS[version] + "============ 3 xfailed, 6 xpassed in 0.12s ============\n")
    names = ["test_c", "test_no_reason", "test_parx[x y]", "test_parx[p - q]", "test_parx[[1] x]", "test_parx[a[b]"]
    passed = {name for name, status in found.items() if status is LogStatus.PASSED}
    assert passed == {f"tests/a.py::{name}" for name in names}
    for name in ("test_x", "test_par[p - q]", "test_norun"):
        assert found[f"tests/a.py::{name}"] is LogStatus.XFAIL


LINES: list[tuple[str, str, str, str, str | None]] = [
    ("ant", "    [junit] [PASS] one(a.B)\n    [junit] [FAIL] two(a.B)", "one(a.B)", "two(a.B)", None),
    ("bracketed", "[PASSED] a b\n[FAILED] c", "a b", "c", None),
    ("dotnet", "  Passed A.B(x: 1) [3 ms]\n  Failed A.C [1 s]\n  Skipped A.D", "A.B(x: 1)", "A.C", "A.D"),
    (
        "xctest",
        "Test Case 'A.one' passed (0.1 seconds)\n"
        "Test Case 'A.two' failed (0.1 seconds)",
        "A.one", "A.two", None,
    ),
    ("rspec-lines", "a does - b - passed\nc - failed\nd - pending", "a does - b", "c", "d"),
    (
        "cucumber",
        "features/a.feature ....\n"
        "features/b.feature ..F-",
        "features/a.feature", "features/b.feature", None,
    ),
    (
        "minitest",
        "T#test_: A should do. = 0.00 s = .\n"
        "T#test_b = 0.01 s = F\n"
        "T#test_c = 0.00 s = S",
        "T#test_: A should do", "T#test_b", "T#test_c",
    ),
    (
        "gradle",
        "a.B > one PASSED\n"
        "a.B > two()\n"
        "warning\n"
        "FAILED\n"
        "a.B > three SKIPPED",
        "a.B > one", "a.B > two()", "a.B > three",
    ),
    (
        "maven-methods",
        "one(a.B)  Time elapsed: 0.001 sec\n"
        "two(a.B)  Time elapsed: 0.1 sec  <<< FAILURE!",
        "a.B.one", "a.B.two", None,
    ),
    (
        "maven-classes",
        "[INFO] Running a.One\n"
        "[INFO] Tests run: 2, Failures: 0, Errors: 0, Skipped: 0, Time elapsed: 0.1 s -- in a.One\n"
        "[ERROR] Tests run: 2, Failures: 1, Errors: 0, Skipped: 0, Time elapsed: 0.1 s <<< FAILURE! -- in a.Two\n"
        "Running a.Three\n"
        "Tests run: 1, Failures: 0, Errors: 0, Skipped: 1, Time elapsed: 0 sec",
        "a.One", "a.Two", "a.Three",
    ),
    (
        "junit-xml-spaced",
        "<testsuite>"
        '<testcase classname="a" name="one"/>'
        '<testcase classname="a" name="two"><error/></testcase></testsuite>',
        "a one", "a two", None,
    ),
    (
        "junit-xml-method-first",
        "<testsuite>"
        '<testcase classname="a" name="one"/>'
        '<testcase classname="a" name="two"><failure/></testcase></testsuite>',
        "one (a)", "two (a)", None,
    ),
    *(
        (name, "=== short test summary info ===\nPASSED r2e_tests/a.py::A::b\nFAILED r2e_tests/a.py::c - no", passed, "c", None)
        for name, passed in (("r2e", "A::b"), ("r2e-dotted", "A.b"))
    ),
    ("symbols", "✔ [chrome]: one (3ms)\n✖ two\n○ three", "one", "two", "three"),
]  # fmt: skip


@pytest.mark.parametrize(("parser", "text", "passed", "failed", "skipped"), LINES)
def test_a_line_of_a_runner_that_was_not_recorded(
    parser: str, text: str, passed: str, failed: str, skipped: str | None
) -> None:
    statuses = parse_log(parser, text)
    assert statuses[passed] is LogStatus.PASSED
    assert statuses[failed] in (LogStatus.FAILED, LogStatus.ERROR)
    assert skipped is None or statuses[skipped] is LogStatus.SKIPPED


def test_each_parser_has_a_test() -> None:
    tested = {parser for _, parser in EXPECTED} | {parser for parser, *_ in LINES}
    assert set(NAMES) - tested == {"pytest-matplotlib"}  # it differs by two words from pytest-word
    summary = "=== short test summary info ===\nPASSED a.py::t[MouseButton.LEFT x]\n=== 1 passed in 0.1s ==="
    assert parse_log("pytest-matplotlib", summary) == {"a.py::t[1": LogStatus.PASSED}


def test_an_unknown_name_is_refused_with_the_names_that_one_can_choose() -> None:
    with pytest.raises(UnknownParser, match=r"go-json.*pytest-word.*or write a parser script"):
        parse_log("parse_log_pytest", "")


def test_names_of_families_lead_to_a_parser_or_are_refused() -> None:
    assert all(ours in NAMES for names in FAMILIES.values() for ours in names.values())
    assert own_name("swebench", "parse_log_scikit") == "pytest"
    assert own_name("swe-rebench", "parse_log_pytest_v2") == "pytest-word", "the same name, and other names of tests"
    assert own_name("swebench", "parse_log_jekyll", "jekyll__jekyll-8761") == "cucumber"
    for family, name in [("swebench", "parse_log_eslint"), ("swebench", "parse_log_jekyll"), ("swe-gym", "x")]:
        with pytest.raises(UnknownParser):
            own_name(family, name)
