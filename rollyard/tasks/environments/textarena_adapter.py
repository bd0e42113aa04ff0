"""A game of TextArena with one player as an environment. It runs with the Python that has TextArena, beside `driver`."""

from __future__ import annotations

from typing import Any

import textarena


class TextArenaGame:
    """Shows only what is new: TextArena shows the whole history at each turn, and has no reward before the end."""

    def __init__(self, env: str, **arguments: Any) -> None:
        self._game = textarena.make(env, **arguments)
        self._env = env

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        try:
            self._game.reset(num_players=1, seed=seed)
        except AssertionError as error:
            why = f"{self._env} is no game of one player ({error}); write a class that plays the others"
            raise ValueError(why) from None
        self._shown = 0
        return self._news(), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        done, _ = self._game.step(action=action)
        if not done:
            return self._news(), 0.0, False, False, {}
        rewards, _ = self._game.close()
        return "", float(rewards[0]), True, False, {}

    def _news(self) -> str:
        _, text = self._game.get_observation()
        new, self._shown = text[self._shown :], len(text)
        return str(new).strip()


make = TextArenaGame
