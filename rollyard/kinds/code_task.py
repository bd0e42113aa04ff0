"""Fields of the task kind `code`."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Protocol, Self

from pydantic import Field, field_validator, model_validator

from rollyard.kinds.base import WireModel
from rollyard.kinds.task_fields import TaskFields
from rollyard.kinds.values.quantity import Size, size_bytes

Language = Literal["python", "javascript", "c", "cpp", "java", "go", "rust"]
EMPTIED = ("/tmp/", "/var/tmp/", "/dev/shm/")
"""Folders that are emptied after each case with an input."""


_OF_PROGRAMS = (
    "language", "compile", "run", "compile_seconds", "case_memory", "case_output", "compare", "checker", "interactor",
)  # fmt: skip
"""Fields that count for cases with an input alone."""
_OF_CASES = ("case_seconds", "relative_tolerance", "absolute_tolerance", "points")


class ProgramFields(Protocol):
    """How a source becomes a running program."""

    @property
    def language(self) -> Language | None: ...
    @property
    def compile(self) -> str | None: ...
    @property
    def run(self) -> str | None: ...


class CodeCase(WireModel):
    """Either a call and the value that it must have, or an input and the output that belongs to it."""

    call: str | None = None
    """Python expression that uses the solution's definitions, such as f(3). If it compares with a constant, as
    f(3) == 9, only f(3) runs in the sandbox."""
    expect: str | None = Field(default=None, max_length=16_000)
    """Python literal that the value of `call` must equal. The literal never enters a sandbox."""
    input: str | None = None
    """Standard input of the program."""
    output: str = ""
    """Text that the program must print, or the answer that a checker or an interactor gets. It never enters a sandbox in which
    the agent's code runs."""
    group: str | None = None
    """Group of `points` to which the case belongs."""

    @field_validator("expect")
    @classmethod
    def _literal(cls, value: str | None) -> str | None:
        try:
            ast.literal_eval(value or "0")
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            raise ValueError("write a Python literal, such as 9, 'a' or [1, 2]") from None
        return value

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        called = self.call is not None and self.expect is not None
        halves = (self.call is None) != (self.expect is None) or (called and self.output)
        if halves or called == (self.input is not None):
            raise ValueError("write either `call` and `expect`, or `input` and `output`")
        return self


class JudgeProgram(WireModel):
    """Program of the task that judges. It runs in a sandbox of its own, in which no code of the agent runs."""

    source: str = Field(min_length=1)
    """Text of the program."""
    language: Language | None = None
    """Language of `source`."""
    compile: str | None = None
    """Bash command in place of the language's: it makes files in the folder $BUILD from the file $SOLUTION."""
    run: str | None = None
    """Bash command in place of the language's."""
    files: dict[Annotated[str, Field(pattern=r"^[^/]+$")], str] = {}
    """Name -> text of files beside the source, such as testlib.h."""
    seconds: float = Field(default=10.0, gt=0, le=600)
    """Longest CPU time for one case."""

    @model_validator(mode="after")
    def _runs(self) -> Self:
        if self.language is None and self.run is None:
            raise ValueError("set `language`, or `run` to a bash command that runs $SOLUTION")
        return self


