"""Continuous batching on a separate thread.

A step processes parts of new prompts, and samples one token for each generation whose whole prompt has been processed.
New generations and aborts arrive through an inbox. One call of `deliver` gets all tokens that a step has sampled.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from rollyard.engine.embedded.generation import GenerationRequest, StepResult
from rollyard.engine.embedded.kv_cache import KVCache
from rollyard.engine.embedded.model import Model, Span
from rollyard.engine.embedded.sampling import sample

PROMPT_CHUNK = 256
"""Greatest number of prompt tokens of one generation in one step. A longer part would delay other generations."""
STEP_TOKENS = 512
"""A step with this many tokens gets no further part of a prompt, unless the part is a single token."""

Deliver = Callable[[Sequence[tuple[GenerationRequest, StepResult]]], None]
logger = logging.getLogger(__name__)


@dataclass
class Stats:
    """Statistics of an engine. Only the engine's thread writes them; any thread may read them."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_queries: int = 0
    """Prompt tokens that were looked up in the cache."""
    prefix_hits: int = 0
    """Prompt tokens that were found in the cache."""
    first_tokens: int = 0
    first_token_seconds: float = 0.0
    """Seconds from submit to first token, summed over the requests that `first_tokens` counts."""
    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    """Positions that running sequences fill, divided by the positions of `max_sequences` full sequences; 0 to 1."""


