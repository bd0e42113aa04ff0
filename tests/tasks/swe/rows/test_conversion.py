"""Rows become tasks with the images, commands and lists of their family, or are refused with a reason."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rollyard.tasks.rows.dataset_row import Converted, Unconverted
from rollyard.tasks.swe.rows.conversion import convert
from rollyard.tasks.swe.rows.families import NAMES, family_named
from rollyard.tasks.swe.rows.released_packages import NoPackages, ReleasedPackages
from tests.support import swe_rows

SHIPPED = {
    "swebench": "swe-bench-classic", "swebench_pro": "swe-bench-pro", "swe_rebench": "swe-rebench", "swe_next": "swe-next",
    "scale_swe": "scale-swe", "swemer_v1": "swemer", "swemer_v2": "swemer", "swerl_gen": "swe-gym",
}  # fmt: skip
REFUSED = {
    "deepswe": "Harbor", "denovo_swe": "deletes the image's sources", "swemer_oml": "no status of a test",
    "swe_pivot": "next tool call", "swerl_llm_judge": "which of several patches",
}  # fmt: skip


def task(row: Any, packages: ReleasedPackages | NoPackages | None = None) -> dict[str, Any]:
    made = convert(row, packages or NoPackages())
    assert isinstance(made, Converted), made
    return made.task


def names(value: str | list[str]) -> list[str]:
    return list(json.loads(value)) if isinstance(value, str) else value


@pytest.mark.parametrize(("server", "family"), SHIPPED.items())
def test_every_shipped_row_of_a_family_becomes_a_task(server: str, family: str, packages: ReleasedPackages) -> None:
    rows = swe_rows.shipped(server)
    assert rows
    for row in rows:
        made = convert(row, packages)
        if row.get("language") == "dart":
            assert isinstance(made, Unconverted)
            assert "parse_log_dart" in made.reason  # a parser without an equal
            continue
        assert isinstance(made, Converted), made
        assert made.family == family
        row = row.get("instance", row)
        assert made.task["metadata"]["instance_id"] == row["instance_id"]
        assert made.task["reference_patch"] == row["patch"]
        if family not in ("swe-next", "swe-bench-pro"):
            assert made.task["fail_to_pass"] == names(row["FAIL_TO_PASS"])
            assert made.task.get("pass_to_pass", []) == names(row["PASS_TO_PASS"])


@pytest.mark.parametrize(("server", "reason"), REFUSED.items())
def test_every_shipped_row_that_no_list_of_tests_can_judge_is_refused(server: str, reason: str) -> None:
    for row in swe_rows.shipped(server):
        made = convert(row, NoPackages())
        assert isinstance(made, Unconverted)
        assert reason in made.reason


def test_a_row_of_swe_bench_5_keeps_image_script_and_lists() -> None:
    made = task(swe_rows.COMPLETE)
    assert made["image"] == "docker://swebench/sweb.eval.x86_64.pytest-dev_1776_pytest-7490:latest"
    assert made["repository"] == "/testbed"
    assert made["script"] == swe_rows.SCRIPT
    assert made["fail_to_pass"] == ["tests/test_sums.py::test_total"]
    assert made["test_paths"] == ["/tests/test_sums.py"]
    go = task(swe_rows.MULTILINGUAL)
    assert (go["log_parser"], go["fail_to_pass"]) == ("go", ["TestSum"])


def test_a_row_whose_log_names_failures_alone_is_refused() -> None:
    made = convert(swe_rows.COMPLETE | {"eval_type": "fail_only"}, NoPackages())
    assert made == Unconverted(
        "its `eval_type` is fail_only: its log names failures alone, and a test that never ran would pass"
    )


def test_classic_rows_get_their_script_from_the_release_that_knew_it(packages: ReleasedPackages) -> None:
    made = task(swe_rows.CLASSIC, packages)
    assert made["image"] == "docker://swebench/sweb.eval.x86_64.pytest-dev_1776_pytest-7490:latest"
    assert made["log_parser"] == "pytest-word"
    assert "\npytest -rA tests/test_sums.py\n" in made["script"]
    unknown = convert(swe_rows.CLASSIC | {"version": "99.9"}, packages)
    assert unknown == Unconverted("swebench 4.1.0 does not know how version 99.9 of pytest-dev/pytest is tested")
    assert isinstance(convert(swe_rows.CLASSIC | {"repo": "chartjs/Chart.js", "version": "4.1"}, packages), Unconverted)


def test_without_the_packages_a_classic_row_is_refused() -> None:
    made = convert(swe_rows.CLASSIC, NoPackages())
    assert isinstance(made, Unconverted)
    assert "--no-environment" in made.reason


def test_a_row_of_swe_gym_needs_no_package() -> None:
    made = task(swe_rows.GYM)
    assert made["image"] == "docker://xingyaoww/sweb.eval.x86_64.getmoto_s_moto-5752:latest"
    assert made["script"].endswith("make init\n} >/dev/null 2>&1\npytest -n0 -rA tests/test_sums.py\n")
    assert made["test_patch"] == swe_rows.TESTS


def test_the_bug_of_swe_smith_is_in_the_only_commit_and_its_reverse_is_the_reference(
    packages: ReleasedPackages, tmp_path: Path
) -> None:
    made = task(swe_rows.SMITH, packages)
    assert made["image"] == "docker://swebench/swesmith.x86_64.mewwts_1776_addict.75284f95"
    assert made["hidden"] == ["tests/test_sums.py"]
    assert made["test_paths"] == ["/tests/test_other.py", "/tests/test_sums.py"]
    assert "pytest --disable-warnings --color=no --tb=no --verbose" in made["script"]
    assert made["seconds"] == 90
    right = "def total(values):\n    return sum(values)\n"
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "sums.py").write_text(right)
    for command in ("git init -q", "git add .", "git -c user.name=t -c user.email=t commit -qm one"):
        subprocess.run(command.split(), cwd=tmp_path, check=True)
    subprocess.run(["bash", "-c", made["setup"]], cwd=tmp_path, check=True)
    history = subprocess.run(["git", "log", "-p"], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert (history.count("commit "), "sum(values)" in history) == (1, False)
    subprocess.run(["git", "apply"], cwd=tmp_path, check=True, input=made["reference_patch"], text=True)
    assert (tmp_path / "src" / "sums.py").read_text() == right


def test_a_row_of_swe_smith_whose_tests_have_no_files_is_refused(packages: ReleasedPackages) -> None:
    go = {"repo": "swesmith/gin-gonic__gin.3c12d2a8", "instance_id": "gin-gonic__gin.3c12d2a8.lm_rewrite__a1b2c3d4"}
    made = convert(swe_rows.SMITH | go | {"FAIL_TO_PASS": ["TestSum"]}, packages)
    assert isinstance(made, Unconverted)
    assert "cannot be hidden" in made.reason


def test_a_row_of_r2e_gym_expects_the_whole_map_and_hides_its_tests() -> None:
    made = task(swe_rows.R2E)
    assert made["statement"] == "total() returns None."
    assert made["expected"] == {"TestSums.test_total": "PASSED", "TestSums.test_old": "FAILED"}
    assert {"run_tests.sh", "r2e_tests", "/r2e_tests"} <= {*made["hidden"]}
    assert made["reference_patch"] == swe_rows.FIX  # without the changes of the tests
    assert made["seconds"] == 300


def test_swe_next_asks_for_the_tests_that_are_expected_to_pass() -> None:
    for row in swe_rows.shipped("swe_next"):
        made = task(row)
        expected = {name for name, status in json.loads(row["expected_output_json"]).items() if status == "PASSED"}
        assert {*made["fail_to_pass"], *made.get("pass_to_pass", [])} == expected
        assert {*made["fail_to_pass"]} == {*row["FAIL_TO_PASS"]}


def test_a_row_of_pro_keeps_its_script_and_its_parser() -> None:
    for row in swe_rows.shipped("swebench_pro"):
        made = task(row)
        assert made["parser_script"] == row["parser_script"]
        assert row["run_script"].rstrip("\n") in made["script"]
        assert made["image"] == f"docker://jefzda/sweap-images:{row['dockerhub_tag']}@{row['image_digest']}"
        assert not made["statement"].startswith('"')
        assert "## Requirements" in made["statement"]


def test_a_row_that_a_request_to_a_model_wraps_is_unwrapped(tmp_path: Path) -> None:
    made = task(swe_rows.WRAPPED)
    assert made["image"] == "docker://registry.example.org/acme/sums:1"
    assert (made["fail_to_pass"], made["pass_to_pass"]) == (
        ["tests/test_sums.py | test_total"],
        ["tests/test_sums.py | test_empty"],
    )
    assert made["test_paths"] == ["/tests/test_sums.py", "/tests/a b.py"]
    lines = made["script"].split("\n")
    assert {'export LANG="C.UTF-8"', 'export MODE="two words" OTHER=1'} <= {*lines}
    assert "git clean -fd" not in lines


def test_every_family_can_be_named() -> None:
    assert {family_named(name).name for name in NAMES} == {*NAMES}
    made = convert(swe_rows.COMPLETE, NoPackages(), family_named("scale-swe"))
    assert made == Unconverted("its field `image_url` is missing or empty")


@pytest.mark.parametrize("row", [None, [], "text", 7, {}, {"question": "What?"}, ValueError("Expecting value")])
def test_what_is_no_row_is_refused(row: Any) -> None:
    assert isinstance(convert(row, NoPackages()), Unconverted)


@pytest.mark.parametrize("name", [*swe_rows.WRITTEN, *SHIPPED])
def test_a_row_with_a_broken_field_is_converted_or_refused_and_never_an_error(
    name: str, packages: ReleasedPackages
) -> None:
    row = swe_rows.WRITTEN[name] if name in swe_rows.WRITTEN else swe_rows.shipped(name)[0]
    row = swe_rows.INTERNAL if "responses_create_params" in row and len(row) == 1 else row.get("instance", row)
    for field in row:
        for value in (None, "", 7, [], [1], {}, {"a": 1}, "x", "[1]", "\x00", "\ud800", ["a", "b"]):
            assert isinstance(convert({**row, field: value}, packages), Converted | Unconverted)
        assert isinstance(convert({k: v for k, v in row.items() if k != field}, packages), Converted | Unconverted)
