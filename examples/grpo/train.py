"""GRPO with dynamic sampling on two CPU cores: an under-trained tiny-policy learns to use its tools.

    python -m examples.grpo.train                     # one batch a step; what is unfinished is carried over
    python -m examples.grpo.train --async             # one stream; generation goes on while the trainer trains

The service draws tasks, runs groups of rollouts in sandboxes, filters groups without a signal, and records the version of
the weights that sampled each token. The trainer has a loss, an optimizer and `push`.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from rich.bar import Bar
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM

from examples.grpo.plot import draw
from examples.local_server import ROOT, served_pools
from examples.tiny_policy.families import sample_math
from rollyard.client import Client
from rollyard.client.training_rows import TrainingRows, collate
from rollyard.kinds.base import evolve
from rollyard.kinds.batch import BatchRequest, BatchView, DatasetRef
from rollyard.kinds.rollout import AgentSpec, RolloutRequest, Sampling
from rollyard.kinds.task import Task
from rollyard.trajectory.columns import join
from rollyard.trajectory.group import Group

POOLS = Path(__file__).with_name("pools.yaml")
WEAK = ROOT / "examples" / "tiny_policy" / "weak"
CLIP_LOW, CLIP_HIGH = 0.2, 0.28
"""Bounds of the probability ratio. DAPO, arXiv 2503.14476, section 3.1."""
TASKS = 4000
TaskSets = tuple[Sequence[Task], Sequence[Task]]
"""Tasks of the training, and held-out tasks."""
SAMPLING = Sampling(temperature=1.0, max_tokens=120)
AGENT = AgentSpec(max_turns=4)
"""The policy needs two turns; a weak one would go on for as long as it may."""


@dataclass(frozen=True)
class StepRecord:
    """Metrics of one training step. Step 0 has only the held-out reward before training; all else is None."""

    step: int
    minutes: float = 0.0
    """Since the start of the training, measurements included."""
    reward: float | None = None
    """Mean reward of the step's groups and of the groups that were filtered since the step before."""
    filtered: float | None = None
    """Share of groups without a signal."""
    entropy: float | None = None
    """Mean entropy (nats) of the policy at sampled tokens."""
    staleness: float | None = None
    """Mean number of weights versions by which a trained token is behind the trained weights."""
    tokens_per_second: float | None = None
    """Sampled tokens that were trained on, by wall time."""
    clipped: float | None = None
    """Share of trained tokens whose gradient the clipping removed."""
    versions: Mapping[str, int] = field(default_factory=dict)
    """Trained tokens by the weights version that sampled them."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Time of the step's parts: rollouts, train, push, held_out."""
    held_out: float | None = None
    """Mean reward on held-out tasks after the step, at temperature 1."""


@dataclass(frozen=True)
class Options:
    minutes: float
    steps: int
    groups: int
    n: int
    updates: int
    rate: float
    seed: int
    stream: bool
    held_out: int
    every: int
    threads: int
    out: Path


class Trainer:
    """Model, optimizer and loss. Nothing here knows where rollouts come from."""

    def __init__(self, updates: int) -> None:
        self.updates = updates
        self.model: Any = AutoModelForCausalLM.from_pretrained(WEAK, dtype=torch.float32)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), betas=(0.9, 0.99), weight_decay=0.0)

    def step(self, rows: TrainingRows, rate: float) -> tuple[float, float]:
        """Use each row in one of `updates` optimizer steps; return the mean entropy and the share of clipped tokens."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        entropy, clipped = 0.0, 0.0
        for part in torch.randperm(len(rows.rewards)).chunk(self.updates):
            loss, tokens, some_entropy, some_clipped = self._loss(rows, part.numpy())
            self.optimizer.zero_grad()
            torch.autograd.backward(loss / tokens)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            entropy, clipped = entropy + some_entropy, clipped + some_clipped
        return entropy / rows.sampled_tokens, clipped / rows.sampled_tokens

    def _loss(self, rows: TrainingRows, part: np.ndarray[Any, Any]) -> tuple[torch.Tensor, int, float, float]:
        """Sums over sampled tokens: clipped policy-gradient loss, tokens, entropy, clipped tokens."""
        length = int(rows.attention_mask[part].sum(1).max())
        ids, attention, mask, old = (
            torch.from_numpy(array[part, :length])
            for array in (rows.input_ids, rows.attention_mask, rows.loss_mask, rows.logprobs)
        )
        sampled = mask[:, 1:].bool()
        hidden = self.model.model(input_ids=ids, attention_mask=attention).last_hidden_state[:, :-1]
        logprobs = torch.log_softmax(self.model.lm_head(hidden[sampled]), dim=-1)
        chosen = logprobs.gather(1, ids[:, 1:][sampled][:, None])[:, 0]
        ratio = (chosen - old[:, 1:][sampled]).exp()
        advantage = torch.from_numpy(rows.advantages[part].astype(np.float32))[:, None].expand(sampled.shape)[sampled]
        bounded = ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH)
        loss = -torch.minimum(ratio * advantage, bounded * advantage).sum()
        with torch.no_grad():
            entropy = -(logprobs.exp() * logprobs).sum().item()
            clipped = (ratio * advantage > bounded * advantage).sum().item()
        return loss, int(sampled.sum()), entropy, clipped


def batches(client: Client, options: Options) -> Generator[tuple[list[Group], BatchView, BatchView | None]]:
    """Yield the groups of one step after the other, with the batch's state now and at the step before."""
    request = BatchRequest(
        pool="train",
        n=options.n,
        dataset=DatasetRef(name="tasks", seed=options.seed),
        sampling=SAMPLING,
        agent=AGENT,
    )
    if options.stream:
        stream = client.batch(evolve(request, step_groups=options.groups, max_staleness=1))
        before = None
        while True:
            found = [next(stream) for _ in range(options.groups)]
            assert stream.view is not None
            yield found, stream.view, before
            before = stream.acknowledge()
    while True:
        batch = client.batch(evolve(request, target=options.groups))
        found = list(batch)
        assert batch.view is not None
        yield found, batch.view, None


