"""Rollouts to route: for each turn the added prompt tokens, the sampled tokens and the duration of its tools."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

RECORDED = Path(__file__).parent / "traces" / "demo.jsonl"
GROUP = 8


@dataclass(frozen=True, slots=True)
class Turn:
    grown: int
    """Tokens added to the prompt since the last answer: the task, or tool results."""
    sampled: int
    tool_seconds: float


@dataclass(frozen=True, slots=True)
class Script:
    group: str
    """Rollouts of one group begin with the same prompt."""
    turns: tuple[Turn, ...]


def demo(seed: int, rollouts: int) -> list[Script]:
    """Draw rollouts from the demo's with its committed policy: each line of the file holds the turns of one."""
    lines = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    chance = random.Random(seed)
    scripts = []
    for number in range(rollouts):
        turns = chance.choice(lines)
        scripts.append(Script(f"g{number // GROUP}", tuple(Turn(*turn) for turn in turns)))
    return scripts


def heavy(seed: int, rollouts: int) -> list[Script]:
    """Coding agents: 2 to 50 turns, long tails everywhere."""
    chance = random.Random(seed)

    def tail(median: float, sigma: float, most: float) -> float:
        return min(most, chance.lognormvariate(math.log(median), sigma))

    scripts = []
    for number in range(rollouts):
        if number % GROUP == 0:
            prompt, hard = int(tail(500, 0.6, 2000)), tail(5, 0.6, 40)
        turns = [
            Turn(prompt if turn == 0 else int(tail(60, 1.0, 800)), 1 + int(tail(50, 0.9, 600)), tail(0.3, 1.2, 20))
            for turn in range(max(2, min(50, int(hard * tail(1, 0.4, 4)))))
        ]
        scripts.append(Script(f"g{number // GROUP}", tuple(turns)))
    return scripts


TRACES: Mapping[str, Callable[[int, int], list[Script]]] = {"demo": demo, "heavy": heavy}
