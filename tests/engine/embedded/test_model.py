"""The forward pass: against transformers, and against itself in other batches."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollyard.engine.embedded import matrix_product
from rollyard.engine.embedded.kv_cache import KVCache
from rollyard.engine.embedded.model import Model, Span
from rollyard.engine.embedded.model_weights import load_weights
from rollyard.engine.embedded.safetensors_files import Array
from rollyard.model_folder.model_config import read_config
from tests.support.reference_model import ReferenceModel

pytestmark = pytest.mark.slow(40)

CAPACITY = 512
PROVEN_ANEW = "test_weights_that_answer_as_the_old_ones_do_are_proven_by_an_engine_that_is_started_on_them"
Build = Callable[..., Path]


def load(folder: Path) -> Model:
    config = read_config(folder)
    return Model(config, load_weights(folder, config), CAPACITY)


def ids(count: int, vocabulary: int, seed: int = 0) -> list[int]:
    numbers = random.Random(seed)
    return [numbers.randrange(vocabulary) for _ in range(count)]


def run(model: Model, cache: KVCache, *spans: Span) -> Array:
    return model.forward(spans, cache)


@pytest.fixture(scope="module")
def policy(model_dir: Path) -> Model:
    return load(model_dir)


@pytest.fixture
def cache(policy: Model) -> KVCache:
    return KVCache(policy.config, 8, CAPACITY)


@pytest.fixture
def random_model(tmp_path: Path) -> Build:
    """A folder that transformers wrote: random weights, any shape."""

    def build(dtype: str = "float32", shard: str = "1GB", **changes: Any) -> Path:
        import torch
        from transformers import Qwen3Config, Qwen3ForCausalLM

        sizes = {"vocab_size": 96, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2}
        heads = {
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "max_position_embeddings": CAPACITY,
        }
        torch.manual_seed(1)
        model = Qwen3ForCausalLM(Qwen3Config(**{**sizes, **heads, "initializer_range": 0.3, **changes}))
        with torch.no_grad():  # norms start as ones, which would hide a norm that is left out
            for name, weight in model.named_parameters():
                if "norm" in name:
                    weight.uniform_(0.5, 1.5)
        model.to(getattr(torch, dtype)).save_pretrained(tmp_path, max_shard_size=shard)
        return tmp_path

    return build


def transformers_logits(folder: Path, tokens: list[int]) -> Array:
    """[tokens, vocab], float32."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logits: Array = model(torch.tensor([tokens])).logits[0].numpy()
    return logits


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"tie_word_embeddings": True},
        {"num_key_value_heads": 4},
        {"num_key_value_heads": 1, "head_dim": 32},
        {"rope_theta": 500_000.0},
        {"dtype": "bfloat16"},
        {"shard": "20KB"},
    ],
    ids=str,
)
def test_logits_agree_with_transformers(random_model: Build, shape: dict[str, Any]) -> None:
    folder = random_model(**shape)
    model, tokens = load(folder), ids(40, 96)
    cache = KVCache(model.config, 2, CAPACITY)
    expected = transformers_logits(folder, tokens)
    first = run(model, cache, Span(0, 0, tokens[:30]))
    steps = [run(model, cache, Span(0, n, tokens[n : n + 1])) for n in range(30, 40)]
    np.testing.assert_allclose(np.concatenate([first, *steps]), expected[29:], atol=2e-4)
    reference = ReferenceModel(folder)
    begun, keys_and_values = reference.logits(tokens[:30])
    rest, _ = reference.logits(tokens[30:], keys_and_values)
    np.testing.assert_allclose(np.concatenate([begun, rest]), expected, atol=2e-4)


def test_rope_theta_is_read_in_the_older_spelling(random_model: Build) -> None:
    folder = random_model(rope_theta=500_000.0)
    config = json.loads((folder / "config.json").read_text())
    theta = config.pop("rope_parameters")["rope_theta"]
    (folder / "config.json").write_text(json.dumps(config | {"rope_theta": theta, "rope_scaling": None}))
    assert read_config(folder).rope_theta == 500_000.0


