"""Trains the policy from nothing: first a tokenizer, then supervised learning of generated conversations.

    python -m examples.tiny_policy.train --out examples/tiny_policy/model

The same seed, step count and number of threads give the same model. `--minutes` is a limit for slow machines: the
learning-rate schedule then shrinks to fit it. `--hot` makes a weak policy: further steps at the peak learning rate make
the weights noisy again, and reinforcement learning has something to improve.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from examples.tiny_policy import evaluate
from examples.tiny_policy.template import Part, opening, parts
from examples.tiny_policy.tokenizer import build_tokenizer
from examples.tiny_policy.trajectories import conversation, draw_problem, draw_setting, exercise

DRILLED_UNTIL = 0.12
EXERCISES_UNTIL = 0.5
CONSTANT_UNTIL = 0.45
ROWS = 32
GROUP = 4
"""Number of batches that share a setting and are sorted by length together, so that little is padded."""


@dataclass(frozen=True)
class Row:
    """One text as token ids, and whether each id is learned."""

    ids: list[int]
    trained: list[bool]


@dataclass(frozen=True)
class Batch:
    prefix: list[int]
    """The opening that all rows share (empty for exercises); computed once for each batch."""
    rows: list[Row]


def new_model(tokenizer: PreTrainedTokenizerFast, hidden: int, layers: int, feed_forward: int) -> Qwen3ForCausalLM:
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=feed_forward,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=4096,
        # vLLM's reload of weights is wrong for tied embeddings.
        tie_word_embeddings=False,
        initializer_range=0.05,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen3ForCausalLM(config)


def encode(tokenizer: PreTrainedTokenizerFast, cut: list[Part]) -> Row:
    ids: list[int] = []
    trained: list[bool] = []
    for part, part_ids in zip(cut, tokenizer([part.text for part in cut])["input_ids"], strict=True):
        ids += part_ids
        trained += [part.trained] * len(part_ids)
    return Row(ids, trained)


def exercise_batch(tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> Batch:
    return Batch([], [encode(tokenizer, exercise(rng)) for _ in range(2 * ROWS)])


def conversation_batches(tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> list[Batch]:
    setting = draw_setting(rng)
    prefix = tokenizer.encode(opening(setting))
    rows = [encode(tokenizer, parts(conversation(draw_problem(rng, setting), rng))) for _ in range(GROUP * ROWS)]
    rows.sort(key=lambda row: len(row.ids))
    return [Batch(prefix, rows[i : i + ROWS]) for i in range(0, len(rows), ROWS)]


class Curriculum:
    """Copying first, then conversations with some copying, then conversations alone."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> None:
        self._tokenizer = tokenizer
        self._rng = rng
        self._pool: list[Batch] = []

    def next(self, progress: float) -> Batch:
        if progress < DRILLED_UNTIL:
            return exercise_batch(self._tokenizer, self._rng)
        if not self._pool:
            for _ in range(GROUP):
                self._pool += conversation_batches(self._tokenizer, self._rng)
                if progress < EXERCISES_UNTIL:
                    self._pool.append(exercise_batch(self._tokenizer, self._rng))
            self._rng.shuffle(self._pool)
        return self._pool.pop()


def batch_loss(model: Qwen3ForCausalLM, batch: Batch) -> torch.Tensor:
    """Mean cross-entropy (nats) of the learned tokens."""
    length = max(len(row.ids) for row in batch.rows)
    ids = torch.zeros(len(batch.rows), length, dtype=torch.long)
    learned = torch.zeros(len(batch.rows), length, dtype=torch.bool)
    for i, row in enumerate(batch.rows):
        ids[i, : len(row.ids)] = torch.tensor(row.ids)
        learned[i, : len(row.ids)] = torch.tensor(row.trained)
    cache = DynamicCache()
    if batch.prefix:
        model.model(input_ids=torch.tensor([batch.prefix]), past_key_values=cache, use_cache=True)
        cache.batch_repeat_interleave(len(batch.rows))
    # Rows are padded on the right; the causal mask hides the padding from all other tokens.
    hidden = model.model(input_ids=ids[:, :-1], past_key_values=cache, use_cache=True).last_hidden_state
    learned = learned[:, 1:]
    return torch.nn.functional.cross_entropy(model.lm_head(hidden[learned]), ids[:, 1:][learned])


