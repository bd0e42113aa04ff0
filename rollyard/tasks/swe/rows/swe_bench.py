"""SWE-bench (Lite, Verified, Multilingual): rows of 5.x have image, script and parser; classic rows have none of them."""

from __future__ import annotations

from rollyard.tasks.rows.dataset_row import DatasetRow, RowRefused
from rollyard.tasks.swe.rows.patches import patterns
from rollyard.tasks.swe.rows.row import EvalSpec, EvalSpecs, Fields, own_parser, registry_image, statement


def complete(row: DatasetRow, _: EvalSpecs) -> Fields:
    if row.get("eval_type") not in (None, "", "pass_and_fail"):
        raise RowRefused(
            f"its `eval_type` is {row['eval_type']}: its log names failures alone, and a test that never ran would pass"
        )
    return _fields(row, EvalSpec(row.text("eval_script"), row.text("log_parser"), row.text("image")))


def classic(row: DatasetRow, specs: EvalSpecs) -> Fields:
    names = {name: row.text(name) for name in ("instance_id", "repo", "version", "base_commit", "test_patch")}
    images = row.get("image_assets")
    return _fields(row, specs.eval_spec("swe-bench", names | {"image_assets": images} if images else names))


def _fields(row: DatasetRow, spec: EvalSpec) -> Fields:
    if row.has("image_assets") and any(dict(row.mapping("image_assets")).values()):
        raise RowRefused("its tests need images (`image_assets`), which a row cannot carry")
    return {
        "statement": statement(row),
        "image": registry_image(spec.image),
        "repository": "/testbed",
        "base_commit": row.text("base_commit"),
        "script": spec.script,
        "log_parser": own_parser("swebench", spec.log_parser, row.text("instance_id")),
        "fail_to_pass": row.names("FAIL_TO_PASS"),
        "pass_to_pass": row.names("PASS_TO_PASS"),
        "test_paths": patterns(row.text_or_empty("test_patch")),  # the script writes them by itself
        "reference_patch": row.text("patch"),
    }
