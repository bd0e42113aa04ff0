"""A taskset of verifiers whose tasks keep a file in their runtime, and have messages as prompt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf


class WordData(vf.TaskData):
    word: str


class WordTask(vf.Task[WordData]):
    async def setup(self, trace: Any, runtime: Any) -> None:
        await runtime.write("word", self.data.word.encode())

    @vf.reward
    async def said(self, trace: Any, runtime: Any) -> float:
        word: str = (await runtime.read("word")).decode()
        return trace.last_reply.count(word) / 8


class Words(vf.Taskset[WordTask]):
    def load(self) -> Iterator[WordTask]:
        for word in ("8", "boxed"):
            yield WordTask(WordData(prompt=[vf.UserMessage(content="What is 8 + 3?")], word=word), self.config.task)


__all__ = ["Words"]
