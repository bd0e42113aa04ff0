"""Rows and images as the families have them."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollyard.tasks.swe.rows.bash_text import with_input

Fields = dict[str, Any]
PARSERS = {
    "python": "parse_log_pytest",
    "javascript": "parse_log_tap",
    "go": "parse_log_gotest",
    "rust": "parse_log_cargo",
}
"""The name that SWE-bench and SWE-rebench have for the parser of a language's tests."""


@dataclass
class Made:
    """Content of two releases, whatever the family."""

    language: str
    name: str
    version: str
    base: str
    """Commit of the older release."""
    patch: str
    bug: str
    """The reverse of `patch`."""
    test_patch: str
    sources: dict[str, list[str | None]]
    """Path of a file that `patch` changes -> its older and its newer text."""
    files: Sequence[str]
    """Files of tests that run."""
    command: str
    failing: Sequence[str] = ()
    kept: Sequence[str] = ()

    @property
    def statement(self) -> str:
        return f"Bring {self.name.partition(':')[0]} to what its release {self.version} does: its tests must pass."

    @property
    def apply_patch(self) -> str:
        return with_input("git apply --whitespace=nowarn -", self.patch)

    @property
    def apply_tests(self) -> str:
        return with_input("git apply --whitespace=nowarn -", self.test_patch)


class SweBench:
    """Rows of 5.x: one script puts the tests in place and runs them between two marks."""

    place = "/testbed"

    def prepare(self, made: Made, repository: Path) -> None:
        """Complete the context of the image's build."""

    def dockerfile(self) -> list[str]:
        return []

    def before(self, made: Made) -> str:
        """Return what is done to the image before the work, by hand."""
        return ""

    def put_tests(self, made: Made) -> str:
        return made.apply_tests

    def command(self, made: Made) -> str:
        return made.command

    def row(self, made: Made, image: str) -> Fields:
        script = "#!/bin/bash\nset -uxo pipefail\ncd /testbed\ngit config --global --add safe.directory /testbed\n"
        script += f"git diff {made.base}\ngit checkout {made.base} {' '.join(made.files)}\n{made.apply_tests}"
        script += f": '>>>>> Start Test Output'\n{made.command}\n: '>>>>> End Test Output'\n"
        return {
            **_classic(made), "image": image, "eval_script": script, "log_parser": PARSERS[made.language],
            "eval_type": "pass_and_fail",
        }  # fmt: skip


class SweRebench(SweBench):
    """Rows of V2: a repository with the package's name at the root, and commands."""

    place = "/repository"

    def row(self, made: Made, image: str) -> Fields:
        config = {"install": ["true"], "test_cmd": [made.command], "log_parser": PARSERS[made.language]}
        return {**_classic(made), "repo": "acme/repository", "image_name": image, "install_config": config}


class SweBenchPro(SweBench):
    """Rows with a script and a program that reads its output. The image has the commit with the tests."""

    place = "/app"

    def put_tests(self, made: Made) -> str:
        return f"git checkout -q newer -- {' '.join(made.files)}\n"

    def row(self, made: Made, image: str) -> Fields:
        parser = _PRO_PARSER.replace("PASSED_LINE", repr(_PASSED_LINE[made.language]))
        return {
            "repo": "acme/app", "instance_id": f"instance_{made.name}", "base_commit": made.base, "patch": made.patch,
            "test_patch": made.test_patch, "problem_statement": json.dumps(made.statement), "requirements": "None.",
            "repo_language": made.language, "fail_to_pass": repr(list(made.failing)), "pass_to_pass": repr(list(made.kept)),
            "before_repo_set_cmd": f"git reset --hard {made.base}\ngit checkout newer -- {' '.join(made.files)}",
            "selected_test_files_to_run": json.dumps(list(made.files)), "image_name": image,
            "run_script.sh": f"#!/bin/bash\n{made.command}\n", "parsing_script.py": parser,
        }  # fmt: skip


_PASSED_LINE = {
    "python": r"PASSED (.*)", "javascript": r"ok \d+ (.*)", "go": r"\s*--- PASS: (\S+) .*", "rust": r"test (\S+) \.\.\. ok",
}  # fmt: skip
_PRO_PARSER = """\
import json, re, sys
found = {}
for line in open(sys.argv[1], errors="replace"):
    line = line.rstrip("\\n")
    if match := re.fullmatch(PASSED_LINE, line):
        found.setdefault(match[1], "PASSED")
    elif match := re.fullmatch(r"not ok \\d+ (.*)|\\s*--- FAIL: (\\S+) .*|test (\\S+) \\.\\.\\. FAILED", line):
        found[match[1] or match[2] or match[3]] = "FAILED"
json.dump({"tests": [{"name": name, "status": status} for name, status in found.items()]}, open(sys.argv[3], "w"))
"""


