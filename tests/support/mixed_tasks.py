"""Tasks of all kinds, each with the turns of an agent that solves it, or does not."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rollyard.tasks.harbor.task_folder import read_folder
from tests.support.harbor_folders import WRITE, HarborFolder, one_step, two_steps
from tests.support.scripted_agent import call
from tests.support.small_games import NamedSums
from tests.support.swe_repository import swe_fields

DONE = "It is done."


@dataclass(frozen=True)
class MixedTask:
    name: str
    """Text of the prompt."""
    fields: Mapping[str, Any]
    turns: Sequence[str]
    reward: float
    """Reward of these turns."""


Make = Callable[[str, int, bool], MixedTask]


def mixed_tasks(count: int, root: Path, seed: int, answers: Sequence[str]) -> list[MixedTask]:
    """Return tasks of all seven kinds in turn. `root`: image with git and the repository. `answers`: those of reasoning-gym
    for the entries of `gym_entry`."""
    chance = random.Random(seed)

    def swe(name: str, number: int, right: bool) -> MixedTask:
        fields = {"kind": "swe", "image": str(root), **swe_fields(statement=f"{name}: add(2, 3) is -1.")}
        work = f"sed -i 's/a - b/a {'+' if right else '*'} b/' /testbed/calc/ops.py"
        return MixedTask(name, fields, [call("bash", command=work), DONE], float(right))

    def harbor(name: str, number: int, right: bool) -> MixedTask:
        folder, turns, rewards = _FOLDERS[number // len(made) % len(_FOLDERS)](name, right)
        with TemporaryDirectory(prefix="rollyard-test-") as place:
            read = read_folder(folder.write(Path(place)))
            fields = read.task(str(root), {})
        if read.config.steps:
            fields["verifier"] = "shared"
        return MixedTask(name, fields, turns, rewards[right])

    def gym(name: str, number: int, right: bool) -> MixedTask:
        said = answers[number // len(made)] if right else "<answer>-1</answer>"
        return MixedTask(name, {**gym_entry(number // len(made)), "system": name}, [said], float(right))

    made: list[Make] = [_math, _code, _env, swe, harbor, _stem, gym]
    return [made[i % len(made)](f"case-{i:04}", i, chance.random() < 0.5) for i in range(count)]


def gym_entry(index: int) -> dict[str, Any]:
    return {"kind": "gym", "dataset": "leg_counting", "seed": 7, "index": index}


def _math(name: str, number: int, right: bool) -> MixedTask:
    fields = {"kind": "math", "problem": f"{name}: What is {number} + 1?", "answer": str(number + 1)}
    return MixedTask(name, fields, [f"\\boxed{{{number + right}}}"], float(right))


def _code(name: str, number: int, right: bool) -> MixedTask:
    cases = [{"call": f"f({n})", "expect": str(n + number)} for n in (2, 3)]
    fields = {"kind": "code", "problem": f"{name}: Add.", "solution": "/workspace/s.py", "cases": cases}
    text = f"def f(n):\n    return n + {number if right else number + 1}\n"
    return MixedTask(
        name, fields, [call("editor", command="create", path="/workspace/s.py", file_text=text), DONE], right
    )


def _env(name: str, number: int, right: bool) -> MixedTask:
    arguments = {"name": name, "questions": 2}
    fields = {"kind": "env", "framework": "class", "env": f"{NamedSums.__module__}:NamedSums", "seed": number}
    game, turns = NamedSums(name, 2), []
    game.reset(number)
    for _ in range(2):
        turns.append(f"\\boxed{{{game.sum if right else 0}}}")
        game.step("")
    return MixedTask(name, {**fields, "arguments": arguments}, turns, float(right))


def _stem(name: str, number: int, right: bool) -> MixedTask:
    fields = {
        "kind": "stem",
        "form": "choice",
        "question": f"{name}: Which is metal?",
        "options": ["ice", "iron"],
        "answer": "B",
    }
    return MixedTask(name, fields, [f"Answer: {'B' if right else 'A'}"], float(right))


Made = tuple[HarborFolder, list[str], tuple[float, float]]
"""Folder, turns, and the rewards of wrong and of right turns."""


def _bash(*commands: str) -> list[str]:
    return [turn for command in commands for turn in (call("bash", command=command), DONE)]


def _written(name: str, right: bool, config: str, top: str = "") -> Made:
    folder = one_step(config, top=top, **{"instruction.md": f"{name}: Write hello world.\n"})
    return folder, _bash(WRITE if right else "echo hello > /work/answer.txt"), (0.0, 1.0)


def _fresh(name: str, right: bool) -> Made:
    return _written(name, right, "")


def _separate(name: str, right: bool) -> Made:
    return _written(name, right, '[verifier]\nenvironment_mode = "separate"\n', 'artifacts = ["/work/answer.txt"]\n')


def _steps(name: str, right: bool) -> Made:
    folder = two_steps(**{"steps/one/instruction.md": f"{name}: Write one.\n"})
    return folder, _bash("touch /work/one" if right else "true", "touch /work/two"), (0.625, 1.0)


_FOLDERS = (_fresh, _separate, _steps)
