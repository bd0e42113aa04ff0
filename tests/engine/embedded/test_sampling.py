"""Draws follow the distribution that was asked for, and depend on seed and count alone."""

from __future__ import annotations

import numpy as np
import pytest

from rollyard.engine.embedded.completions_api import version_spans
from rollyard.engine.embedded.generation import StepResult
from rollyard.engine.embedded.sampling import Draw, SamplingParams, sample

LOGITS = np.log(np.array([0.5, 0.25, 0.15, 0.06, 0.04], np.float32)) + 3
N = 20_000


def draws(params: SamplingParams, count: int = N) -> list[Draw]:
    return sample(np.tile(LOGITS, (count, 1)), [params] * count, range(count))


def shares(params: SamplingParams) -> list[float]:
    tokens = [draw.token for draw in draws(params)]
    return (np.bincount(tokens, minlength=len(LOGITS)) / len(tokens)).tolist()


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (SamplingParams(seed=1), [0.5, 0.25, 0.15, 0.06, 0.04]),
        (SamplingParams(seed=2, temperature=0.5), [0.7349, 0.1837, 0.0661, 0.0106, 0.0047]),
        (SamplingParams(seed=3, top_k=2), [0.6667, 0.3333, 0, 0, 0]),
        (SamplingParams(seed=4, top_p=0.8), [0.5556, 0.2778, 0.1667, 0, 0]),
        (SamplingParams(seed=5, top_p=0.5), [1, 0, 0, 0, 0]),
        (SamplingParams(seed=6, top_k=3, top_p=0.9, temperature=2.0), [0.4433, 0.3135, 0.2428, 0, 0]),
        (SamplingParams(seed=7, temperature=0), [1, 0, 0, 0, 0]),
    ],
    ids=str,
)
def test_draws_follow_the_distribution(params: SamplingParams, expected: list[float]) -> None:
    found = shares(params)
    assert found == pytest.approx(expected, abs=0.01)
    assert all(share == 0 for share, wanted in zip(found, expected, strict=True) if wanted == 0)


def test_logprobs_are_the_models_own() -> None:
    exact = np.log([0.5, 0.25, 0.15, 0.06, 0.04])
    for params in (
        SamplingParams(temperature=0.3, seed=1),
        SamplingParams(top_k=2, seed=1),
        SamplingParams(temperature=0),
    ):
        assert [d.logprob for d in draws(params, 50)] == pytest.approx(
            [exact[d.token] for d in draws(params, 50)], abs=1e-6
        )


def test_top_logprobs_are_sorted() -> None:
    (draw,) = draws(SamplingParams(top_logprobs=3), 1)
    assert [token for token, _ in draw.top] == [0, 1, 2]
    assert [logprob for _, logprob in draw.top] == pytest.approx(np.log([0.5, 0.25, 0.15]), abs=1e-6)


def test_a_draw_depends_on_seed_and_count_alone() -> None:
    params = [SamplingParams(seed=seed) for seed in range(200)]
    rows = np.tile(LOGITS, (200, 1))
    tokens = [draw.token for draw in sample(rows, params, [5] * 200)]
    assert [sample(rows[:1], [p], [5])[0].token for p in params] == tokens
    assert [draw.token for draw in sample(rows, params, [6] * 200)] != tokens


def test_neighbouring_seeds_are_independent() -> None:
    params = [SamplingParams(seed=seed) for seed in range(-N // 2, N // 2)]
    tokens = [draw.token for draw in sample(np.tile(LOGITS, (N, 1)), params, [0] * N)]
    assert np.bincount(tokens).tolist() == pytest.approx(
        [0.5 * N, 0.25 * N, 0.15 * N, 0.06 * N, 0.04 * N], abs=0.015 * N
    )


def test_a_span_of_a_version_has_no_token_of_weights_without_a_name() -> None:
    steps = [StepResult(Draw(1, 0.0, ()), version=version) for version in ("", "v1", "v1", "", "v1", "v2")]
    assert version_spans([*steps, StepResult(None, "abort", version="v2")]) == [
        {"version": "v1", "start": 1, "end": 3},
        {"version": "v1", "start": 4, "end": 5},
        {"version": "v2", "start": 5, "end": 6},
    ]
