"""The names that the families of SWE task sets give to their parsers, and our parser with the same names of tests.

A parser that belongs to one repository, or that names failed tests alone, has no equal here: from a log without a test nobody
can tell whether the test passed.
"""

from __future__ import annotations

from rollyard.core.errors import UnknownParser

_SHARED = {
    "parse_log_ant": "ant",
    "parse_log_calypso": "jest-suites",
    "parse_log_cargo": "cargo",
    "parse_log_cucumber": "cucumber",
    "parse_log_doctest": "doctest-xml",
    "parse_log_googletest": "gtest",
    "parse_log_gotest": "go",
    "parse_log_gradle_custom": "gradle",
    "parse_log_jest": "jest",
    "parse_log_jest_json": "bracketed",
    "parse_log_jq": "automake",
    "parse_log_karma": "karma",
    "parse_log_maven": "maven-runs",
    "parse_log_micropython_test": "micropython",
    "parse_log_minitest": "minitest",
    "parse_log_phpunit": "phpunit",
    "parse_log_pytest": "pytest-word",
    "parse_log_pytest_options": "pytest-options",
    "parse_log_react_pdf": "jest-files",
    "parse_log_redis": "redis",
    "parse_log_rspec_transformed_json": "rspec-lines",
    "parse_log_ruby_unit": "test-unit",
    "parse_log_tap": "tap",
    "parse_log_vitest": "vitest",
}

FAMILIES: dict[str, dict[str, str]] = {
    "swebench": _SHARED
    | dict.fromkeys(
        [
            f"parse_log_{name}"
            for name in ("astroid", "flask", "marshmallow", "pvlib", "pyvista", "seaborn", "sqlfluff", "xarray")
        ],
        "pytest-word",
    )
    | dict.fromkeys([f"parse_log_{name}" for name in ("pydicom", "pylint", "requests")], "pytest-options")
    | dict.fromkeys([f"parse_log_{name}" for name in ("astropy", "pytest_v2", "scikit", "sphinx")], "pytest")
    | dict.fromkeys([f"parse_log_{name}" for name in ("carbon", "grommet")], "jest-files")
    | {
        "parse_log_django": "unittest",
        "parse_log_matplotlib": "pytest-matplotlib",
        "parse_log_prismjs": "mocha-json",
        "parse_log_sympy": "sympy",
    },
    "swe-rebench": _SHARED
    | {
        "parse_combined_test_reports": "junit-xml-pytest",
        "parse_java_mvn": "maven-classes",
        "parse_log_cpp_v4": "ctest",
        "parse_log_csharp": "dotnet",
        "parse_log_elixir": "exunit",
        "parse_log_gradlew_v1": "junit-xml-method-first",
        "parse_log_java_mvn": "maven-classes",
        "parse_log_js": "mocha",
        "parse_log_js_2": "mocha",
        "parse_log_js_4": "symbols",
        "parse_log_junit": "junit-xml-spaced",
        "parse_log_kotlin_junit": "maven-classes",
        "parse_log_npx": "mocha",
        "parse_log_pytest_nebo": "pytest",
        "parse_log_pytest_v2": "pytest-word",
        "parse_log_ruby_v2": "minitest",
        "parse_log_sbt": "junit-xml-spaced",
        "parse_log_swift": "xctest",
        "parse_logs_kotlin_junit": "maven-classes",
    },
    "swe-smith": {
        "GoProfile": "go",
        "PythonProfile": "pytest-word",
        "RustProfile": "cargo",
        "parse_log_ctest": "ctest",
        "parse_log_gradle_junit_xml": "junit-xml",
        "parse_log_gtest": "gtest",
        "parse_log_jest": "jest",
        "parse_log_maven_surefire": "maven-methods",
        "parse_log_mocha": "mocha",
    },
}
"""Our name by the family's name, for each family."""

_BY_PULL_REQUEST = {
    "parse_log_immutable_js": {"2006": "jest", "2005": "bracketed"},
    "parse_log_jekyll": dict.fromkeys(["9141", "8047", "8167"], "minitest")
    | dict.fromkeys(["8761", "8771"], "cucumber"),
}
"""Two parsers of SWE-bench choose by the number at the end of the instance's id."""


def own_name(family: str, name: str, instance: str = "") -> str:
    """Return our name of a family's parser.

    Raises:
        UnknownParser: the family is unknown, or none of our parsers gives tests the same names.
    """
    names = FAMILIES.get(family)
    if names is None:
        raise UnknownParser(f"no family of task sets is named {family!r}. Known are {', '.join(FAMILIES)}")
    found = names.get(name)
    if found is None and family == "swebench":
        found = _BY_PULL_REQUEST.get(name, {}).get(instance.rpartition("-")[2])
    if found is None:
        raise UnknownParser(f"none of our parsers names tests as {name!r} of {family} does. Use a parser script")
    return found