def evaluate(client: Client, tasks: Sequence[Task], version: str | None) -> float:
    """Mean reward on held-out tasks, one rollout each; before all training rollouts in the queue."""
    requests = [
        RolloutRequest(
            pool="train",
            task=task,
            sampling=SAMPLING,
            agent=AGENT,
            mode="eval",
            priority=10,
            min_weights_version=version,
        )
        for task in tasks
    ]
    ended = client.wait_many(client.submit(requests))
    return float(np.mean([t.reward for t in ended if t.reward is not None]))


def tokens_by_version(rows: TrainingRows) -> dict[str, int]:
    counts = np.bincount(rows.weights_version[rows.loss_mask == 1], minlength=len(rows.versions))
    return dict(zip(rows.versions, counts.tolist(), strict=True))


def staleness(versions: Mapping[str, int], step: int) -> float:
    """Mean number of versions between a token's weights and those of the step. The first weights count as version 0."""
    behind = {v: step - int(v.removeprefix("step")) if v.startswith("step") else step for v in versions}
    return sum(behind[v] * tokens for v, tokens in versions.items()) / sum(versions.values())


def filtered_share(now: BatchView, before: BatchView | None) -> tuple[float, float]:
    """Share of uninformative groups since the step before, and the share of those in which everything was right."""

    def counts(view: BatchView | None) -> np.ndarray[Any, Any]:
        f = view.filtered if view is not None else None
        return np.array([0, 0, 0] if view is None or f is None else [f.all_low + f.other, f.all_high, view.delivered])

    low, high, delivered = counts(now) - counts(before)
    groups = max(1, low + high + delivered)
    return float((low + high) / groups), float(high / groups)


class Laps:
    """Seconds of the parts of a step, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.monotonic()

    def end(self, name: str) -> None:
        now = time.monotonic()
        self.seconds[name], self._last = round(now - self._last, 2), now


def arithmetic(options: Options) -> TaskSets:
    rng = random.Random(options.seed)
    tasks = [sample_math(rng, held_out=False) for _ in range(TASKS)]
    tests = [sample_math(random.Random(10_000 + i), held_out=True) for i in range(options.held_out)]
    return [Task.model_validate(task) for task in tasks], [Task.model_validate(task) for task in tests]


def train(client: Client, options: Options, sets: TaskSets, console: Console) -> list[StepRecord]:
    """Train for so many steps; stop earlier if the time is over."""
    tasks, tests = sets
    client.put_dataset("tasks", tasks)
    trainer, records, started = Trainer(options.updates), list[StepRecord](), time.monotonic()

    def minutes() -> float:
        return (time.monotonic() - started) / 60

    def keep(record: StepRecord) -> None:
        records.append(record)
        console.print(row_text(record, options.steps, options.minutes), highlight=False, soft_wrap=True)
        with (options.out / "steps.jsonl").open("a") as file:
            file.write(json.dumps(asdict(record)) + "\n")

    console.print(f"first a measurement on {len(tests)} held-out tasks", highlight=False)
    keep(StepRecord(0, held_out=evaluate(client, tests, None)))
    with client.weights("policy", folder=options.out / "weights") as weights:
        steps = batches(client, options)
        for step in range(1, options.steps + 1):
            laps = Laps()
            groups, view, before = next(steps)
            laps.end("rollouts")
            rows = collate(join([group.columns for group in groups]))
            progress = (step - 1) / options.steps
            entropy, clipped = trainer.step(rows, options.rate * max(0.0, 1 - progress))
            laps.end("train")
            version = weights.push(trainer.model)
            laps.end("push")
            filtered, all_right = filtered_share(view, before)
            versions, tokens_per_second = tokens_by_version(rows), rows.sampled_tokens / sum(laps.seconds.values())
            last = step == options.steps or minutes() > options.minutes
            held_out = evaluate(client, tests, version) if last or step % options.every == 0 else None
            laps.end("held_out")
            keep(
                StepRecord(
                    step=step,
                    minutes=minutes(),
                    reward=(1 - filtered) * float(np.mean(rows.rewards)) + all_right,
                    filtered=filtered,
                    entropy=entropy,
                    staleness=staleness(versions, step - 1),
                    tokens_per_second=tokens_per_second,
                    clipped=clipped,
                    versions=versions,
                    seconds=laps.seconds,
                    held_out=held_out,
                )
            )
            if last and step < options.steps:
                words = f"stopped after {step} of {options.steps} steps: the {options.minutes:g} minutes are over"
                console.print(f"{words}; give more with --minutes", highlight=False, soft_wrap=True)
            if last:
                break
    trainer.model.save_pretrained(options.out / "model")
    return records


def row_text(r: StepRecord, steps: int, minutes: float) -> str:
    """Return a step's metrics, and how far the training is."""
    parts = [f"step {r.step:3d} of {steps}  {r.minutes:4.1f} min"]
    if 0 < r.step < steps:
        left = r.minutes / r.step * (steps - r.step)
        late = f", but --minutes {minutes:g} ends it" if r.minutes + left > minutes else ""
        parts[0] += f", about {left:.0f} left{late}"
    parts += [] if r.reward is None else [f"reward {r.reward:.3f}"]
    parts += [] if r.filtered is None else [f"filtered {r.filtered:.2f}"]
    parts += [] if r.entropy is None else [f"entropy {r.entropy:.3f}"]
    parts += [] if r.staleness is None else [f"staleness {r.staleness:.2f}"]
    parts += [] if r.tokens_per_second is None else [f"{r.tokens_per_second:4.0f} tokens/s"]
    parts += [] if r.held_out is None else [f"held-out {r.held_out:.3f}"]
    return "  ".join(parts)


