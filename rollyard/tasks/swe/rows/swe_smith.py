"""SWE-smith: the row's patch is the bug, and its reverse is the right change.

The family keeps each bug as a branch of a mirror on GitHub, and tests by a class for each repository in its package. Here the
bug is put into the image's only commit, so that no history tells the right code.
"""

from __future__ import annotations

import shlex

from rollyard.tasks.rows.dataset_row import DatasetRow, RowRefused
from rollyard.tasks.swe.rows.bash_text import TRUST, with_input
from rollyard.tasks.swe.rows.patches import changed_paths, pattern, reversed_patch
from rollyard.tasks.swe.rows.row import EvalSpecs, Fields, own_parser, registry_image, statement

_SAME_PARSER = {"AutogradAc044f0d": "PythonProfile", "Paramiko23f92003": "PythonProfile"}
"""Profiles with a parser of their own for lines of pytest that ours reads too."""


def convert(row: DatasetRow, specs: EvalSpecs) -> Fields:
    failing, passing = row.names("FAIL_TO_PASS"), row.names("PASS_TO_PASS")
    names = {"instance_id": row.text("instance_id"), "FAIL_TO_PASS": failing, "PASS_TO_PASS": passing}
    spec = specs.eval_spec("swe-smith", names | ({"repo": row.text("repo")} if row.has("repo") else {}))
    if not all("::" in name for name in failing):
        raise RowRefused("its failing tests are named without their files, so they cannot be hidden from the agent")
    hidden = sorted({name.split("::", 1)[0] for name in failing})
    files = sorted({name.split("::", 1)[0] for name in passing} | {*hidden})
    patch = row.text("patch")
    return {
        "statement": statement(row),
        "image": registry_image(_image(row, spec.image)),
        "repository": "/testbed",
        "setup": _setup(patch),
        "hidden": hidden,
        "script": spec.script,
        "seconds": spec.seconds,
        "log_parser": own_parser("swe-smith", _SAME_PARSER.get(spec.log_parser, spec.log_parser)),
        "fail_to_pass": failing,
        "pass_to_pass": passing,
        "test_paths": [pattern(path) for path in files],
        "reference_patch": reversed_patch(patch),
    }


def _image(row: DatasetRow, default: str) -> str:
    name = row.text_or_empty("image_name") or default
    return name if "/" in name else f"jyangballin/{name.replace('__', '_1776_')}:latest"


def _setup(bug: str) -> str:
    paths = shlex.join(changed_paths(bug))
    commit = "git -c user.name=task -c user.email=task@localhost commit --quiet --amend --no-edit --no-verify"
    apply = with_input("git apply --whitespace=nowarn -", bug)
    return f"set -e\n{TRUST}\n{apply}git add -A -- {paths}\n{commit}\n"
