"""A taskset of verifiers with one turn a task, two rewards and a metric. Its questions are those of the tiny policy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf


class SumData(vf.TaskData):
    number: int


class SumTask(vf.Task[SumData]):
    @vf.reward
    async def right(self, trace: Any) -> float:
        return float(f"\\boxed{{{self.data.number}}}" in trace.last_reply)

    @vf.reward(weight=0.5)
    async def short(self, trace: Any) -> float:
        return 1 / (1 + len(trace.last_reply))

    @vf.metric
    async def words(self, trace: Any) -> float:
        return float(len(trace.last_reply.split()))


class Sums(vf.Taskset[SumTask]):
    def load(self) -> Iterator[SumTask]:
        for number in range(20, 40):
            prompt = f"What is {number - 7} + 7?"
            yield SumTask(SumData(prompt=prompt, system_prompt="Be brief.", number=number), self.config.task)


__all__ = ["Sums"]
