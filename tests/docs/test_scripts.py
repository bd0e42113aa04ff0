"""Scripts that set things up, as people call them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["deploy/slurm/install.sh", "--no-such"], "usage: install.sh [--accounting]"),
        (["deploy/vllm/cpu-env.sh", "FOLDER/env"], "FOLDER/python has no venv"),
        (["scripts/setup"], "name one with PYTHON=/path/to/python3"),
    ],
)
def test_a_script_for_bash_runs_when_called_as_sh(words: list[str], expected: str, tmp_path: Path) -> None:
    command = ["sh", *(word.replace("FOLDER", str(tmp_path)) for word in words)]
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(tmp_path), "PYTHON": f"{tmp_path}/python"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert expected.replace("FOLDER", str(tmp_path)) in done.stderr


def test_a_long_step_says_that_it_goes_on_and_keeps_its_status(tmp_path: Path) -> None:
    (tmp_path / "sleep").write_text("#!/bin/sh\nexec /bin/sleep 0.1\n")  # the pause between two messages
    (tmp_path / "sleep").chmod(0o755)
    (tmp_path / "filled").write_bytes(bytes(3 << 20))
    step = "step() { read -rt 1.5 <> <(:); return 3; }"
    script = f". deploy/progress.sh; PATH={tmp_path}:$PATH; {step}; going_on 'x: work' {tmp_path} step"
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3
    assert done.stderr.startswith("x: work: still at it after ")
    assert "MB so far" in done.stderr