class SweSmith(SweBench):
    """Rows whose patch is the bug. The image has the right code and the tests."""

    def __init__(self) -> None:
        self.repositories = {"sqlparse": "andialbrecht__sqlparse.e57923b3", "click": "pallets__click.fde47b4b"}
        """Names of the repositories that the family's package knows."""

    def prepare(self, made: Made, repository: Path) -> None:
        _git(repository, "reset", "-q", "--hard", "newer")
        shutil.rmtree(repository / ".git")
        _git(repository, "init", "-q", "-b", "main")
        _git(repository, "add", "-A", "-f")
        _git(repository, "commit", "-q", "-m", "Initial commit")

    def before(self, made: Made) -> str:
        return with_input("git apply --whitespace=nowarn -", made.bug)

    def put_tests(self, made: Made) -> str:
        return ""

    def row(self, made: Made, image: str) -> Fields:
        repository = self.repositories[made.name]
        return {
            "instance_id": f"{repository}.release__{made.version.replace('.', '')}", "repo": f"swesmith/{repository}",
            "patch": made.bug, "FAIL_TO_PASS": list(made.failing), "PASS_TO_PASS": list(made.kept),
            "image_name": image, "problem_statement": made.statement,
        }  # fmt: skip


class R2eGym(SweBench):
    """Rows with the status that each test must have. The image has the tests in a folder of their own."""

    def prepare(self, made: Made, repository: Path) -> None:
        tests = Path(made.files[0]).parts[0]
        _git(repository, "checkout", "-q", "newer", "--", tests)
        shutil.copytree(repository / tests, repository.parent / "r2e_tests")
        _git(repository, "reset", "-q", "--hard")
        chosen = {Path(name).name for name in made.files}
        for path in (repository.parent / "r2e_tests").rglob("test_*.py"):
            if path.name not in chosen:
                path.unlink()
        python = repository / ".venv/bin/python"
        python.parent.mkdir(parents=True)
        python.write_text('#!/bin/sh\nexec /usr/bin/python3 "$@"\n')
        python.chmod(0o755)
        (repository / "run_tests.sh").write_text(f"{self.command(made)}\n")

    def dockerfile(self) -> list[str]:
        return ["COPY r2e_tests/ /r2e_tests/"]

    def put_tests(self, made: Made) -> str:
        return "ln -s /r2e_tests r2e_tests\n"

    def command(self, made: Made) -> str:
        return ".venv/bin/python -W ignore -m pytest -rA r2e_tests"

    def row(self, made: Made, image: str) -> Fields:
        names = [_in_class(name).replace("::", ".") for name in (*made.failing, *made.kept)]
        diffs = [_file_diff(path, *texts) for path, texts in made.sources.items()]
        return {
            "repo_name": made.name, "docker_image": image, "commit_hash": made.base,
            "expected_output_json": json.dumps(dict.fromkeys(names, "PASSED")), "problem_statement":
            f"Look.\n[ISSUE]\n{made.statement}\n[/ISSUE]\n", "parsed_commit_content": json.dumps({"file_diffs": diffs}),
        }  # fmt: skip


class SweNext(R2eGym):
    """Rows with the expected statuses, of which the passing ones count, and with the tests that failed before."""

    def row(self, made: Made, image: str) -> Fields:
        names = [_in_class(name) for name in (*made.failing, *made.kept)]
        return {
            "repo": made.name, "instance_id": f"{made.name}-{made.version}", "image_ref": image, "patch": made.patch,
            "expected_output_json": json.dumps(dict.fromkeys(names, "PASSED")), "problem_statement": made.statement,
            "FAIL_TO_PASS": [_in_class(name) for name in made.failing], "PASS_TO_PASS": [],
        }  # fmt: skip


FAMILIES: dict[str, SweBench] = {
    "swe-bench": SweBench(), "swe-rebench": SweRebench(), "nv-internal-1": SweBenchPro(), "swe-smith": SweSmith(),
    "r2e-gym": R2eGym(), "swe-next": SweNext(),
}  # fmt: skip


def _classic(made: Made) -> Fields:
    return {
        "repo": "acme/package", "instance_id": f"acme__{made.name.partition(':')[0]}-{made.version}", "base_commit": made.base,
        "patch": made.patch, "test_patch": made.test_patch, "problem_statement": made.statement, "hints_text": "",
        "created_at": "2026-01-01T00:00:00Z", "version": made.version, "FAIL_TO_PASS": json.dumps(list(made.failing)),
        "PASS_TO_PASS": json.dumps(list(made.kept)),
    }  # fmt: skip


def _file_diff(path: str, old: str | None, new: str | None) -> Fields:
    sides = {
        "minus_file": f"a/{path}" if old is not None else "/dev/null",
        "plus_file": f"b/{path}" if new is not None else "/dev/null",
    }
    named = {side: {"path": name} for side, name in sides.items()}
    return {"header": {"file": {"path": path}}, **named, "old_file_content": old or "", "new_file_content": new or ""}


def _in_class(node: str) -> str:
    return node.partition("::")[2].partition(" - ")[0]


def _git(folder: Path, *words: str) -> str:
    settings = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "safe.directory=*"]
    return subprocess.run(["git", "-C", folder, *settings, *words], capture_output=True, text=True, check=True).stdout
