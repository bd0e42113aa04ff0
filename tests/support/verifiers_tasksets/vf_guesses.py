"""A taskset of verifiers whose own environment plays the user, for several turns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf


class GuessData(vf.TaskData):
    number: int


class GuessTask(vf.Task[GuessData]):
    @vf.metric
    async def turns(self, trace: Any) -> float:
        return float(len(trace.assistant_messages))


class Guesses(vf.Taskset[GuessTask]):
    def load(self) -> Iterator[GuessTask]:
        for number in range(3, 30):
            yield GuessTask(GuessData(prompt="What is 2 + 7?", number=number), self.config.task)


class GuessConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class GuessEnv(vf.Env[GuessConfig]):
    async def run(self, task: Any, agents: Any) -> None:
        async with agents.player.interaction(task) as interaction:
            segment, left = await interaction.turn(), 4
            while str(task.data.number) not in re.findall(r"\d+", segment.last_reply) and left > 1:
                left -= 1
                segment = await interaction.turn(f"What is {left} + 9?")
        interaction.trace.record_reward("guessed", left / 4, 1.0)


__all__ = ["GuessEnv", "Guesses"]
