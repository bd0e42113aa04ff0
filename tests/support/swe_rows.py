"""Rows of the families: those that NeMo Gym's wheel ships, and small ones in the shapes of the families that it lacks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.released import unpacked

Fields = dict[str, Any]
FIX = """\
diff --git a/src/sums.py b/src/sums.py
--- a/src/sums.py
+++ b/src/sums.py
@@ -1,2 +1,2 @@
 def total(values):
-    return None
+    return sum(values)
"""
BUG = FIX.replace("-    return None\n+    return sum(values)", "-    return sum(values)\n+    return None")
TESTS = """\
diff --git a/tests/test_sums.py b/tests/test_sums.py
--- a/tests/test_sums.py
+++ b/tests/test_sums.py
@@ -1 +1,5 @@
 from sums import total
+
+
+def test_total():
+    assert total([1, 2]) == 3
"""
CLASSIC: Fields = {
    "repo": "pytest-dev/pytest",
    "instance_id": "pytest-dev__pytest-7490",
    "base_commit": "7f7a36478abe7dd1fa993b115d22606aa0e35e88",
    "patch": FIX,
    "test_patch": TESTS,
    "problem_statement": "total() returns None.",
    "hints_text": "",
    "created_at": "2020-07-12T00:00:00Z",
    "version": "6.0",
    "FAIL_TO_PASS": '["tests/test_sums.py::test_total"]',
    "PASS_TO_PASS": '["tests/test_sums.py::test_empty"]',
    "environment_setup_commit": "634cde9506eb1f48dec3ec77974ee8dc952207c6",
}
SCRIPT = f"""\
#!/bin/bash
set -uxo pipefail
cd /testbed
git diff {CLASSIC["base_commit"]}
git checkout {CLASSIC["base_commit"]} tests/test_sums.py
git apply -v - <<'EOF_114329324912'
{TESTS}
EOF_114329324912
: '>>>>> Start Test Output'
pytest -rA tests/test_sums.py
: '>>>>> End Test Output'
git checkout {CLASSIC["base_commit"]} tests/test_sums.py
"""
COMPLETE = CLASSIC | {
    "image": "swebench/sweb.eval.x86_64.pytest-dev_1776_pytest-7490:latest",
    "eval_script": SCRIPT,
    "log_parser": "parse_log_pytest",
    "eval_type": "pass_and_fail",
}
MULTILINGUAL = COMPLETE | {
    "repo": "caddyserver/caddy",
    "instance_id": "caddyserver__caddy-5404",
    "image": "swebench/sweb.eval.x86_64.caddyserver_1776_caddy-5404:latest",
    "eval_script": SCRIPT.replace("pytest -rA tests/test_sums.py", 'go test -v ./caddytest -run "TestSum"'),
    "log_parser": "parse_log_gotest",
    "FAIL_TO_PASS": ["TestSum"],
    "PASS_TO_PASS": ["TestSum/empty"],
}
GYM = CLASSIC | {"repo": "getmoto/moto", "instance_id": "getmoto__moto-5752", "version": "4.0"}
SMITH: Fields = {
    "instance_id": "mewwts__addict.75284f95.func_basic__x1y2z3a4",
    "repo": "swesmith/mewwts__addict.75284f95",
    "patch": BUG,
    "FAIL_TO_PASS": ["tests/test_sums.py::test_total"],
    "PASS_TO_PASS": ["tests/test_sums.py::test_empty", "tests/test_other.py::test_other"],
    "image_name": "swebench/swesmith.x86_64.mewwts_1776_addict.75284f95",
    "problem_statement": "total() returns None.",
}
R2E: Fields = {
    "repo_name": "pillow",
    "docker_image": "namanjain12/pillow_final:4bc33d3c5a5c2a2a3c0a6b0f0d5b7d6d25f1f3fa",
    "commit_hash": "4bc33d3c5a5c2a2a3c0a6b0f0d5b7d6d25f1f3fa",
    "parsed_commit_content": json.dumps(
        {
            "file_diffs": [
                {
                    "header": {"file": {"path": path}},
                    "minus_file": {"path": f"a/{path}"},
                    "plus_file": {"path": f"b/{path}"},
                    "old_file_content": "def total(values):\n    return None\n",
                    "new_file_content": "def total(values):\n    return sum(values)\n",
                }
                for path in ("src/sums.py", "Tests/sums.py", "src/test_sums.py")
            ]
        }
    ),
    "expected_output_json": '{"TestSums.test_total": "PASSED", "\\u001b[1mTestSums.test_old\\u001b[0m - why": "FAILED"}',
    "problem_statement": "Look.\n[ISSUE]\ntotal() returns None.\n[/ISSUE]\n",
    "num_non_test_files": 1,
}
INTERNAL: Fields = {
    "instance_id": "acme__sums-1",
    "base_commit": CLASSIC["base_commit"],
    "problem_statement": "total() returns None.",
    "image_name": "registry.example.org/acme/sums:1",
    "before_repo_set_cmd": f"git clean -fd\ngit checkout {CLASSIC['base_commit']} -- tests/test_sums.py 'tests/a b.py'",
    "selected_test_files_to_run": "['tests/test_sums.py', 'tests/a b.py']",
    "base_dockerfile": "FROM debian\nENV LANG C.UTF-8",
    "instance_dockerfile": 'ENV MODE="two words" OTHER=1',
    "run_script.sh": "#!/bin/bash\npytest -rA $1\n",
    "parsing_script.py": "import sys\n",
    "fail_to_pass": '["tests/test_sums.py | test_total"]',
    "pass_to_pass_select": '["tests/test_sums.py | test_empty"]',
}
WRAPPED: Fields = {
    "responses_create_params": {
        "input": [],
        "metadata": {"dataset_name": "nv-internal-1", "instance_dict": json.dumps(INTERNAL)},
    }
}
WRITTEN = {
    "swe-bench": COMPLETE,
    "swe-bench of Go": MULTILINGUAL,
    "swe-bench-classic": CLASSIC,
    "swe-gym": GYM,
    "swe-smith": SMITH,
    "r2e-gym": R2E,
    "nv-internal-1": WRAPPED,
}


def shipped(name: str) -> list[Fields]:
    """Return the example rows of one server of NeMo Gym."""
    file = wheels() / "resources_servers" / name / "data" / "example.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()]


def wheels() -> Path:
    return unpacked("swe-families", "2026.11")