def optimizers(model: Qwen3ForCausalLM, rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices between embedding and head, AdamW for all else."""
    matrices = [p for p in model.model.layers.parameters() if p.dim() == 2]
    tables = [model.model.embed_tokens.weight, model.lm_head.weight]
    scales = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": tables, "weight_decay": 0.05}, {"params": scales, "weight_decay": 0.0}]
    return [
        torch.optim.Muon(matrices, lr=rate, weight_decay=0.05, momentum=0.95, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98)),
    ]


def rate_factor(step: int, progress: float) -> float:
    warm_up = min(1.0, step / 50)
    decay = 1.0 if progress < CONSTANT_UNTIL else max(0.0, (1 - progress) / (1 - CONSTANT_UNTIL))
    return warm_up * decay


def fit(
    model: Qwen3ForCausalLM, curriculum: Curriculum, steps: int, hot: int, seconds: float, rate: float
) -> Iterator[dict[str, Any]]:
    """Train `steps` and then `hot` steps; yields a record every 100 steps and at the end."""
    chain = optimizers(model, rate)
    started, tokens, mean, schedule_end = time.monotonic(), 0, 0.0, None
    for step in itertools.count(1):
        progress = max(step / steps, (time.monotonic() - started) / seconds)
        factor = rate_factor(step, progress) if schedule_end is None else 1.0
        if schedule_end is None and progress >= 1:
            schedule_end = step
        last = schedule_end is not None and step == schedule_end + hot
        for optimizer in chain:
            for group in optimizer.param_groups:
                group["lr"] = rate * factor
        batch = curriculum.next(progress)
        loss = batch_loss(model, batch)
        model.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in chain:
            optimizer.step()
        tokens += len(batch.prefix) + sum(len(row.ids) for row in batch.rows)
        mean += (loss.item() - mean) / min(step, 50)
        if step % 100 == 0 or last:
            yield {
                "step": step,
                "loss": round(mean, 5),
                "tokens": tokens,
                "seconds": round(time.monotonic() - started, 1),
                "cpu_seconds": round(time.process_time(), 1),
            }
        if last:
            return


def save(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write the folder for loading, with weights in bfloat16."""
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)
    # Both older and newer transformers know a plain tokenizer.json by this name.
    config_path = out / "tokenizer_config.json"
    config = json.loads(config_path.read_text())
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    config_path.write_text(json.dumps(config, indent=2) + "\n")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=20.0, help="the schedule shrinks to end by then")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--hot", type=int, default=0, help="steps at the peak learning rate after the schedule")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rate", type=float, default=2e-3, help="peak learning rate")
    parser.add_argument("--vocabulary", type=int, default=1024)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--feed-forward", type=int, default=256)
    parser.add_argument("--tasks", type=int, default=400, help="held-out tasks of each kind in the final evaluation")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    tokenizer = build_tokenizer(args.vocabulary, random.Random(args.seed))
    model = new_model(tokenizer, args.hidden, args.layers, args.feed_forward)
    print(f"{model.num_parameters()} parameters, {len(tokenizer)} tokens", flush=True)

    history = []
    curriculum = Curriculum(tokenizer, random.Random(args.seed))
    for record in fit(model, curriculum, args.steps, args.hot, 60 * args.minutes, args.rate):
        history.append(record)
        print(json.dumps(record), flush=True)
    save(model, tokenizer, args.out)

    scores = {f"temperature {t:g}": evaluate.evaluate_folder(args.out, args.tasks, temperature=t) for t in (1.0, 0.0)}
    print(json.dumps(scores, indent=1), flush=True)
    settings = {"seed": args.seed, "threads": args.threads, "rate": args.rate, "steps": args.steps, "hot": args.hot}
    figures = {
        "parameters": model.num_parameters(),
        **settings,
        **history[-1],
        "held_out_tasks_of_each_kind": args.tasks,
    }
    (args.out / "training.json").write_text(
        json.dumps({**figures, "success": scores, "history": history}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
