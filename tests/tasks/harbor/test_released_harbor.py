"""Outcomes of folders under Harbor itself, whose environments here are copies of the tests' image."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from rollyard.core.errors import TaskError
from rollyard.sandbox.bubblewrap import bubblewrap_program
from tests.support.harbor_folders import CASES, TEST, HarborFolder, one_step
from tests.support.released import CACHE, environment
from tests.tasks.harbor.conftest import HarborSite
from tests.tasks.harbor.test_reward_files import READ, UNREAD

pytestmark = [pytest.mark.long, pytest.mark.asyncio(loop_scope="module")]
VERSION = "0.25.0"
Rewards = dict[str, float] | None
Trials = Callable[[Mapping[str, tuple[HarborFolder, Sequence[str] | None]]], dict[str, Rewards]]


@pytest.fixture
def trials(harbor_roots: tuple[Path, Path], tmp_path: Path) -> Trials:
    """Return the rewards that Harbor gives to work in folders, by their names. Work None is Harbor's oracle."""
    python = environment("harbor", VERSION, "python3.13") / "bin" / "python"
    program = bubblewrap_program(CACHE)
    if program is None:
        pytest.skip("needs bubblewrap")
    root, verifier_root = map(str, harbor_roots)
    roots = {"root": root, "verifier_root": verifier_root, "bubblewrap": program}

    def run(asked: Mapping[str, tuple[HarborFolder, Sequence[str] | None]]) -> dict[str, Rewards]:
        cases: list[dict[str, Any]] = [
            {"folder": str(folder.write(tmp_path / str(number))), "work": work}
            for number, (folder, work) in enumerate(asked.values())
        ]
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "support"), "HOME": str(tmp_path)}
        command = [python, "-W", "ignore", "-m", "harbor_trial"]
        data = json.dumps({"roots": roots, "cases": cases})
        done = subprocess.run(command, input=data, capture_output=True, text=True, env=env, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        return dict(zip(asked, json.loads(done.stdout.rpartition("RESULTS ")[2]), strict=True))

    return run


async def test_honest_agents_get_from_harbor_what_they_get_here(trials: Trials) -> None:
    found = trials({name: (case.folder, case.work) for name, case in CASES.items()})
    rewards = {name: rewards["reward"] if rewards is not None else None for name, rewards in found.items()}
    assert rewards == {name: case.reward for name, case in CASES.items()}


async def test_reference_solutions_get_from_harbor_what_they_get_here(trials: Trials, site: HarborSite) -> None:
    ours: dict[str, Rewards] = {}
    cases = {name: case for name, case in CASES.items() if name != "time-out of the agent"}  # Harbor's may be slow here
    for name, case in cases.items():
        try:
            ours[name] = dict((await site.score(case.folder, None)).parts)
        except TaskError:
            ours[name] = None
    assert trials({name: (case.folder, None) for name, case in cases.items()}) == ours


async def test_harbor_reads_reward_files_as_they_are_read_here(trials: Trials) -> None:
    asked, ours = {}, {}
    for number, (as_json, as_text, expected) in enumerate([*READ, *UNREAD]):
        written = "".join(
            f"base64 -d > /logs/verifier/reward.{kind} <<'END'\n{base64.b64encode(content).decode()}\nEND\n"
            for kind, content in (("json", as_json), ("txt", as_text))
            if content is not None
        )
        asked[str(number)] = one_step(test=f"{TEST}{written}"), ["true"]
        ours[str(number)] = expected if isinstance(expected, dict) else None
    assert trials(asked) == ours
