"""SWE-rebench V2: 20 languages; a row has an image, the commands to install and to test, and the name of a parser."""

from __future__ import annotations

from typing import Any

from rollyard.tasks.rows.dataset_row import DatasetRow, RowRefused
from rollyard.tasks.swe.rows.bash_text import heard_after
from rollyard.tasks.swe.rows.row import EvalSpecs, Fields, own_parser, registry_image, statement

_NO_INTERFACE = "No new interfaces are introduced."


def convert(row: DatasetRow, _: EvalSpecs) -> Fields:
    config = row.mapping("install_config")
    tests = _commands(config.get("test_cmd"))
    if not tests:
        raise RowRefused("its `install_config` has no `test_cmd`")
    further = (("New interfaces to add:", "interface"),) if _has_interface(row) else ()
    return {
        "statement": statement(row, *further),
        "image": registry_image(row.text("image_name")),
        "repository": f"/{row.text('repo').rpartition('/')[2]}",
        "base_commit": row.text("base_commit"),
        "script": heard_after("\n".join(_commands(config.get("install"))), "\n".join(tests)),
        "log_parser": own_parser("swe-rebench", DatasetRow(config).text("log_parser")),
        "fail_to_pass": row.names("FAIL_TO_PASS"),
        "pass_to_pass": row.names("PASS_TO_PASS"),
        "test_patch": row.text_or_empty("test_patch") or None,
        "reference_patch": row.text("patch"),
    }


def _commands(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [str(item) for item in value or []]


def _has_interface(row: DatasetRow) -> bool:
    return row.text_or_empty("interface").strip() not in ("", _NO_INTERFACE)
