"""SWE-bench Pro and nv-internal-1: a row brings a script that runs the tests, and a program that reads their output."""

from __future__ import annotations

import re
import shlex

from rollyard.tasks.rows.dataset_row import DatasetRow, RowRefused
from rollyard.tasks.swe.output_marks import START
from rollyard.tasks.swe.rows.bash_text import TRUST, heard_after, written
from rollyard.tasks.swe.rows.patches import changed_paths, pattern
from rollyard.tasks.swe.rows.row import EvalSpecs, Fields, registry_image, statement

_RUN = "/tmp/run_script.sh"
_HEADINGS = (("Requirements", "requirements"), ("New interfaces introduced", "interface"))


def pro(row: DatasetRow, _: EvalSpecs) -> Fields:
    if not row.has("run_script", "parser_script"):
        raise RowRefused(
            "it has no `run_script` and `parser_script`: add those of the evaluator's repository (run_scripts/INSTANCE_ID)"
        )
    digest = row.text_or_empty("image_digest")
    image = f"jefzda/sweap-images:{row.text('dockerhub_tag')}" + (f"@{digest}" if digest else "")
    scripts = row.text("run_script"), row.text("parser_script")
    return _fields(row, image, scripts, row.names("fail_to_pass"), row.names("pass_to_pass"))


def nv_internal(row: DatasetRow, _: EvalSpecs) -> Fields:
    chosen = {
        name: row.names(f"{name}_select" if row.has(f"{name}_select") else name)
        for name in ("fail_to_pass", "pass_to_pass")
    }
    scripts = row.text("run_script.sh"), row.text("parsing_script.py")
    return _fields(row, _image(row), scripts, chosen["fail_to_pass"], chosen["pass_to_pass"])


def _fields(row: DatasetRow, image: str, scripts: tuple[str, str], failing: list[str], passing: list[str]) -> Fields:
    run, parser = scripts
    restore = row.text_or_empty("before_repo_set_cmd").strip().split("\n")[-1]
    files = ",".join(row.names("selected_test_files_to_run"))
    before = [*_exports(row), TRUST, restore, written(_RUN, run)]
    tests = changed_paths(row.text_or_empty("test_patch")) or _restored(restore)
    return {
        "statement": statement(row, *_HEADINGS),
        "image": registry_image(image),
        "repository": "/app",
        "base_commit": row.text("base_commit"),
        "script": heard_after("\n".join(before), f"echo '{START}'\nbash {_RUN} {files}"),  # the tests are in place then
        "parser_script": parser,
        "fail_to_pass": failing,
        "pass_to_pass": passing,
        "test_paths": [pattern(path) for path in tests],
        "reference_patch": row.text_or_empty("patch") or None,
    }


def _exports(row: DatasetRow) -> list[str]:
    """Return the ENV lines of the row's Dockerfiles as exports."""
    lines = [
        line.strip()
        for name in ("base_dockerfile", "instance_dockerfile")
        for line in row.text_or_empty(name).split("\n")
    ]
    found = []
    for words in (line.removeprefix("ENV ").strip() for line in lines if line.startswith("ENV ")):
        name, blank, value = words.partition(" ")
        found.append(f'export {name}="{value.strip()}"' if blank and "=" not in name else f"export {words}")
    return found


def _restored(command: str) -> list[str]:
    """Return the files that `git checkout COMMIT -- FILE ...` brings back."""
    checkout = re.fullmatch(r"git checkout \w+ -- (.+)", command.strip())
    try:
        return shlex.split(checkout[1]) if checkout else []
    except ValueError:
        return []


def _image(row: DatasetRow) -> str:
    for name in ("image", "image_name", "docker_image"):
        if row.has(name):
            return row.text(name)
    if row.has("dockerhub_tag"):
        return f"jefzda/sweap-images:{row.text('dockerhub_tag')}"
    formatter = row.get("container_formatter")
    form = formatter[0] if isinstance(formatter, list) and formatter else formatter
    if isinstance(form, str) and form:
        return form.replace("{instance_id}", row.text("instance_id"))
    raise RowRefused("it names no image: add a field `image`")
