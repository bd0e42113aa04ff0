"""Scale-SWE: Python repositories; the failing tests come as a patch, as a test file, or as both."""

from __future__ import annotations

import shlex

from rollyard.tasks.rows.dataset_row import DatasetRow
from rollyard.tasks.swe.rows.bash_text import TRUST
from rollyard.tasks.swe.rows.row import EvalSpecs, Fields, registry_image, statement

_WRITTEN_END = "\\n"
"""A backslash and an n, with which the published commands end."""
_TEST_FILE = "test_fail_to_pass.py"
"""Name of the test file in the lists of tests."""


def convert(row: DatasetRow, _: EvalSpecs) -> Fields:
    failing, passing = row.names("FAIL_TO_PASS"), row.names("PASS_TO_PASS")
    files = dict.fromkeys(name.split("::", 1)[0].strip() for name in failing + passing)
    test_file = row.text_or_empty("f2p_script")
    return {
        "statement": statement(row),
        "image": registry_image(row.text("image_url")),
        "repository": row.text("workdir"),
        "setup": f"{TRUST}\n{row.text('pre_commands').replace(_WRITTEN_END, chr(10)).strip()}\n",
        "script": f"python -m pytest -rA --tb=no -p no:cacheprovider {shlex.join(filter(None, files))}\n",
        "log_parser": "pytest",
        "fail_to_pass": failing,
        "pass_to_pass": passing,
        "test_files": {_TEST_FILE: test_file} if test_file.strip() else {},
        "test_patch": row.text_or_empty("f2p_patch") or None,
        "reference_patch": row.text("patch"),
    }
