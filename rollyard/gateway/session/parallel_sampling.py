"""Samples the turns of a session's calls. The turns of one call are sampled at the same time."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from rollyard.core.aio import end_tasks
from rollyard.gateway.requests.call_errors import GatewayError
from rollyard.gateway.requests.chat_request import Piece, SendPiece
from rollyard.gateway.session.streaming_text import StreamingText
from rollyard.gateway.session.token_logprobs import LogprobStream
from rollyard.kinds.rollout import Sampling
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.constraint import is_constrained
from rollyard.tokens.sampled_tokens import Sampled, TurnSampling
from rollyard.tokens.streamed_response import OnProgress


class SessionSampler(Protocol):
    @property
    def context(self) -> int | None:
        """Length of the model's context in tokens; None if it is not known."""

    async def sample(
        self, prompt_ids: Sequence[int], sampling: Sampling, on_progress: OnProgress | None = None
    ) -> Sampled:
        """Sample one turn, even if an endpoint fails during the turn. After ContextExceeded, EndpointRefused or
        GatewayError the session can make further calls. AnswerRefused and every other RollyardError end the session."""


@dataclass(frozen=True)
class TimedSample:
    sampled: Sampled
    seconds: float


class ParallelSampling:
    """The sampling of one session."""

    def __init__(self, template: ChatTemplate, policy: SessionSampler) -> None:
        self._template = template
        self._policy = policy
        self._tasks: set[asyncio.Task[TimedSample]] = set()
        self._closed: GatewayError | None = None
        """Error for all calls after the session was closed."""

    def close(self, why: GatewayError) -> None:
        """Cancel the sampling of all calls. `why`: the error for their callers, and for later ones."""
        self._closed = why
        for task in self._tasks:
            task.cancel()

    def check_open(self) -> None:
        """Raise GatewayError if the session is closed. Its trajectory may have been reported, and must not change when
        a turn ends later."""
        if self._closed is not None:
            raise self._closed

    async def sample(
        self,
        prompt: Sequence[int],
        samplings: Sequence[Sampling],
        speeches: Sequence[StreamingText],
        on_piece: SendPiece | None,
    ) -> list[TimedSample]:
        """Sample the turns of one call, and send their text as it arrives. Raises the errors of the sampler, and
        GatewayError if the session is closed.

        The text of constrained turns is not sent, because such a turn begins again after the failure of an endpoint.
        """
        on_piece = None if is_constrained(samplings[0]) else on_piece
        streamed = speeches if on_piece is not None else [None] * len(speeches)
        async with self._sampling(prompt, samplings, streamed) as (tasks, pieces):
            while on_piece is not None and (piece := await pieces.get()) is not None:
                await on_piece(piece)
            return await asyncio.gather(*tasks)

    @contextlib.asynccontextmanager
    async def _sampling(
        self, prompt: Sequence[int], samplings: Sequence[Sampling], speeches: Sequence[StreamingText | None]
    ) -> AsyncIterator[tuple[list[asyncio.Task[TimedSample]], asyncio.Queue[Piece | None]]]:
        """Sample during the block. If the block ends before the sampling, the sampling is cancelled. The queue ends with
        None after all turns, or after the first error."""
        pieces: asyncio.Queue[Piece | None] = asyncio.Queue()

        async def sample(index: int, sampling: Sampling, speech: StreamingText | None) -> TimedSample:
            arrived = LogprobStream(self._template) if isinstance(sampling, TurnSampling) else None

            def on_chunk(chunk: Sampled) -> None:
                if speech is None:
                    return
                if arrived is not None:
                    arrived.feed(chunk)
                if text := speech.feed(chunk.token_ids):
                    logprobs = arrived.take(speech.passed_bytes) if arrived is not None else ()
                    pieces.put_nowait(Piece(index, text, logprobs))

            started = time.monotonic()
            sampled = await self._policy.sample(prompt, sampling, on_chunk)
            return TimedSample(sampled, time.monotonic() - started)

        def on_done(task: asyncio.Task[TimedSample]) -> None:
            failed = task.cancelled() or task.exception() is not None
            if failed or all(one.done() for one in tasks):
                pieces.put_nowait(None)

        turns = zip(samplings, speeches, strict=True)
        tasks = [asyncio.create_task(sample(i, sampling, speech)) for i, (sampling, speech) in enumerate(turns)]
        for task in tasks:
            task.add_done_callback(on_done)
        self._tasks.update(tasks)
        try:
            yield tasks, pieces
        except asyncio.CancelledError:
            if self._closed is not None and any(task.cancelled() for task in tasks):
                raise self._closed from None
            raise
        finally:
            await end_tasks(*tasks)
            self._tasks.difference_update(tasks)
