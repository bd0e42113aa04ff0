"""Packages of families in an environment of their own, for rows that do not say how they are tested."""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rollyard.core.errors import Unavailable
from rollyard.tasks.rows.dataset_row import RowRefused
from rollyard.tasks.swe.rows import specs_program
from rollyard.tasks.swe.rows.row import EvalSpec

PACKAGES = ("swebench==4.1.0", "swesmith==0.0.9", "unidiff==0.7.5")


class NoPackages:
    """In place of the packages: refuses each row that needs them."""

    def close(self) -> None:
        pass

    def eval_spec(self, family: str, row: Mapping[str, Any]) -> EvalSpec:
        raise RowRefused("it does not say how it is tested, and --no-environment forbids the family's own package")


class ReleasedPackages:
    """The packages, installed at the first question, and the process that answers with them."""

    def __init__(self, cache: Path, say: Callable[[str], None]) -> None:
        """`cache`: folder in which the environment is kept. `say`: called with a sentence before what takes long."""
        self._folder = cache / "task-import" / "-".join(PACKAGES)
        self._python = self._folder / "bin" / "python"
        self._say = say
        self._program: subprocess.Popen[str] | None = None

    def close(self) -> None:
        if self._program is not None:
            self._program.communicate()  # closes its standard input, which ends it

    def eval_spec(self, family: str, row: Mapping[str, Any]) -> EvalSpec:
        """Return how the family's package tests the row. Raises RowRefused, and Unavailable without the packages."""
        program = self._program = self._program or self._start()
        assert program.stdin is not None
        assert program.stdout is not None
        program.stdin.write(json.dumps({"family": family, "row": row}) + "\n")
        program.stdin.flush()
        answer = json.loads(
            program.stdout.readline() or '{"refused": "the process of the family\'s package has ended"}'
        )
        if "refused" in answer:
            raise RowRefused(answer["refused"])
        return EvalSpec(**answer)

    def _start(self) -> subprocess.Popen[str]:
        self._folder.parent.mkdir(parents=True, exist_ok=True)
        with self._folder.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (self._folder / "complete").exists():
                self._install()
        command = [str(self._python), "-I", specs_program.__file__]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def _install(self) -> None:
        self._say(f"installing {', '.join(PACKAGES)} in an environment of their own, {self._folder}; this happens once")
        shutil.rmtree(self._folder, ignore_errors=True)
        pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", *PACKAGES]
        for command in ([sys.executable, "-m", "venv", str(self._folder)], [str(self._python), *pip]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                said = (done.stderr or done.stdout).strip().splitlines()
                raise Unavailable(
                    f"{' and '.join(PACKAGES[:2])} cannot be installed: {said[-1] if said else 'no reason is given'}. Name an "
                    "index with PIP_INDEX_URL, or refuse the rows that need them with --no-environment"
                )
        (self._folder / "complete").touch()
