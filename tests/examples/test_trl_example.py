"""GRPO by TRL's trainer, in short: the example trains, logs rewards, and ends what it started."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.yard import ROOT

pytestmark = pytest.mark.slow(60)


def test_two_steps_with_a_reward_each(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.trl.train", "--steps", "2", "--tasks", "2", "--out", str(tmp_path)]
    env = {**os.environ, "TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=env, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert len(re.findall(r"'reward': '[0-9.]+'", done.stdout)) == 2
    assert (tmp_path / "weights" / "step3" / "model.safetensors").exists(), "before the first step, and after each step"
