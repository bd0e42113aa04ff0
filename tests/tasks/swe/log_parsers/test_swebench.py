"""Our parsers beside those of swebench 5.0.2, on the recorded logs and on logs that runners write now.

`DIFFERENCES` has every verdict that differs. XFAIL counts as passed, as in swebench's grading.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rollyard.tasks.swe.log_parsers.family_names import FAMILIES, own_name
from rollyard.tasks.swe.log_parsers.parser_choice import parse_log
from rollyard.tasks.swe.log_parsers.status import LogStatus
from tests.support import released

pytestmark = pytest.mark.long

HERE = Path(__file__).parent
PASSED = ("PASSED", "XFAIL")
THEIRS = """
import json, os, sys, types
site = sys.argv[1]
for name in ("swebench", "swebench.harness"):  # their __init__ import Docker's client and more, which parsers do not need
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [os.path.join(site, *name.split("."))]
from swebench.harness.log_parsers import PARSER_REGISTRY
read = lambda file: open(file, errors="replace").read()
statuses = [PARSER_REGISTRY[name](read(file), None) for file, name in json.load(sys.stdin)]
json.dump([sorted(PARSER_REGISTRY), *statuses], sys.stdout)
"""
SHOP = "tests/test_shop.py::"
PYTEST_NEW = {  # passed here alone
    f"{SHOP}test_mended": "an expected failure that passes does not fail the run",
    f"{SHOP}test_known": "theirs has the reason in the name, and so has one of our two names",
}
PYTEST_OLD = {  # passed there alone
    f"{SHOP}test_forged": "printed by another test",
    f"{SHOP}Old::test_old": "a subtest failed",
    f"{SHOP}test_teardown": "its teardown failed; theirs keeps the error's message in the name",
}
DIFFERENCES: dict[tuple[str, str], tuple[dict[str, str], dict[str, str]]] = {
    ("pytest-rA", "parse_log_pytest"): (PYTEST_NEW, PYTEST_OLD),
    ("pytest-rA", "parse_log_pytest_options"): (PYTEST_NEW, PYTEST_OLD),
    ("pytest-rA", "parse_log_pytest_v2"): (PYTEST_NEW, PYTEST_OLD),
    ("pytest-q", "parse_log_pytest"): (PYTEST_NEW, PYTEST_OLD),
    ("pytest-6", "parse_log_pytest"): (PYTEST_NEW, PYTEST_OLD),
    ("pytest-6", "parse_log_pytest_v2"): (PYTEST_NEW, PYTEST_OLD),
    ("unittest", "parse_log_django"): (
        {
            "test_doc (test_shop.Shop.test_doc)": "the second name of a test with a docstring",
            "test_known (test_shop.Shop.test_known)": "an expected failure",
        },
        {},
    ),
    ("django", "parse_log_django"): (
        {
            "test_doc (shop.tests.Shop.test_doc)": "the second name of a test with a docstring",
            "test_known (shop.tests.Shop.test_known)": "an expected failure",
        },
        {},
    ),
    ("sympy", "parse_log_sympy"): (
        {"test_known": "an expected failure", "test_mended": "the last line of a file ends with [FAIL] or [OK]"},
        {},
    ),
    ("go-v", "parse_log_gotest"): (
        {"TestPrints": "the test printed a text without a line's end before its verdict"},
        {"TestForged": "printed by another test"},
    ),
    ("cargo", "parse_log_cargo"): (
        {
            "src/lib.rs - add (line 2)": "a test in the documentation has spaces in its name",
            "tests::panics": "should panic",
            "tests::panics - should panic": "should panic",
        },
        {"tests::total": "printed by the failed test itself; libtest's own verdict is FAILED"},
    ),
    ("jest", "parse_log_jest"): ({}, {}),
    ("jest-files", "parse_log_carbon"): ({}, {}),
    ("vitest", "parse_log_vitest"): ({}, {"total is right (1 ms)": "printed by a test"}),
    ("mocha-tap", "parse_log_tap"): (
        {},
        {"shop counts coins # SKIP -": "skipped", "shop till # SKIP -": "skipped"},
    ),
    ("node-tap", "parse_log_tap"): (
        {"price": "the second name of a test behind a dash", "works": "the second name of a test behind a dash"},
        {"- later # TODO": "a failure of it would not count", "- till # SKIP no till": "skipped"},
    ),
    ("gtest", "parse_log_googletest"): ({}, {}),
    ("ruby-unit", "parse_log_ruby_unit"): ({}, {}),
    ("phpunit", "parse_log_phpunit"): (
        {f"Shop > {n}": "theirs sees no class without a namespace" for n in ("Has a price", "Prints", "Name with data set #0",
                                                                             'Name with data set "named"')},
        {f"None > {n}": "theirs sees no class without a namespace" for n in ("Has a price", "Prints", "Name with data set #0",
                                                                             'Name with data set "named"')},
    ),
}  # fmt: skip


def theirs(pairs: list[tuple[Path, str]]) -> tuple[list[str], list[dict[str, str]]]:
    """Return the names of swebench's registry, and its statuses of each pair of a log and a parser."""
    made = released.environment("swebench", "5.0.2", "python3.11")
    site = next((made / "lib").glob("python*/site-packages"))
    asked = json.dumps([(str(file), name) for file, name in pairs])
    ran = subprocess.run(
        [made / "bin/python", "-c", THEIRS, site], input=asked, capture_output=True, text=True, check=True
    )
    names, *statuses = json.loads(ran.stdout)
    return names, statuses