@pytest.mark.parametrize("alone", [False, True], ids=["blocks", "row-by-row"])
def test_batch_mates_change_no_bit(policy: Model, monkeypatch: pytest.MonkeyPatch, alone: bool) -> None:
    if alone:  # as on a machine on which no height of blocks holds
        monkeypatch.setattr(matrix_product, "block_heights", lambda inputs, outputs: (1,))
    lengths = [5, 60, 200, 17, 129, 33, 90, 8, 300, 2, 71, 44, 16]
    cache = KVCache(policy.config, len(lengths), CAPACITY)
    prompts = [ids(n, policy.config.vocab_size, seed=n) for n in lengths]
    together = run(policy, cache, *(Span(i, 0, prompt) for i, prompt in enumerate(prompts)))
    stepped = run(policy, cache, *(Span(i, n, [9]) for i, n in enumerate(lengths)))
    fewer = run(policy, cache, *(Span(i, n + 1, [7]) for i, n in enumerate(lengths[:3])))
    mixed = run(policy, cache, Span(4, 130, [5, 6, 7]), *(Span(i, n + 1, [7]) for i, n in enumerate(lengths[:3])))
    assert np.array_equal(mixed[1:], fewer)
    for i, prompt in enumerate(prompts):
        own = KVCache(policy.config, 1, CAPACITY)
        assert np.array_equal(run(policy, own, Span(0, 0, prompt))[0], together[i])
        assert np.array_equal(run(policy, own, Span(0, lengths[i], [9]))[0], stepped[i])


def test_blocks_in_which_a_place_shows_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def even(rows: Array, matrix: Array) -> Array:
        """Each number is a sum of its own, on every machine."""
        whole: Array = (rows[..., None, :] * matrix.T).sum(axis=-1)
        return whole

    def uneven(rows: Array, matrix: Array) -> Array:
        """The last rows of a product add in another order."""
        whole = even(rows, matrix)
        if rows.shape[-2] > 2:
            whole[..., -2:, :] = even(rows[..., -2:, ::-1], matrix[::-1])
        return whole

    monkeypatch.setattr(np, "matmul", even)
    assert matrix_product.block_heights.__wrapped__(128, 96) == (2, 4, 8)
    monkeypatch.setattr(np, "matmul", uneven)
    assert matrix_product.block_heights.__wrapped__(128, 96) == (1,)


@pytest.mark.parametrize(
    "kernels",
    [
        pytest.param("Haswell", marks=pytest.mark.long),
        "Prescott",  # the one that differs most from those of today's CPUs
        pytest.param("Sandybridge", marks=pytest.mark.long),
    ],
)
def test_no_choice_of_blas_kernels_lets_batch_mates_show(kernels: str) -> None:
    """OpenBLAS picks its kernels by the CPU, when it is loaded: another CPU's need another process."""
    tests = ["test_model.py::test_batch_mates_change_no_bit", f"../weights/test_updater.py::{PROVEN_ANEW}[Pause]"]
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
    command += [str(Path(__file__).parent / test) for test in tests]
    ran = subprocess.run(command, env=os.environ | {"OPENBLAS_CORETYPE": kernels}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "3 passed" in ran.stdout


def test_prompts_and_single_tokens_share_a_batch(policy: Model, cache: KVCache) -> None:
    prompt = ids(80, policy.config.vocab_size)
    whole = run(policy, cache, Span(0, 0, prompt))
    run(policy, cache, Span(1, 0, prompt[:79]))
    mixed = run(policy, cache, Span(1, 79, prompt[79:]), Span(2, 0, prompt))
    np.testing.assert_allclose(mixed, np.repeat(whole, 2, axis=0), atol=1e-4)


def test_a_reused_prefix_gives_the_same_logits(policy: Model, cache: KVCache) -> None:
    shared, tails = ids(100, policy.config.vocab_size), [[3, 4], [5, 6]]
    slot, common = cache.acquire(shared + tails[0])
    assert common == 0
    fresh = run(policy, cache, Span(slot, 0, shared + tails[0]))
    cache.extend(slot, shared + tails[0])
    other, common = cache.acquire(shared + tails[1])
    assert (other != slot, common) == (True, 100)
    copied = run(policy, cache, Span(other, 100, tails[1]))
    again = KVCache(policy.config, 1, CAPACITY)
    np.testing.assert_allclose(copied, run(policy, again, Span(0, 0, shared + tails[1])), atol=1e-4)
    cache.release(slot)
    back, common = cache.acquire(shared + tails[0] + [7])
    assert (back, common) == (slot, 102)
    cache.release(back)
    assert fresh.shape == copied.shape


def test_the_slot_longest_unused_is_given_away_first(policy: Model) -> None:
    cache = KVCache(policy.config, 3, CAPACITY)
    for first in (10, 20, 30):
        slot, _ = cache.acquire([first, 1, 2])
        cache.extend(slot, [first, 1, 2])
        cache.release(slot)
    assert cache.acquire([40, 1, 2])[1] == 0
    assert cache.acquire([10, 1, 2, 3])[1] == 0
    assert cache.acquire([30, 1, 2, 3])[1] == 3
