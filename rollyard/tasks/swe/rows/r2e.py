"""R2E-Gym and SWE-Next: images made by R2E, with the tests in `r2e_tests` and a map of the statuses that are expected."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rollyard.tasks.rows.dataset_row import DatasetRow, RowRefused
from rollyard.tasks.swe.rows.patches import difference
from rollyard.tasks.swe.rows.row import EvalSpecs, Fields, registry_image

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_ISSUE = re.compile(r"\[ISSUE\](.*)\[/ISSUE\]", re.DOTALL)
_STATUSES = ("PASSED", "FAILED", "ERROR")
_SETUP = """\
ln -sfn "$PWD/.venv" /root/.venv
mkdir -p /root/.local/bin
find .venv/bin -type f -executable -exec ln -sf "$PWD"/{} /root/.local/bin/ \\;
find . -name '*.pyc' -delete
find . -name __pycache__ -prune -exec rm -rf {} +
"""
_LINK = "[ -e r2e_tests ] || ln -s /r2e_tests r2e_tests\n"
_PYTEST = (
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 PYTHONWARNINGS='ignore::UserWarning,ignore::SyntaxWarning' "
    ".venv/bin/python -W ignore -m pytest -rA r2e_tests\n"
)


def r2e_gym(row: DatasetRow, _: EvalSpecs) -> Fields:
    issue = _ISSUE.search(row.text("problem_statement"))
    expected = {name.split(" - ")[0]: status for name, status in _expected(row).items()}
    return {
        **_image(row.text("docker_image")),
        "statement": (issue[1] if issue else row.text("problem_statement")).strip(),
        "setup": _SETUP,
        "script": f"{_LINK}bash run_tests.sh\n",
        "seconds": 300.0,
        "log_parser": "r2e-dotted",
        "expected": expected,
        "reference_patch": _commit_patch(row),
    }


def swe_next(row: DatasetRow, _: EvalSpecs) -> Fields:
    passing = [name for name, status in _expected(row).items() if status == "PASSED"]
    named = {_COLOUR.sub("", name) for name in row.names("FAIL_TO_PASS")}
    return {
        **_image(row.text("image_ref" if row.has("image_ref") else "docker_image")),
        "statement": row.text("problem_statement"),
        "script": _LINK + _PYTEST,
        "log_parser": "r2e",
        "fail_to_pass": [name for name in passing if name in named],
        "pass_to_pass": [name for name in passing if name not in named],
        "test_patch": row.text_or_empty("test_patch") or None,
        "reference_patch": row.text("patch"),
    }


def _image(name: str) -> Fields:
    hidden = ["run_tests.sh", "r2e_tests"]
    return {
        "image": registry_image(name),
        "repository": "/testbed",
        "hidden": [*hidden, "/r2e_tests", "/root/r2e_tests", "/root/run_tests.sh"],
        "test_paths": [f"/{path}" for path in hidden],
    }


def _expected(row: DatasetRow) -> dict[str, str]:
    found = {_COLOUR.sub("", name): status for name, status in row.mapping("expected_output_json").items() if name}
    if wrong := set(found.values()) - set(_STATUSES):
        raise RowRefused(f"`expected_output_json` has the unknown status {sorted(map(str, wrong))[0]}")
    if not found:
        raise RowRefused("`expected_output_json` names no test")
    return found


def _commit_patch(row: DatasetRow) -> str | None:
    """Return the commit's changes of files that are not tests; None if the row does not tell them."""
    if not row.has("parsed_commit_content"):
        return None
    try:
        diffs = row.mapping("parsed_commit_content")["file_diffs"]
        patch = "".join(_file_patch(diff) for diff in diffs if not _is_test(diff["header"]["file"]["path"]))
    except (KeyError, TypeError, AttributeError):
        raise RowRefused("`parsed_commit_content` has not the form of R2E-Gym's commits") from None
    return patch or None


def _file_patch(diff: Mapping[str, Any]) -> str:
    old, new = diff["old_file_content"], diff["new_file_content"]
    names = [(diff.get(side) or {}).get("path") for side in ("minus_file", "plus_file")]
    old, new = (None if name == "/dev/null" else text for name, text in zip(names, (old, new), strict=True))
    return difference(diff["header"]["file"]["path"], old, new)


def _is_test(path: str) -> bool:
    *folders, name = path.lower().split("/")
    return not {"test", "tests"}.isdisjoint(folders) or name.startswith("test_") or name.endswith("_test.py")
