"""The rewards of TextArena's games without Rollyard.

The program runs with TextArena's Python. It reads a JSON list of [game, seed, actions], and writes for each the first
observation, and the reward of player 0 at the end; null if the game goes on.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import textarena


def play(game: str, seed: int, actions: list[str]) -> list[Any]:
    env = textarena.make(game)
    env.reset(num_players=1, seed=seed)
    _, first = env.get_observation()
    for action in actions:
        if env.step(action=action)[0]:
            return [first.strip(), env.close()[0][0]]
    return [first.strip(), None]


if __name__ == "__main__":
    print(json.dumps([play(*asked) for asked in json.load(sys.stdin)]))
