"""The parsers by name."""

from __future__ import annotations

from collections.abc import Callable

from rollyard.core.errors import UnknownParser
from rollyard.tasks.swe.log_parsers import (
    cargo,
    cplusplus,
    go,
    gradle,
    jest,
    junit_xml,
    karma,
    maven,
    mocha,
    phpunit,
    pytest,
    r2e,
    rspec,
    sympy,
    tap,
    unittest,
    verdict_lines,
    vitest,
)
from rollyard.tasks.swe.log_parsers.status import MAX_CHARACTERS, LogStatus, Results

_PARSERS: dict[str, Callable[[str], Results]] = {
    "ant": verdict_lines.ant,
    "automake": verdict_lines.automake,
    "bracketed": verdict_lines.bracketed,
    "cargo": cargo.parse,
    "cargo-nextest": cargo.parse_nextest,
    "ctest": cplusplus.parse_ctest,
    "cucumber": verdict_lines.cucumber,
    "doctest-xml": junit_xml.parse,
    "dotnet": verdict_lines.dotnet,
    "exunit": verdict_lines.exunit,
    "go": go.parse,
    "go-json": go.parse_json,
    "gradle": gradle.parse,
    "gtest": cplusplus.parse_gtest,
    "jest": jest.parse,
    "jest-files": jest.parse_files,
    "jest-json": jest.parse_json,
    "jest-suites": jest.parse_suites,
    "junit-xml": junit_xml.parse,
    "junit-xml-method-first": lambda log: junit_xml.parse(log, junit_xml.method_first_name),
    "junit-xml-pytest": lambda log: junit_xml.parse(log, junit_xml.pytest_name),
    "junit-xml-spaced": lambda log: junit_xml.parse(log, junit_xml.spaced_name),
    "karma": karma.parse,
    "maven-classes": maven.parse_classes,
    "maven-methods": maven.parse_methods,
    "maven-runs": maven.parse_runs,
    "micropython": verdict_lines.micropython,
    "minitest": verdict_lines.minitest,
    "mocha": mocha.parse,
    "mocha-json": mocha.parse_json,
    "phpunit": phpunit.parse,
    "pytest": pytest.parse,
    "pytest-matplotlib": lambda log: pytest.parse(log, pytest.mouse_buttons),
    "pytest-options": lambda log: pytest.parse(log, pytest.short_paths),
    "pytest-word": lambda log: pytest.parse(log, pytest.first_word),
    "r2e": r2e.parse,
    "r2e-dotted": lambda log: r2e.parse(log, "."),
    "redis": verdict_lines.redis,
    "rspec": rspec.parse,
    "rspec-json": rspec.parse_json,
    "rspec-lines": verdict_lines.rspec_lines,
    "symbols": mocha.parse_symbols,
    "sympy": sympy.parse,
    "tap": tap.parse,
    "test-unit": verdict_lines.test_unit,
    "unittest": unittest.parse,
    "vitest": vitest.parse,
    "xctest": verdict_lines.xctest,
}

NAMES = tuple(_PARSERS)
"""Names of the parsers, sorted."""


def parse_log(name: str, log: str) -> dict[str, LogStatus]:
    """Return the status of each test that the log names; of none if the log is longer than 16 Mi characters.

    The time is linear in the log's length, whatever the log holds.

    Raises:
        UnknownParser: no parser has this name.
    """
    parser = _PARSERS.get(name)
    if parser is None:
        raise UnknownParser(
            f"no log parser is named {name!r}. Choose one of {', '.join(NAMES)}, or write a parser script"
        )
    return dict(parser(log)) if len(log) <= MAX_CHARACTERS else {}