def report(records: Sequence[StepRecord], console: Console) -> None:
    """Print the steps after which the held-out reward was measured, the reward as a bar."""
    table = Table(title="held-out reward by training step", box=None, padding=(0, 1))  # 80 columns
    for name in ("step", "min", "reward", "filtered", "entropy", "stale", "tok/s", "held-out"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column(width=12)
    for r in records:
        if r.held_out is not None:
            cells = (r.minutes, r.reward, r.filtered, r.entropy, r.staleness, r.tokens_per_second, r.held_out)
            numbers = ["-" if c is None else f"{c:.2f}" if c < 10 else f"{c:.0f}" for c in cells]
            table.add_row(str(r.step), *numbers, Bar(1.0, 0.0, r.held_out))
    console.print(table)


SomeOptions = TypeVar("SomeOptions", bound=Options)


def option_parser(description: str | None, name: str, *, steps: int, rate: float) -> argparse.ArgumentParser:
    """`name`: folder in `demo-output` that gets a new folder for each run. `steps`, `rate`: defaults."""
    runs = ROOT / "demo-output" / name
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=steps, help=f"training steps  [default: {steps}]")
    parser.add_argument("--minutes", type=float, default=40.0, help="no new step begins after this time  [default: 40]")
    parser.add_argument("--groups", type=int, default=8, help="informative groups of a step")
    parser.add_argument("--n", type=int, default=8, help="rollouts of a group")
    parser.add_argument(
        "--updates", type=int, default=4, help="optimizer steps of a step, each with a part of the rows"
    )
    parser.add_argument("--rate", type=float, default=rate, help="learning rate; it falls to zero over the run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--async", dest="stream", action="store_true", help="train from a stream, one step behind")
    parser.add_argument("--held-out", type=int, default=100, help="rollouts of a measurement")
    parser.add_argument("--every", type=int, default=5, help="steps between two measurements")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    new = runs / time.strftime("%Y%m%d-%H%M%S")
    parser.add_argument("--out", type=Path, default=new, help=f"new folder for the run  [default: {runs}/TIME]")
    return parser


def parse_options(parser: argparse.ArgumentParser, kind: type[SomeOptions]) -> SomeOptions:
    options = kind(**vars(parser.parse_args()))
    if any((options.out / name).exists() for name in ("steps.jsonl", "curve.svg")):
        parser.error(f"{options.out} has the steps of an earlier run; name another folder with --out, or delete it")
    return options


def run(options: Options, make_tasks: Callable[[Path, Console], TaskSets]) -> None:
    """Serve the pools, make the tasks, train, and draw the curve. `make_tasks` gets the server's kubeconfig."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server and its pools are ended on exit
    console = Console()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    try:
        with served_pools(console, POOLS) as kubeconfig, Client(kubeconfig=kubeconfig) as client:
            console.print(f"watch it: rollyard top --kubeconfig {kubeconfig}", soft_wrap=True, highlight=False)
            report(train(client, options, make_tasks(kubeconfig, console), console), console)
        console.print(f"written: the trained weights in {options.out / 'model'}", soft_wrap=True)
    finally:  # also of a run that is stopped
        if (options.out / "steps.jsonl").exists():
            draw([options.out / "steps.jsonl"], options.out / "curve.svg")
            console.print(f"written: {options.out / 'curve.svg'}", soft_wrap=True)


if __name__ == "__main__":
    given = parse_options(option_parser(__doc__, "grpo", steps=26, rate=8e-5), Options)
    run(given, lambda kubeconfig, console: arithmetic(given))
