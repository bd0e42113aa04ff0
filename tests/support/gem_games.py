"""A game of GEM in the words that the tiny policy knows, and the rewards of GEM's environments without Rollyard.

`python gem_games.py` runs with GEM's Python. It reads a JSON list of [env, seed, actions], and writes for each the
observation of the reset, and [observation, reward, done] of each step.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import gem
from gem.envs.game_env.guess_the_number import GuessTheNumberEnv


class SpokenGuess(GuessTheNumberEnv):
    """GuessTheNumber, whose instructions and hints are sums: the policy's answers are its guesses."""

    def _get_instructions(self) -> str:
        return "What is 2 + 7?"

    def get_task_suffix(self) -> str:
        return ""

    def step(self, action: str) -> tuple[str, Any, bool, bool, dict[str, Any]]:
        _, *rest = super().step(action)
        return (f"What is {self.turn_count} + 3?", *rest)


def play(env: str, seed: int, actions: list[str]) -> list[Any]:
    game = SpokenGuess(max_turns=4) if env.endswith(":SpokenGuess") else gem.make(env)
    found: list[Any] = [game.reset(seed=seed)[0]]
    for action in actions:
        observation, reward, terminated, truncated, _ = game.step(action)
        found.append([observation, float(reward), terminated or truncated])
    return found


if __name__ == "__main__":
    print(json.dumps([play(*asked) for asked in json.load(sys.stdin)]))
