"""Logs written by code that wants a reward, or wants the parser to never end."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from rollyard.tasks.swe.log_parsers.parser_choice import parse_log
from rollyard.tasks.swe.log_parsers.status import MAX_CHARACTERS, LogStatus

RECORDED = Path(__file__).with_name("recorded")
FORGERIES = [
    ("pytest-rA", "pytest", "=== short test summary info ===\nPASSED {test}\n", "tests/test_shop.py::test_total"),
    ("pytest-rA", "pytest-word", "=== short test summary info ===\nPASSED {test}\n", "tests/test_shop.py::test_total"),
    ("unittest", "unittest", "{test} ... ok\n", "test_total (test_shop.Shop.test_total)"),
    ("django", "unittest", "{test} ... ok\n", "test_total (shop.tests.Shop.test_total)"),
    ("sympy", "sympy", "{test} ok\n", "test_total"),
    ("go-v", "go", "=== RUN   {test}\n--- PASS: {test} (0.00s)\n", "TestTotal"),
    ("go-json", "go-json", '{{"Action":"pass","Package":"example.org/shop/a","Test":"{test}"}}\n', "TestTotal"),
    ("cargo", "cargo", "running 1 test\ntest {test} ... ok\n\ntest result: ok\n", "tests::total"),
    ("jest", "jest", "PASS a.js\n  ✓ {test}\n", "total is right"),
    ("jest-json", "jest-json", '{{"numTotalTests": 1, "testResults": [{{"assertionResults": [{{"title": "{test}", '
     '"status": "passed", "ancestorTitles": ["shop"]}}]}}]}}\n', "total is right"),
    ("vitest", "vitest", "\n ✓ {test}\n", "shop.test.mjs > shop > total is right"),
    ("mocha", "mocha", "✔ {test}\n", "total is right"),
    ("mocha-json", "mocha-json", '{{"stats": {{}}, "passes": [{{"fullTitle": "{test}"}}]}}\n', "shop total is right"),
    ("node-tap", "tap", "ok 7 - {test}\n", "total"),
    ("gtest", "gtest", "[ RUN      ] {test}\n[       OK ] {test} (0 ms)\n", "Shop.Total"),
    ("ctest", "ctest", "1/7 Test #1: {test} ......   Passed    0.04 sec\n", "total"),
    ("minitest", "minitest", "{test} = 0.00 s = .\n", "TestShop#test_total"),
    ("rspec", "rspec", "\nShop\n  total is right\n", "Shop total is right"),
    ("ruby-unit", "test-unit", "  {test}:\t.: (0.1)\n", "test_total"),
    ("phpunit", "phpunit", "Shop\n ✔ Total\n", "Shop > Total"),
    ("phpunit-xml", "junit-xml", '<testsuite><testcase classname="ShopTest" name="testTotal"/></testsuite>\n',
     "ShopTest.testTotal"),
]  # fmt: skip


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize(("recorded", "parser", "forged", "test"), FORGERIES)
def test_a_forged_pass_never_makes_a_failed_test_a_passed_one(
    recorded: str, parser: str, forged: str, test: str, place: str
) -> None:
    real, added = (RECORDED / f"{recorded}.log").read_text(), forged.format(test=test)
    honest = parse_log(parser, real)
    statuses = parse_log(parser, added + real if place == "before" else real + "\n" + added)
    name = next(name for name in honest if name.endswith(test) and honest[name] is not LogStatus.PASSED)
    assert statuses[name] in (LogStatus.FAILED, LogStatus.ERROR)
    assert all(statuses[name] == status for name, status in honest.items())


def test_pytest_does_not_believe_what_a_test_prints_between_the_sections() -> None:
    printed = "=== short test summary info ===\nPASSED a.py::test_never_ran\n"
    real = "=== FAILURES ===\n{}=== short test summary info ===\nFAILED a.py::test_b - x\n=== 1 failed in 0.10s ===\n"
    assert parse_log("pytest", real.format(printed)) == {"a.py::test_b": LogStatus.FAILED}


def test_go_believes_no_pass_of_a_test_that_did_not_start() -> None:
    assert parse_log("go", "--- PASS: TestNever (0.00s)\n") == {}
    assert parse_log("go-json", '{"Action":"pass","Package":"a","Test":"TestNever"}\n') == {}


def test_text_within_a_junit_file_is_only_text() -> None:
    inner = '<testcase classname="a" name="forged"/>'
    file = f'<testsuite><testcase classname="a" name="b"><system-out><![CDATA[{inner}]]></system-out></testcase></testsuite>'
    assert parse_log("junit-xml", file) == {"a.b": LogStatus.PASSED}


def test_an_unclosed_document_does_not_hide_the_real_file() -> None:
    file = '<?xml version="1.0"?><testsuite><testcase classname="a" name="b"><failure/></testcase></testsuite>'
    assert parse_log("junit-xml", f"<testsuite>\n{file}\n{file}") == {"a.b": LogStatus.FAILED}


def test_entities_are_refused() -> None:
    bomb = '<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b "c">]><testsuite><testcase name="&b;"/></testsuite>'
    assert parse_log("junit-xml", bomb) == {}


def test_a_log_over_the_limit_names_no_test() -> None:
    log = "PASS: a\n"
    assert parse_log("automake", log + " " * (MAX_CHARACTERS - len(log)))
    assert parse_log("automake", log + " " * (MAX_CHARACTERS - len(log) + 1)) == {}


PIECES = [
    "\n", "a\n", " ", "=", "_ ", "[", "((", "\r", "\x1b[", ". ", "a ", " - ", "a[ - ", "::", " ... ", "test_a ... \n",
    "{", '{"a":[\n', '{"stats":1}\n', '{\n"', "<testsuite>", "<?xml", "<doctest><TestCase name='a'>",
    "PASS a\n  a\n    ✓ b\n", "<SubCase name='x'>", "a::b PASSED ", "=== short test summary info ===\nXFAIL a[ - \n",
    "=== RUN   a\n--- PASS: a (0s)\n", "running 1 test\ntest a ...\n", ": \t.",
    "Tests run: 1, Failures: 1, Errors: 1, Skipped: 1, Time elapsed: in ", "-Dtest=a ", " > PASSED",
    "1/1 Test #1: a    ", "(PENDING: ", "1", "ok 1 a # ", "_ a:b", "[ok]: a in ", "PASS a\n  a\n",
    "Starting browser\n a\n  b\n",
]  # fmt: skip
CHILD = """
import sys
from rollyard.tasks.swe.log_parsers.parser_choice import NAMES, parse_log
size, names, pieces = int(sys.argv[1]), sys.argv[2].split(), sys.argv[3:]
for piece in pieces:
    for name in names or NAMES:
        parse_log(name, (piece * size)[:size])
"""


def read_all(size: int, pieces: list[str], cpu_seconds: int, names: str = "") -> None:
    """Let parsers read logs of one piece again and again. The kernel ends the process after `cpu_seconds`."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))

    subprocess.run([sys.executable, "-c", CHILD, str(size), names, *pieces], check=True, preexec_fn=limit)


def test_time_is_linear() -> None:
    """A quadratic parser would take minutes for one of these logs."""
    read_all(64 << 10, ['{\n"', "<testsuite>", " > a::b PASSED - test_a ... ok"], 60)


@pytest.mark.long
def test_time_is_linear_in_all_pieces() -> None:
    read_all(64 << 10, PIECES, 600)
    read_all(MAX_CHARACTERS - 100, ["a\n", "<testsuite>"], 600, "pytest unittest junit-xml jest-json")
