"""The families of rows: how a row's fields tell them, and how they are converted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rollyard.tasks.rows.dataset_row import DatasetRow, RowRefused
from rollyard.tasks.swe.rows import r2e, scale_swe, swe_bench, swe_bench_pro, swe_gym, swe_rebench, swe_smith, swemer
from rollyard.tasks.swe.rows.row import EvalSpecs, Fields


@dataclass(frozen=True)
class RowFamily:
    name: str
    is_family_of: Callable[[DatasetRow], bool]
    convert: Callable[[DatasetRow, EvalSpecs], Fields]
    """Pure, apart from the question to `EvalSpecs`. Raises RowRefused."""


def _has(*names: str) -> Callable[[DatasetRow], bool]:
    return lambda row: row.has(*names)


def _is_smith(row: DatasetRow) -> bool:
    return row.has("patch", "FAIL_TO_PASS") and "swesmith" in f"{row.get('image_name')} {row.get('repo')}"


def _is_classic(row: DatasetRow) -> bool:
    return row.has("repo", "instance_id", "base_commit", "test_patch", "version")


FAMILIES = (
    RowFamily("swe-bench", _has("image", "eval_script", "log_parser"), swe_bench.complete),
    RowFamily(
        "swe-bench-pro",
        lambda row: row.has("dockerhub_tag") or row.has("run_script", "parser_script"),
        swe_bench_pro.pro,
    ),
    RowFamily("nv-internal-1", _has("run_script.sh", "parsing_script.py"), swe_bench_pro.nv_internal),
    RowFamily("swe-next", _has("expected_output_json", "FAIL_TO_PASS"), r2e.swe_next),
    RowFamily("r2e-gym", _has("expected_output_json", "docker_image"), r2e.r2e_gym),
    RowFamily("scale-swe", _has("image_url", "pre_commands"), scale_swe.convert),
    RowFamily("swe-smith", _is_smith, swe_smith.convert),
    RowFamily("swe-rebench", _has("install_config", "image_name"), swe_rebench.convert),
    RowFamily("swemer", _has("image_ref", "test_framework", "test_command"), swemer.convert),
    RowFamily("swe-gym", lambda row: _is_classic(row) and swe_gym.has_repository(row), swe_gym.convert),
    RowFamily("swe-bench-classic", _is_classic, swe_bench.classic),
)
"""The first one whose fields a row has is the row's."""
NAMES = tuple(family.name for family in FAMILIES)
_REFUSED = (
    (
        ("test_sh", "grade_py"),
        "its own grader writes one reward and no status of a test, so it cannot be judged by lists",
    ),
    (("document", "passed_ptp"), "its family deletes the image's sources by a program that the row does not carry"),
    (("verifier_metadata", "task_id"), "it only names a task folder of Harbor, and holds no tests"),
    (("expected_action",), "it asks for one next tool call, which is compared, and holds no tests"),
    (("options", "expected_answer"), "it asks which of several patches is right, and holds no tests"),
)
"""Fields of known rows that no lists of tests can judge, and the reason."""


def unwrapped(fields: Mapping[str, Any]) -> DatasetRow:
    """Return the row inside, for rows that Nemotron's blends wrap into a request to a model."""
    row = DatasetRow(fields)
    if row.has("instance_id", "problem_statement"):
        return row
    if isinstance(fields.get("instance"), Mapping):
        return DatasetRow(fields["instance"])
    params = fields.get("responses_create_params")
    metadata = params.get("metadata") if isinstance(params, Mapping) else None
    if isinstance(metadata, Mapping) and DatasetRow(metadata).has("instance_dict"):
        return DatasetRow({**metadata, **DatasetRow(metadata).mapping("instance_dict")})
    return row


def family_of(row: DatasetRow) -> RowFamily:
    """Return the row's family. Raises RowRefused."""
    for family in FAMILIES:
        if family.is_family_of(row):
            return family
    for fields, reason in _REFUSED:
        if row.has(*fields):
            raise RowRefused(reason)
    raise RowRefused(
        f"no family has rows with the fields {', '.join(sorted(row)) or '(none)'}; choose with --family one of "
        f"{', '.join(NAMES)}"
    )


def family_named(name: str) -> RowFamily:
    return next(family for family in FAMILIES if family.name == name)
