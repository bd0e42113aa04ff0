"""Swemer (agentic v1 and v2): a row has an image, the patch of its tests, and the command that runs them."""

from __future__ import annotations

from rollyard.tasks.rows.dataset_row import DatasetRow, RowRefused
from rollyard.tasks.swe.rows.bash_text import heard_after
from rollyard.tasks.swe.rows.row import EvalSpecs, Fields, registry_image, statement


def convert(row: DatasetRow, _: EvalSpecs) -> Fields:
    failing, passing = row.names("FAIL_TO_PASS"), row.names("PASS_TO_PASS")
    if row.text("test_framework") != "pytest" or not all("::" in name for name in failing + passing):
        raise RowRefused("of this family, rows with pytest and its own names of tests (FILE::TEST) are converted")
    return {
        "statement": statement(row),
        "image": registry_image(row.text("image_ref")),
        "repository": row.text("workdir"),
        "base_commit": row.text_or_empty("base_commit") or None,
        "script": heard_after('export PYTEST_ADDOPTS="-rA ${PYTEST_ADDOPTS:-}"', row.text("test_command")),
        "log_parser": "pytest",
        "fail_to_pass": failing,
        "pass_to_pass": passing,
        "test_patch": row.text("test_patch"),
        "reference_patch": row.text("patch"),
    }
