"""Which of an agent's files count: not those of the tests, their configuration, installed packages and build products. Pure.

`docs/swe.md` describes the rules.
"""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Collection, Mapping

from rollyard.kinds.swe_task import SweTask
from rollyard.tasks.swe.patch_paths import patch_paths
from rollyard.tasks.swe.path_patterns import PathPatterns, only_path
from rollyard.tasks.swe.test_settings import test_settings
from rollyard.tasks.swe.tree_difference import FOLDER, BaseTree
from rollyard.tasks.swe.working_tree import TreeFile

TEST, SETTINGS, PRODUCT, EXCLUDED = "test", "test configuration", "build product", "excluded"
PUT_BACK = "missing test of the task"
"""Reason for a file of the tests that the agent has deleted, or never had."""

CLOSED_NAMES = frozenset(
    {".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv", ".tox", ".nox", ".eggs", ".gradle", "conda-meta"}
    | {".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".bundle", ".rollyard"}
)
"""Names of folders of git, of installed packages and of caches."""
PRODUCT_ENDINGS = (
    *(".pyc", ".pyo", ".pyd", ".so", ".o", ".a", ".dylib", ".dll", ".class", ".pth"),
    *(".egg-info", ".dist-info", ".egg-link", "EGG-INFO"),
)
MARKS = frozenset({"pyvenv.cfg", "CACHEDIR.TAG", "CMakeCache.txt"})
"""Files in the top folder of a virtual environment, of a cache such as cargo's `target`, and of a build by CMake."""
_VENDOR = PathPatterns(["/vendor/"])
_PROGRAM_MAGIC = (b"\x7fELF", b"MZ", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe", b"\0asm")

_TESTS = PathPatterns.listed(
    """
    tests/ __tests__/ __mocks__/ __snapshots__/ testdata/ /test/ /spec/ /e2e/ **/src/test/ **/src/*Test/
    test_*.py *_test.py tests.py *_test.go *_test.rs *_test.exs *Test.java *Tests.java *IT.java *Test.kt *Tests.kt *Test.php
    *_spec.rb *_test.rb *.test.[jt]s *.test.[jt]sx *.test.[cm][jt]s *.spec.[jt]s *.spec.[jt]sx *.spec.[cm][jt]s
    """
)
_SETTINGS = PathPatterns.listed(
    """
    conftest.py pytest.ini .pytest.ini pytest.toml .pytest.toml tox.ini noxfile.py .coveragerc sitecustomize.py usercustomize.py
    .cargo/ .config/nextest.toml .mvn/ mvnw gradlew gradle/wrapper/ phpunit.xml* .rspec .bazelrc CTestTestfile.cmake
    jest.config.* jest.setup.* jest-preset.* vitest.* vite.config.* karma.conf.* .mocharc* mocha.opts ava.config.*
    cypress.config.* playwright.config.* .nycrc* .c8rc* .npmrc .yarnrc* .yarn/
    """
)
_IMPORT_ROOTS = ("", "src/", "lib/")
"""Folders from which the tests' interpreter may import modules by their bare names."""
_RUNNER_MODULES = frozenset(
    {*sys.stdlib_module_names, "pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "exceptiongroup", "tomli"}
    | {"nose", "nose2", "unittest2", "xdist", "coverage", "pytest_cov", "pytest_asyncio", "mock", "site-packages"}
    | {"sitecustomize", "usercustomize", "pygments", "colorama", "attr", "attrs", "typing_extensions", "hypothesis"}
)
_INTERPRETERS = frozenset({"bash", "sh", "python", "python2", "python3", "node", "perl", "ruby", "php", "source", "."})
_MAKEFILES = PathPatterns(["/Makefile", "/makefile", "/GNUmakefile"])


class CountedPaths:
    """The rules of one task, in the tree of its image."""

    def __init__(self, swe: SweTask, base: BaseTree, settings: Mapping[bytes, bytes]) -> None:
        """`settings`: content of the files of the base that hold settings of tests beside other things."""
        self._base = base
        self._settings = settings
        self._tests = test_paths(swe)
        self._hidden = [swe.relative(path).encode("utf-8", "surrogateescape") for path in swe.hidden]
        self._above_tests = {path[:at] for path in self._tests for at, letter in enumerate(path) if letter == ord("/")}
        self._test_patterns = PathPatterns(swe.test_paths)
        self._excluded = PathPatterns(swe.excluded)
        self._included = PathPatterns(swe.included)
        self._reference = set(patch_paths(swe.reference_patch or "")) - self._tests
        self._runners = _runners(swe.script, base)
        self._marked = tuple({path.rpartition(b"/")[0] + b"/" for path in base if _name(path) in MARKS} - {b"/"})

    def reason(self, path: bytes, file: TreeFile | None) -> str | None:
        """Return why a changed path does not count; None if it does. Without a file the path is deleted."""
        text = path.decode("utf-8", "surrogateescape")
        if path in self._tests or any(path == hidden or path.startswith(hidden + b"/") for hidden in self._hidden):
            return TEST if file is not None else PUT_BACK
        if path in self._above_tests or self._test_patterns.match(text):
            return TEST
        if self._excluded.match(text):
            return EXCLUDED
        if path in self._reference or self._included.match(text):
            return None
        if self._is_product(path, text, file):
            return PRODUCT
        if _TESTS.match(text):
            return TEST
        if _SETTINGS.match(text) or path in self._runners or self._hides_a_module(path, text, file):
            return SETTINGS
        if self._changes_settings(path, file):
            return SETTINGS
        return None

    def _is_product(self, path: bytes, text: str, file: TreeFile | None) -> bool:
        parts = text.split("/")
        if not CLOSED_NAMES.isdisjoint(parts) or any(part.endswith(PRODUCT_ENDINGS) for part in parts):
            return True
        if _VENDOR.match(text) or path.startswith(self._marked):
            return True
        if b"target" in path.split(b"/")[:-1]:
            above = path[: (b"/" + path).index(b"/target/")]
            if any(above + name in self._base for name in (b"pom.xml", b"Cargo.toml")):
                return True
        return file is not None and not file.link and file.data.startswith(_PROGRAM_MAGIC)

    def _hides_a_module(self, path: bytes, text: str, file: TreeFile | None) -> bool:
        """Whether a new module would be imported in place of one of the interpreter's or the test runner's."""
        if file is None or path in self._base:
            return False
        for root in _IMPORT_ROOTS:
            first = text.removeprefix(root).split("/")[0]
            new = (root + first).encode("utf-8", "surrogateescape") not in self._base
            if text.startswith(root) and new and first.removesuffix(".py") in _RUNNER_MODULES:
                return first.endswith(".py") or "/" in text.removeprefix(root)
        return False

    def _changes_settings(self, path: bytes, file: TreeFile | None) -> bool:
        name = _name(path)
        before = test_settings(name, self._settings.get(path, b""))
        if before is None:
            return False
        return before != test_settings(name, file.data if file is not None else b"")


def closed_names(swe: SweTask) -> frozenset[str]:
    """Return the names of folders of which nothing counts. `included` may take some away."""
    return frozenset(name for name in CLOSED_NAMES if not _is_included(name, swe.included))


def product_endings(swe: SweTask) -> tuple[str, ...]:
    return tuple(ending for ending in PRODUCT_ENDINGS if not _is_included(ending, swe.included))


def _is_included(word: str, patterns: Collection[str]) -> bool:
    return any(word in pattern for pattern in patterns)


def test_paths(swe: SweTask) -> set[bytes]:
    """Return the paths of the files that the task itself puts in place, those in the repository."""
    written = {swe.relative(path).encode("utf-8", "surrogateescape") for path in swe.test_files}
    return {*patch_paths(swe.test_patch or ""), *written}


def python_tests(swe: SweTask) -> list[str]:
    """Return the files in Python that the task names as its tests, and its hidden folders. Relative paths begin in the
    repository."""
    files = [path.decode("utf-8", "surrogateescape") for path in test_paths(swe)]
    files += [path for path in map(only_path, swe.test_paths) if path is not None]
    hidden = [swe.relative(path) for path in swe.hidden]
    folders = [path for path in hidden if "." not in posixpath.basename(path)]
    return sorted({*folders, *(path for path in files + hidden if path.endswith(".py"))})


def _runners(script: str, base: BaseTree) -> set[bytes]:
    """Return the files of the repository that the script runs."""
    words = re.findall(r"[^\s;&|()<>\"'`=]+", script)
    found = set()
    for before, word in zip(["", *words], words, strict=False):
        path = posixpath.normpath(word).encode()
        entry = base.get(path)
        if (
            entry is not None
            and entry.kind != FOLDER
            and (entry.mode & 0o100 or posixpath.basename(before) in _INTERPRETERS)
        ):
            found.add(path)
    if not {"make", "gmake"}.isdisjoint(words):
        found |= {path for path in base if _MAKEFILES.match(path.decode("utf-8", "surrogateescape"))}
    return found


def _name(path: bytes) -> str:
    return path.rpartition(b"/")[2].decode("utf-8", "surrogateescape")