def passed(statuses: dict[str, str] | dict[str, LogStatus]) -> set[str]:
    return {test.strip() for test, status in statuses.items() if status in PASSED}


def test_verdicts_differ_only_where_it_is_said() -> None:
    pairs = [(HERE / "recorded" / f"{recorded}.log", name) for recorded, name in DIFFERENCES]
    _, all_theirs = theirs(pairs)
    for (log, name), (ours_alone, theirs_alone), statuses in zip(pairs, DIFFERENCES.values(), all_theirs, strict=True):
        ours = passed(parse_log(own_name("swebench", name), log.read_text()))
        assert ours - passed(statuses) <= set(ours_alone), (log.name, name)
        assert passed(statuses) - ours <= set(theirs_alone), (log.name, name)


def test_each_name_of_the_registry_has_a_parser_or_is_refused() -> None:
    names, _ = theirs([])
    own = set(FAMILIES["swebench"])
    assert own <= set(names)
    refused = (
        "bpmn_js chart_js eslint highlightjs immutable_js jekyll lighthouse marked next openlayers p5js quarto_cli"
    )
    assert sorted(set(names) - own) == ["parse_log_" + name for name in refused.split()]


def _run(command: list[str], folder: Path, log: Path) -> None:
    with log.open("w") as output:
        subprocess.run(
            command,
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
            env=os.environ | {"COLUMNS": "80"},
        )


def test_logs_that_runners_write_now_have_the_statuses_of_the_recorded_ones(tmp_path: Path) -> None:
    """The same suites with what this machine has: pytest and unittest always, Go, Cargo and Node where they are installed."""
    suites = HERE / "suites"
    files = {
        "tests/test_shop.py": "pytest",
        "test_shop.py": "unittest",
        "a/a_test.go": "go",
        "src/lib.rs": "cargo",
        "shop.test.mjs": "node",
    }
    for file, suite in files.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        shutil.copy(suites / f"{suite}.txt", tmp_path / file)
    (tmp_path / "go.mod").write_text("module example.org/shop\n\ngo 1.19\n")
    (tmp_path / "Cargo.toml").write_text('[package]\nname = "shop"\nversion = "0.1.0"\nedition = "2021"\n')
    alone = ["-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir=."]
    runs = [
        ("pytest-rA", "parse_log_pytest_v2", [sys.executable, "-m", "pytest", "-rA", *alone, "tests"]),
        ("unittest", "parse_log_django", [sys.executable, "-m", "unittest", "-v", "test_shop"]),
        ("go-v", "parse_log_gotest", ["go", "test", "-v", "./..."]),
        ("cargo", "parse_log_cargo", ["cargo", "test", "--offline", "--no-fail-fast"]),
        ("node-tap", "parse_log_tap", ["node", "--test", "--test-reporter=tap", "shop.test.mjs"]),
    ]
    runs = [run for run in runs if shutil.which(run[2][0])]
    for recorded, _, command in runs:
        _run(command, tmp_path, tmp_path / f"{recorded}.log")
    logs = [(tmp_path / f"{recorded}.log", name) for recorded, name, _ in runs]
    for (log, name), statuses in zip(logs, theirs(logs)[1], strict=True):
        ours_alone, theirs_alone = DIFFERENCES[log.stem, name]
        ours = passed(parse_log(own_name("swebench", name), log.read_text()))
        assert ours, log.read_text()
        assert ours - passed(statuses) <= set(ours_alone), name
        assert passed(statuses) - ours <= set(theirs_alone), name
