"""Fields of the task kind `swe`: a repository in an image, and the tests that the agent's work must pass."""

from __future__ import annotations

import base64
import binascii
import posixpath
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from rollyard.kinds.base import WireModel
from rollyard.kinds.task_fields import TaskFields

Path = Annotated[str, Field(min_length=1, max_length=4000)]
"""Path in the sandbox. A relative path begins in the repository."""
Pattern = Annotated[str, Field(min_length=1, max_length=1000)]
"""Pattern for paths of the repository, as in .gitignore: `docs/` is a folder of this name anywhere, `/docs` only the one at
the top, `*.cfg` a file in any folder, and `**` any number of folders."""
TestName = Annotated[str, Field(min_length=1)]


class Base64File(WireModel):
    """Content of a file that is not text."""

    base64: str
    """The bytes in base64."""

    @field_validator("base64")
    @classmethod
    def _decodes(cls, value: str) -> str:
        try:
            base64.b64decode(value, validate=True)
        except binascii.Error:
            raise ValueError("write the file's bytes in base64") from None
        return value

    def content(self) -> bytes:
        return base64.b64decode(self.base64)


class SweTask(TaskFields):
    """Repository in an image. The agent changes it, and tests score the change in a fresh sandbox of the same image."""

    statement: str = Field(min_length=1)
    """Text of the issue, which says what to do. It is the user's message."""
    system: str | None = None
    """System prompt. Default: one that explains the tools and the end."""

    repository: str = Field(default="/testbed", pattern=r"^/.*[^/]$")
    """Absolute path of the repository in the image. Commands start here."""
    base_commit: str | None = Field(default=None, pattern=r"^[0-9a-f]{7,64}$")
    """Commit that is checked out before anything else, unless the image has it checked out, with changes of its own or without.
    Default: what the image has checked out."""
    setup: str | None = None
    """Bash script that completes the image, run in the repository before the agent starts, and again before the evaluation."""
    hidden: list[Path] = []
    """Files and folders that the agent never sees, such as a test script of the image. They are there in the evaluation."""

    script: str = Field(min_length=1)
    """Bash script that runs the tests in the repository. The tests' results are in its output."""
    seconds: float = Field(default=1800.0, gt=0)
    """Longest time of one run of `script`. EVAL's time limit is the upper bound."""
    log_parser: str | None = None
    """Name of the parser of the output, such as pytest, unittest, go-json, cargo or jest."""
    parser_script: str | None = None
    """Python program in place of `log_parser`. It gets three arguments: the files with the output and with the errors of
    `script`, and the JSON file that it must write: `{"tests": [{"name": ..., "status": ...}]}`, or an object of name to
    status. It runs in a sandbox of its own."""
    fail_to_pass: list[TestName] = []
    """Tests that fail before the right change and pass after it."""
    pass_to_pass: list[TestName] = []
    """Tests that pass before and after the right change."""
    expected: dict[TestName, Literal["PASSED", "FAILED", "SKIPPED", "ERROR", "XFAIL"]] = {}
    """In place of both lists: the status of every test. The reward is 1 only if each test has this status, and no other test
    ran."""
    repeats: int = Field(default=1, ge=1, le=20)
    """Number of times that `script` runs. For flaky tests."""
    verdict: Literal["all", "majority"] = "all"
    """With `repeats`, a test has passed if it passes in all runs, or in more than half of them."""

    test_files: dict[Path, str | Base64File | None] = {}
    """Path -> content of the tests' files in the evaluation; null: the file is deleted. Nothing of the agent's at these paths
    counts."""
    test_patch: str | None = None
    """Patch in the form of `git diff` that makes the tests' files, in place of `test_files` or before them."""
    test_paths: list[Pattern] = []
    """Further files that are the tests', such as those that `script` writes by itself. Nothing of the agent's there counts."""
    excluded: list[Pattern] = []
    """Further files of the agent that do not count, beside tests, their configuration and build products."""
    included: list[Pattern] = []
    """Files that count although their names look like those of tests, configuration or build products."""

    reference_patch: str | None = None
    """Right change, in the form of `git diff`. It is never in the agent's sandbox. The files that it changes count, unless
    they are the tests'."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.log_parser is None) == (self.parser_script is None):
            raise ValueError("set either `log_parser` or `parser_script`")
        if bool(self.expected) == bool(self.fail_to_pass or self.pass_to_pass):
            raise ValueError("set either `expected`, or `fail_to_pass` and `pass_to_pass`")
        return self

    @classmethod
    def offers_tools(cls, fields: Mapping[str, Any]) -> bool:
        return True

    def inside(self, path: str) -> str:
        """Return the absolute form of a path that may begin in the repository."""
        return posixpath.normpath(posixpath.join(self.repository, path))

    def relative(self, path: str) -> str:
        """Return the path from the repository, or the absolute path of a file that is elsewhere."""
        found = posixpath.relpath(self.inside(path), self.repository)
        return self.inside(path) if found.split("/")[0] == ".." else found
