"""The engine's thread, on the tiny model: changes of weights between its steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import Queue

import pytest

from rollyard.engine.embedded.continuous_batching import PROMPT_CHUNK, Engine
from rollyard.engine.embedded.generation import GenerationRequest, StepResult
from rollyard.engine.embedded.kv_cache import KVCache
from rollyard.engine.embedded.model import Model, Span
from rollyard.engine.embedded.model_weights import load_weights
from rollyard.engine.embedded.safetensors_files import Array
from rollyard.engine.embedded.sampling import SamplingParams
from rollyard.model_folder.model_config import read_config
from tests.support.live_weights import other_weights

LENGTH = 1024
LIMIT = 60.0
PROMPT = [1, *(30 + number % 40 for number in range(2 * PROMPT_CHUNK + 50))]


class PausesInAPrompt(Model):
    """A model whose first step is followed by a freeze of its engine."""

    engine: Engine | None = None

    def forward(self, spans: Sequence[Span], cache: KVCache) -> Array:
        if self.engine is not None:
            self.engine.freeze(abort=False)
            self.engine = None
        return super().forward(spans, cache)


def load(folder: Path) -> PausesInAPrompt:
    config = read_config(folder)
    return PausesInAPrompt(config, load_weights(folder, config), LENGTH)


@contextmanager
def running(model: Model) -> Iterator[tuple[Engine, Queue[StepResult | None]]]:
    results: Queue[StepResult | None] = Queue()
    engine = Engine(
        model,
        max_sequences=2,
        max_model_len=LENGTH,
        deliver=lambda found: [results.put(step) for _, step in found] and None,
        failed=lambda: results.put(None),
    )
    engine.start()
    yield engine, results
    engine.stop()


def sampled(results: Queue[StepResult | None]) -> list[tuple[int, float, str]]:
    found = []
    while (step := results.get(timeout=LIMIT)) is not None and step.draw is not None:
        found.append((step.draw.token, step.draw.logprob, step.version))
        if step.finish_reason is not None:
            return found
    raise AssertionError(f"the engine stopped after {found}")


def request() -> GenerationRequest:
    return GenerationRequest(PROMPT, SamplingParams(temperature=0.0), max_tokens=4)


def test_a_prompt_that_a_change_of_weights_meets_half_way_is_read_again(model_dir: Path, tmp_path: Path) -> None:
    """Its tokens say that the new weights made them, so no key and no value of the old ones may be among theirs."""
    old, new = load(model_dir), load(other_weights(model_dir, tmp_path / "new"))
    with running(new) as (engine, results):
        engine.set_version("new").result(LIMIT)
        engine.submit(request())
        wanted = sampled(results)
    with running(old) as (engine, results):
        engine.set_version("old").result(LIMIT)
        old.engine, one = engine, request()
        engine.submit(one)
        while one.computed == 0:
            engine.set_version("old").result(LIMIT)
        assert one.computed == PROMPT_CHUNK, "the engine froze in the middle of the prompt"
        engine.swap(new).result(LIMIT)
        engine.set_version("new").result(LIMIT)
        engine.thaw().result(LIMIT)
        found = sampled(results)
    assert [(token, version) for token, _, version in found] == [(token, version) for token, _, version in wanted]
    assert [logprob for _, logprob, _ in found] == pytest.approx([logprob for _, logprob, _ in wanted], abs=1e-4)
