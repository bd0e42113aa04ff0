"""Small repositories with hidden tests, and an issue in each of their modules, in the words that the tiny-policy knows.

An image has a repository with the right code. The task's `setup` puts a bug into its only commit.
"""

from __future__ import annotations

import difflib
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from examples.tiny_policy.families import FILES, CodeProblem, draw_code
from rollyard.tasks import system_prompts

COMMIT = (
    "git -c safe.directory='*' -c user.name=task -c user.email=task@localhost commit --quiet --all --amend --no-edit"
)
CASES = 3
"""Cases of each function in the hidden tests. So few do not see every bug; `rollyard tasks check` finds such tasks."""


class Repository:
    """Modules with one function each, and the hidden tests of all. The policy knows eight names of modules."""

    def __init__(self, name: str, rng: random.Random, modules: int = len(FILES), *, held_out: bool = False) -> None:
        self.name, self.held_out = name, held_out
        self.problems: dict[str, CodeProblem] = {}
        while len(self.problems) < modules:
            problem = draw_code(rng, held_out)
            self.problems.setdefault(Path(problem.path).stem, problem)
        self.bugs = {module: _bug(problem, rng) for module, problem in self.problems.items()}
        self.tests = "import unittest\n\n\nclass Hidden(unittest.TestCase):\n"
        for module, problem in self.problems.items():
            self.tests += f"    def test_{module}(self):\n        import {module}\n"
            cases = problem.task()["cases"]
            for case in rng.sample(cases, min(CASES, len(cases))):
                self.tests += f"        self.assertEqual({module}.{case['call']}, {case['expect']})\n"

    def write(self, folder: Path) -> None:
        """Write the modules, the context of the image."""
        folder.mkdir(parents=True)
        for module, problem in self.problems.items():
            (folder / f"{module}.py").write_text(problem.source + "\n")

    def tasks(self, image: str) -> list[dict[str, Any]]:
        """Return a task for each module."""
        return [self._task(module, image) for module in self.problems]

    def _task(self, module: str, image: str) -> dict[str, Any]:
        file, right, wrong = f"{module}.py", self.problems[module].source + "\n", self.bugs[module].source + "\n"
        lines = (text.splitlines(keepends=True) for text in (wrong, right))
        test = {name: f"test_{name} (test_hidden.Hidden.test_{name})" for name in self.problems}
        return {
            "kind": "swe",
            "image": image,
            "repository": "/workspace",
            "system": system_prompts.CODE,  # the only one that the policy knows for files
            "statement": self.problems[module].text,
            "setup": f"cat > {file} <<'END'\n{wrong}END\n{COMMIT}",
            "test_files": {"test_hidden.py": self.tests},
            "script": "python3 -m unittest -v test_hidden",
            "seconds": 20,
            "log_parser": "unittest",
            "fail_to_pass": [test.pop(module)],
            "pass_to_pass": [*test.values()],
            "reference_patch": "".join(difflib.unified_diff(*lines, f"a/{file}", f"b/{file}")),
            "metadata": {"repository": self.name, "held_out": self.held_out},
        }


def _bug(problem: CodeProblem, rng: random.Random) -> CodeProblem:
    """Return the problem with a constant that is one too large."""
    first = rng.choice([*re.finditer(r"\d+", problem.expression)])
    start, end = first.span()
    number = int(first[0]) + 1
    return replace(problem, expression=f"{problem.expression[:start]}{number}{problem.expression[end:]}")
