"""Which of an agent's files count."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from rollyard.kinds.swe_task import SweTask
from rollyard.tasks.swe.counted_paths import CountedPaths, python_tests
from rollyard.tasks.swe.patch_paths import patch_paths
from rollyard.tasks.swe.path_patterns import PathPatterns
from rollyard.tasks.swe.tree_difference import BaseEntry
from rollyard.tasks.swe.working_tree import TreeFile
from tests.support.swe_repository import git, swe_fields, swe_task

FILES = (
    b"setup.py",
    b"pom.xml",
    b"rust/Cargo.toml",
    b"env/pyvenv.cfg",
    b"bin/test",
    b"Makefile",
    b"types.py",
    b"run.py",
)
BASE = {path: BaseEntry("f", 0o755 if path == b"bin/test" else 0o644, "-") for path in FILES}
COUNT = """
calc/ops.py src/calc/json.py calc/testing.py django/test/utils.py latest.py contest/entry.py types.py docs/conf.py go.mod
build/lib/x.py dist/app.js calc/environment.py docs/target/notes.txt lib/pkg/unittest.py Makefile spec.md requirements.txt
setup.py package/vendor/x.go my.test.txt contest.py calc/token.py
"""
DO_NOT = """
tests/test_a.py calc/tests/helper.py calc/test_ops.py pkg/ops_test.go web/a.spec.tsx src/test/java/A.java test/runner.rb
app/src/test/kotlin/A.kt core/FooTest.java conftest.py calc/conftest.py tox.ini pytest.ini jest.config.ts .cargo/config.toml
mvnw gradle/wrapper/gradle-wrapper.jar sitecustomize.py json.py src/pytest.py lib/unittest/__init__.py bin/test run.py
node_modules/a/index.js web/node_modules/.bin/jest .git/config sub/.git a.pyc calc/_fast.so env/lib/python3/site.py
rust/target/debug/deps/a evil.pth x.egg-info/entry_points.txt vendor/github.com/x/assert.go
"""


def rules(**more: object) -> CountedPaths:
    task = SweTask.model_validate(swe_fields(script="bin/test; python run.py --all", **more))
    return CountedPaths(task, BASE, {})


@pytest.mark.parametrize("path", COUNT.split())
def test_sources_count(path: str) -> None:
    assert rules().reason(path.encode(), TreeFile(b"x = 1\n")) is None


@pytest.mark.parametrize("path", DO_NOT.split())
def test_tests_their_configuration_and_products_do_not_count(path: str) -> None:
    assert rules().reason(path.encode(), TreeFile(b"x = 1\n")) is not None
    assert rules(included=["**"]).reason(path.encode(), TreeFile(b"x = 1\n")) is None


def test_programs_do_not_count_whatever_their_names() -> None:
    assert rules().reason(b"calc/tool", TreeFile(b"\x7fELF\2\1\1")) == "build product"
    assert rules().reason(b"calc/tool", TreeFile(b"\x7fELF\2\1\1", link=True)) is None


def test_a_makefile_is_the_tests_where_the_script_calls_make() -> None:
    task = SweTask.model_validate(swe_fields(script="make check"))
    assert CountedPaths(task, BASE, {}).reason(b"Makefile", TreeFile(b"check:\n\ttrue\n")) == "test configuration"


def test_the_files_of_the_reference_count_and_those_of_the_tests_never() -> None:
    reference = "--- a/calc/tests/helper.py\n+++ b/calc/tests/helper.py\n@@ -1 +1 @@\n-a\n+b\n"
    both = rules(reference_patch=reference, included=["tests/test_add.py"], test_paths=["calc/golden/"])
    assert both.reason(b"calc/tests/helper.py", TreeFile(b"b")) is None
    assert both.reason(b"tests/test_add.py", TreeFile(b"b")) == "test"
    assert both.reason(b"tests", TreeFile(b"b")) == "test", "a link or a file where the tests need a folder"
    assert both.reason(b"calc/golden/a.txt", None) == "test"


@pytest.mark.parametrize(
    ("path", "before", "after", "counts"),
    [
        ("setup.cfg", "[a]\nb = 1\n[tool:pytest]\naddopts = -q\n", "[a]\nb = 2\n[tool:pytest]\naddopts = -q\n", True),
        ("setup.cfg", "[metadata]\nname = a\n", "[metadata]\nname = a\n[tool:pytest]\naddopts = -p evil\n", False),
        ("setup.cfg", "[metadata]\n", "[metadata]\n[options.entry_points]\npytest11 = x = evil\n", False),
        ("pyproject.toml", "[project]\nname = 'a'\n", "[project]\nname = 'a'\ndependencies = ['b']\n", True),
        ("pyproject.toml", "[project]\nname = 'a'\n", "[tool]\npytest.ini_options.addopts = '-p evil'\n", False),
        ("pyproject.toml", "", "[project.entry-points.pytest11]\nx = 'evil'\n", False),
        ("pyproject.toml", "", "not toml at all [", False),
        ("package.json", '{"name": "a"}', '{"name": "a", "dependencies": {"b": "1"}}', True),
        ("package.json", '{"name": "a"}', '{"name": "a", "scripts": {"test": "true"}}', False),
        ("web/package.json", '{"jest": {}}', '{"jest": {"globalSetup": "./evil.js"}}', False),
        ("Cargo.toml", "[package]\nname = 'a'\n", "[package]\nname = 'a'\n[dependencies]\nb = '1'\n", True),
        ("Cargo.toml", "[package]\nname = 'a'\n", "[package]\nname = 'a'\n[[test]]\nname = 't'\nharness = false\n", False),
    ],
)  # fmt: skip
def test_a_shared_file_counts_while_it_says_the_same_about_tests(
    path: str, before: str, after: str, counts: bool
) -> None:
    base = {path.encode(): BaseEntry("f", 0o644, "-")}
    found = CountedPaths(SweTask.model_validate(swe_fields()), base, {path.encode(): before.encode()})
    assert (found.reason(path.encode(), TreeFile(after.encode())) is None) == counts
    assert found.reason(path.encode(), TreeFile(before.encode())) is None


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("*.cfg", ["a.cfg", "x/y/b.cfg"], ["a.cfgs", "a.cfg2/b"]),
        ("docs/", ["docs/a", "x/docs/y/b"], ["docs", "docs2/a"]),
        ("/docs", ["docs", "docs/a"], ["x/docs", "docs2"]),
        ("a/b", ["a/b", "a/b/c"], ["x/a/b", "a/bc"]),
        ("**/fixtures/*.txt", ["fixtures/a.txt", "x/y/fixtures/a.txt"], ["fixtures/x/a.txt"]),
        ("a/**", ["a/b", "a/b/c"], ["a", "ab"]),
        ("[!a]?.py", ["xy.py"], ["ay.py", "x.py"]),
        ("a+(b)", ["a+(b)", "x/a+(b)/c"], ["aab"]),
    ],
)
def test_a_pattern_means_what_it_means_in_gitignore(
    tmp_path: Path, pattern: str, yes: list[str], no: list[str]
) -> None:
    patterns = PathPatterns([pattern])
    assert [patterns.match(path) for path in yes + no] == [True] * len(yes) + [False] * len(no)
    git(tmp_path, "init", "-q")
    (tmp_path / ".gitignore").write_text(pattern + "\n")
    for path in yes + no:
        asked = ["git", "-C", tmp_path, "check-ignore", "-q", "--no-index", path]
        assert (subprocess.run(asked, check=False).returncode == 0) == (path in yes), path


def test_the_tests_in_python_are_found_however_the_task_names_them() -> None:
    paths = ["a.py", "b[*].py", "c*.py", "d/e.py"]
    swe = swe_task(
        test_files={"f.py": "", "g.txt": ""}, hidden=["/h", "i.py", "run.sh"], test_paths=[f"/{p}" for p in paths]
    )
    assert python_tests(swe.fields_as(SweTask)) == ["/h", "a.py", "b*.py", "d/e.py", "f.py", "i.py"]


def test_the_paths_of_a_patch_are_those_that_git_names(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    for name in ("changed", "gone", "old name", 'ü\t"x"', "mode", "bin"):
        (tmp_path / name).write_bytes(b"1\n2\n3\n" if name != "bin" else bytes(100))
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "x")
    (tmp_path / "changed").write_text("1\n-- a/false\n++ b/false\n3\n")
    (tmp_path / "gone").unlink()
    (tmp_path / "old name").rename(tmp_path / "new name")
    (tmp_path / 'ü\t"x"').write_text("other")
    (tmp_path / "mode").chmod(0o755)
    (tmp_path / "bin").write_bytes(bytes(200))
    (tmp_path / "empty").touch()
    git(tmp_path, "add", "-A")
    patch = git(tmp_path, "diff", "--cached", "-M")
    expected = {"changed", "gone", "old name", "new name", 'ü\t"x"', "mode", "bin", "empty"}
    assert {*patch_paths(patch)} == {name.encode() for name in expected}
