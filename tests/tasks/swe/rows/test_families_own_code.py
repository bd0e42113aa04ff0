"""Scripts, images and lists of converted rows equal those of the families' own code, where a registry has it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from rollyard.tasks.rows.dataset_row import Converted
from rollyard.tasks.swe.output_marks import START
from rollyard.tasks.swe.rows.bash_text import TRUST
from rollyard.tasks.swe.rows.conversion import convert
from rollyard.tasks.swe.rows.released_packages import NoPackages
from tests.support import family_verdicts, swe_rows

pytestmark = pytest.mark.long


def told(server: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ask the family's own code about rows."""
    command = [sys.executable, "-I", family_verdicts.__file__, str(swe_rows.wheels())]
    questions = "".join(json.dumps([server, row]) + "\n" for row in rows)
    done = subprocess.run(command, input=questions, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def task(row: dict[str, Any]) -> dict[str, Any]:
    made = convert(row, NoPackages())
    assert isinstance(made, Converted)
    return made.task


def heard(script: str) -> str:
    """Return the part of a script of ours whose output counts."""
    return script.rpartition("} >/dev/null 2>&1\n")[2].strip()


def between_echoes(script: str, begin: str, end: str) -> str:
    lines = script.split("\n")
    first, last = (
        next(i for i, line in enumerate(lines) if line.startswith("echo ") and mark in line) for mark in (begin, end)
    )
    return "\n".join(lines[first + 1 : last]).removesuffix("__test_exit=$?").strip()


def test_swe_bench_5_has_the_same_script_image_and_lists() -> None:
    rows = [swe_rows.COMPLETE, swe_rows.MULTILINGUAL]
    for row, own in zip(rows, told("swe-bench", rows), strict=True):
        ours = task(row)
        assert ours["image"] == f"docker://{own['image']}"
        assert [ours["fail_to_pass"], ours["pass_to_pass"]] == own["lists"]
        own_lines = [line for line in own["script"].split("\n") if "SWEBENCH_TEST_EXIT_CODE" not in line]
        assert ours["script"].split("\n") == own_lines


@pytest.mark.parametrize("server", ["swe_rebench", "swe_next", "scale_swe"])
def test_the_tests_run_by_the_same_commands_in_the_same_folder(server: str) -> None:
    rows = [row for row in swe_rows.shipped(server) if row["language"] != "dart"]  # a parser without an equal
    for row, own in zip(rows, told(server, rows), strict=True):
        ours = task(row)
        assert f"\ncd {ours['repository']} || exit 97\n" in own["script"]
        tests = between_echoes(own["script"], "TEST_BEGIN", "TEST_END")
        assert heard(ours["script"]).removeprefix("[ -e r2e_tests ] || ln -s /r2e_tests r2e_tests\n") == tests
        if server == "swe_rebench":
            installs = ours["script"].removeprefix("{\n").partition("\n} >/dev/null 2>&1\n")[0]
            assert installs in own["script"]
            assert f"git checkout {ours['base_commit']} " in own["script"]
        if server == "scale_swe":
            assert ours["setup"].removeprefix(f"{TRUST}\n").strip() in own["script"]


def test_pro_has_the_same_variables_test_files_and_call() -> None:
    rows = swe_rows.shipped("swebench_pro")
    for row, own in zip(rows, told("swebench_pro", rows), strict=True):
        ours = task(row)
        before = ours["script"].removeprefix("{\n").partition("cat > /tmp/run_script.sh")[0]
        assert all(line in [*own["script"].split("\n"), TRUST] for line in before.strip().split("\n"))
        call = next(line for line in own["script"].split("\n") if line.startswith("bash /workspace/run_script.sh "))
        tests = heard(ours["script"]).removeprefix(f"echo '{START}'\n")  # where a control run waits
        assert tests == call.replace("/workspace", "/tmp").partition(" > ")[0]
        assert f"git checkout {ours['base_commit']}\n" in own["script"]