class UnitTests(WireModel):
    """Hidden tests that import the solution, or are compiled with it."""

    files: dict[Annotated[str, Field(pattern=r"^[^/]")], str] = Field(min_length=1)
    """Path -> text of the tests and what they need, in the folder of the solution. No agent sees them."""
    framework: Literal["unittest", "pytest"] = "unittest"
    """Framework of tests in Python, which are in the files named `test*.py`. Each of them must pass."""
    command: str | None = None
    """Bash command in place of the framework's, which runs the tests in the folder of the solution."""
    log_parser: str | None = None
    """Name of the parser of what `command` prints, as for the kind `swe`."""
    names: list[str] = []
    """Names of the tests that must pass, as `log_parser` reads them."""
    seconds: float = Field(default=60.0, gt=0, le=3600)
    """Longest time of all tests together."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        own = (self.command, self.log_parser, self.names or None)
        if any(own) and (not all(own) or "framework" in self.model_fields_set):
            raise ValueError("set `command`, `log_parser` and `names` together, or `framework` in place of all three")
        if self.command is None and not self.python_tests:
            raise ValueError("`files` has no test in Python: name a file `test_solution.py`, or set `command`")
        return self

    @property
    def python_tests(self) -> dict[str, str]:
        return {path: text for path, text in self.files.items() if re.fullmatch(r"test\w*\.py", path)}


class CodeTask(TaskFields):
    """Task to write a file. Hidden cases or tests score the file in a fresh sandbox."""

    problem: str = Field(min_length=1)
    solution: str = Field(pattern=r"^/")
    """Absolute path of the file that the agent has to write."""
    cases: list[CodeCase] = Field(default=[], max_length=1000)
    """Cases of one form: calls of Python functions, or inputs and outputs of a program."""
    tests: UnitTests | None = None
    """Unit tests in place of cases."""
    files: dict[str, str] = {}
    """Absolute path -> text of files that exist when the agent starts."""
    case_seconds: float = Field(default=10.0, gt=0, le=600)
    """Longest time of one case, in seconds. For a program it is the CPU time of all its processes, and the case may last three
    times as long and 5 s more."""
    relative_tolerance: float = Field(default=0.0, ge=0, lt=1)
    """Accepted difference from an expected float, as a share of the expected float. 0: floats are compared exactly."""
    absolute_tolerance: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Accepted difference from an expected float. Either of the two tolerances is enough."""
    eval_from_snapshot: bool = False
    """True: the cases run with all files that the agent's sandbox had changed, such as further modules and installed
    packages. False: they run with `files` and the solution alone."""
    reference: str | None = None
    """Text of a right solution file, for `rollyard tasks check`. No agent sees it."""
    credit: Literal["all", "cases", "groups"] = "all"
    """Reward: 1 if every case passes, else 0; the share of the cases that pass; or the points of the groups in which every case
    passes, as a share of all points."""
    points: dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]] = {}
    """Name of a group -> its points, with `credit: groups`."""

    language: Language | None = None
    """Language of the solution, for cases with an input."""
    compile: str | None = None
    """Bash command in place of the language's: it makes files in the folder $BUILD from the file $SOLUTION."""
    run: str | None = None
    """Bash command in place of the language's. It runs $SOLUTION, or what is in $BUILD."""
    compile_seconds: float = Field(default=60.0, gt=0, le=600)
    """Longest CPU time of the compiler."""
    case_memory: Size | None = None
    """Memory that a program may use for one case, such as 256M. Default: what the sandbox has."""
    case_output: Size = "16M"
    """Greatest length of what a program prints for one case, at most 64M."""
    compare: Literal["tokens", "lines", "exact"] = "tokens"
    """Parts that must be equal: the words between white space; the lines without white space at their ends; or every byte. The
    tolerances are for words that are numbers."""

    checker: JudgeProgram | None = None
    """Program that judges the outputs in place of a comparison. Its arguments are three files: input, output, and the case's
    `output` as the answer. It exits with 0 for a right output, and with 1 for a wrong one. In Python it is a function
    `check(input, output, answer)` of texts that returns whether the output is right."""
    interactor: JudgeProgram | None = None
    """Program whose output is the solution's input, and the other way round. Its arguments and exit codes are a checker's; the
    file of the output is empty."""

    @field_validator("case_output")
    @classmethod
    def _bounded(cls, value: str) -> str:
        if not 0 < size_bytes(value) <= 64 << 20:
            raise ValueError("write a size of at most 64M")
        return value

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if bool(self.cases) == (self.tests is not None):
            raise ValueError("write either `cases` or `tests`")
        if self.tests is not None:
            self._check_tests()
            return self
        if len({case.input is None for case in self.cases}) > 1:
            raise ValueError("write all cases in one form: with `call`, or with `input`")
        self._check_groups()
        if self.checker is not None or self.interactor is not None:
            self._check_judge()
        if self.calls_functions:
            if stray := [f"`{name}`" for name in _OF_PROGRAMS if name in self.model_fields_set]:
                raise ValueError(f"leave out {', '.join(stray)}: cases with `call` are calls of Python functions")
        elif self.language is None and self.run is None:
            raise ValueError("cases with `input` need `language`, or `run`, a bash command that runs $SOLUTION")
        elif self.compare != "tokens" and (self.relative_tolerance or self.absolute_tolerance):
            raise ValueError("tolerances need `compare: tokens`")
        elif inside := [path for path in (self.solution, *self.files) if path.startswith(EMPTIED)]:
            raise ValueError(
                f"{inside[0]}: choose another folder, because {', '.join(EMPTIED)} are emptied after a case"
            )
        return self

    def _check_tests(self) -> None:
        if stray := [f"`{name}`" for name in (*_OF_CASES, *_OF_PROGRAMS) if name in self.model_fields_set]:
            raise ValueError(f"leave out {', '.join(stray)}: they count for cases")
        if self.credit == "groups" or self.eval_from_snapshot:
            raise ValueError("leave out `credit: groups` and `eval_from_snapshot`: tests have neither")

    def _check_judge(self) -> None:
        if self.checker is not None and self.interactor is not None:
            raise ValueError("set either `checker` or `interactor`")
        if {"compare", "relative_tolerance", "absolute_tolerance"} & self.model_fields_set:
            raise ValueError("leave out `compare` and the tolerances: the judge decides what is right")
        if self.checker is not None and self.checker.language == "python" and "def check(" not in self.checker.source:
            raise ValueError("`checker.source` in Python needs a function `check(input, output, answer)`")

    def _check_groups(self) -> None:
        used = Counter(case.group for case in self.cases)
        if self.credit == "groups":
            if used.keys() != self.points.keys():
                raise ValueError(
                    "`credit: groups` needs `points` for each group of the cases, and a `group` in each case"
                )
        elif self.points or used.keys() != {None}:
            raise ValueError("groups and points count with `credit: groups` alone")

    @property
    def calls_functions(self) -> bool:
        return self.cases[0].input is None

    @classmethod
    def offers_tools(cls, fields: Mapping[str, Any]) -> bool:
        return True