class Engine:
    """Runs a model on a thread of its own. This thread calls `deliver` with results, and `failed` if an error ends
    it."""

    def __init__(
        self,
        model: Model,
        *,
        max_sequences: int,
        max_model_len: int,
        deliver: Deliver,
        failed: Callable[[], None],
    ) -> None:
        self.stats = Stats()
        self._model = model
        self._max_sequences = max_sequences
        self._max_model_len = max_model_len
        # Twice as many slots as sequences, so that rollouts that wait for a tool still find their tokens in a slot.
        self._cache = KVCache(model.config, 2 * max_sequences, max_model_len)
        self._deliver = deliver
        self._failed = failed
        self._inbox: deque[tuple[GenerationRequest, bool]] = deque()
        self._wake = threading.Event()
        self._changes: deque[tuple[Callable[[], None], Future[None]]] = deque()
        self._frozen = False
        self._version = ""
        self._stopping = False
        self._waiting: deque[GenerationRequest] = deque()
        self._running: list[GenerationRequest] = []
        self._thread = threading.Thread(target=self._main, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, generation: GenerationRequest) -> None:
        generation.submitted_at = time.monotonic()
        self._pass_on(generation, abort=False)

    def abort(self, generation: GenerationRequest) -> None:
        """Abort a generation. Its last StepResult has finish_reason "abort". If it has ended already, do nothing."""
        self._pass_on(generation, abort=True)

    def freeze(self, *, abort: bool) -> Future[None]:
        """Run no step until `thaw`. `abort`: end all requests, with finish_reason "abort".

        The future is done when no step runs any more.
        """

        def change() -> None:
            self._frozen = True
            if abort:
                self._abort_all()

        return self._between_steps(change)

    def thaw(self) -> Future[None]:
        """Resume the steps. The future is done when steps may run again."""

        def change() -> None:
            self._frozen = False

        return self._between_steps(change)

    def set_version(self, version: str) -> Future[None]:
        """Set the version of the weights. Every token that is sampled after the future is done has this version."""

        def change() -> None:
            self._version = version

        return self._between_steps(change)

    def swap(self, model: Model) -> Future[None]:
        """Replace the model by a model of the same shape. After the future is done, every step uses the new model.

        Sequences with a sampled token keep their keys and values. A prompt that has none yet is read again: all tokens
        after it get the version of the new model. Later prompts do not reuse keys and values of the old model.
        """

        def change() -> None:
            self._model = model
            self._cache.forget()
            for generation in self._running:
                if not generation.drawn:
                    generation.computed = generation.cached = 0
                    self._cache.empty(generation.slot)

        return self._between_steps(change)

    def stop(self, timeout: float = 10.0) -> None:
        """Abort all requests and end the thread."""
        self._stopping = True
        self._wake.set()
        self._thread.join(timeout)

    def _pass_on(self, generation: GenerationRequest, *, abort: bool) -> None:
        self._inbox.append((generation, abort))
        self._wake.set()

    def _between_steps(self, change: Callable[[], None]) -> Future[None]:
        """Run `change` on the engine's thread, after all results of earlier steps have been delivered."""
        done: Future[None] = Future()
        self._changes.append((change, done))
        self._wake.set()
        return done

    def _main(self) -> None:
        try:
            while not self._stopping:
                self._wake.clear()
                self._read_inbox()
                self._make_changes()
                if not self._frozen:
                    self._admit()
                if self._running and not self._frozen:
                    self._step()
                else:
                    self._wake.wait()
            self._read_inbox()
            self._abort_all()
        except Exception:
            logger.exception("the engine's thread failed")
            self._failed()

    def _read_inbox(self) -> None:
        while self._inbox:
            generation, abort = self._inbox.popleft()
            if not abort:
                self._waiting.append(generation)
            elif generation in self._waiting:
                self._waiting.remove(generation)
                self._deliver([(generation, StepResult(None, "abort"))])
            elif generation in self._running:
                self._retire(generation)
                self._deliver([(generation, StepResult(None, "abort"))])
        self._count()

    def _make_changes(self) -> None:
        while self._changes:
            change, done = self._changes.popleft()
            change()
            done.set_result(None)

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._max_sequences:
            generation = self._waiting.popleft()
            generation.slot, generation.cached = self._cache.acquire(generation.prompt)
            generation.computed = generation.cached
            self._running.append(generation)
            self.stats.prompt_tokens += len(generation.prompt)
            self.stats.prefix_queries += len(generation.prompt)
            self.stats.prefix_hits += generation.cached
        self._count()

    def _step(self) -> None:
        batch = self._batch()
        logits = self._model.forward([span for _, span in batch], self._cache)
        for generation, span in batch:
            self._cache.extend(span.slot, list(span.tokens))
            generation.computed = span.end
        rows = [i for i, (generation, _) in enumerate(batch) if generation.computed == len(generation.tokens)]
        masks = {i: grammar.allowed() for i in rows if (grammar := batch[i][0].grammar) is not None}
        rows = [i for i in rows if not self._grammar_failed(batch[i][0])]
        ready = [batch[i][0] for i in rows]
        if ready:
            allowed = {row: masks[i] for row, i in enumerate(rows) if i in masks}
            self._count_first(ready)
            draws = sample(logits[rows], [s.params for s in ready], [s.drawn for s in ready], allowed)
            version = self._version
            progress = [(g, g.advance(draw, version)) for g, draw in zip(ready, draws, strict=True)]
            for generation, step in progress:
                if step.finish_reason:
                    self._retire(generation)
            self.stats.generation_tokens += len(progress)
            self._count()
            self._deliver(progress)

    def _grammar_failed(self, generation: GenerationRequest) -> bool:
        """Return whether the generation's grammar has failed. The generation then ends."""
        if generation.grammar is None or not generation.grammar.error:
            return False
        self._retire(generation)
        self._deliver([(generation, StepResult(None, "abort", error=generation.grammar.error))])
        return True

    def _batch(self) -> list[tuple[GenerationRequest, Span]]:
        """Collect the tokens to process in a step. A generation with a single unprocessed token always takes part;
        parts of prompts are added until the step has `STEP_TOKENS` tokens."""
        batch, size = [], 0
        for generation in self._running:
            todo = generation.tokens[generation.computed : generation.computed + PROMPT_CHUNK]
            if len(todo) == 1 or size < STEP_TOKENS:
                batch.append((generation, Span(generation.slot, generation.computed, todo)))
                size += len(todo)
        return batch

    def _retire(self, generation: GenerationRequest) -> None:
        self._running.remove(generation)
        self._cache.release(generation.slot)

    def _abort_all(self) -> None:
        gone = [*self._running, *self._waiting]
        for generation in list(self._running):
            self._retire(generation)
        self._waiting.clear()
        self._count()
        self._deliver([(generation, StepResult(None, "abort")) for generation in gone])

    def _count_first(self, ready: Sequence[GenerationRequest]) -> None:
        """Count the generations whose first token is drawn in this step. Call this before `advance`."""
        now = time.monotonic()
        for generation in ready:
            if generation.drawn == 0:
                self.stats.first_tokens += 1
                self.stats.first_token_seconds += now - generation.submitted_at

    def _count(self) -> None:
        self.stats.running = len(self._running)
        self.stats.waiting = len(self._waiting)
        filled = sum(generation.computed for generation in self._running)
        self.stats.kv_usage = filled / (self._max_sequences * self._max_model_len)
