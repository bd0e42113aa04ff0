"""The arrays of one training step, from the stored columns of its groups.

The baseline makes trajectories with lists of Python numbers, and then the same arrays from the lists, row by row. So
does a trainer that reads results as JSON, beside the parsing of the JSON.

    python -m bench.collate [--groups 16] [--tokens 8192]
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence

import numpy as np

from bench.control_plane import outcome
from rollyard.client.advantages import group_advantages
from rollyard.client.training_rows import TrainingRows, collate
from rollyard.kinds.base import evolve
from rollyard.kinds.task import Task
from rollyard.trajectory import Segment, Trajectory
from rollyard.trajectory.columns import decode, encode, join

N, REPEATS = 8, 5


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--groups", type=int, default=16)
    options.add_argument("--tokens", type=int, default=8192, help="of the longest rollout")
    given = options.parse_args()
    groups, rng = range(given.groups), random.Random(0)
    files = [encode([_rollout(g, i, rng.randint(given.tokens // 4, given.tokens)) for i in range(N)]) for g in groups]
    ours, rows = _seconds(lambda: collate(join([decode(file) for file in files])))
    theirs, same = _seconds(lambda: _from_lists([decode(file).trajectories() for file in files]))
    assert all(np.array_equal(getattr(rows, name), getattr(same, name)) for name in vars(rows))
    print(f"{given.groups} groups of {N} rollouts, {int(rows.attention_mask.sum())} tokens, fastest of {REPEATS}")
    print(f"{'':42}{'ours':>10}{'baseline':>10}{'ratio':>8}")
    print(f"{'columns to padded arrays, s':42}{ours:10.3f}{theirs:10.3f}{ours / theirs:8.3f}")


def _rollout(group: int, number: int, tokens: int) -> Trajectory:
    made = outcome(tokens, prompt=min(501, tokens // 2))
    task, about = Task(kind="null"), {"group": f"g{group}", "sample_index": number, "attempt": 1}
    identity = {"id": f"g{group}.{number}", "task": task, **about}
    return evolve(Trajectory.model_construct(**identity, status=made.status), segments=made.segments, reward=number % 2)


def _seconds(make: Callable[[], TrainingRows]) -> tuple[float, TrainingRows]:
    times = []
    for _ in range(REPEATS):
        before = time.perf_counter()
        rows = make()
        times.append(time.perf_counter() - before)
    return min(times), rows


def _from_lists(groups: Sequence[Sequence[Trajectory]]) -> TrainingRows:
    rows: list[tuple[int, int, float, float, Segment]] = []
    for position, group in enumerate(groups):
        gains = group_advantages([one.reward for one in group])
        for one, gain in zip(group, gains, strict=True):
            number = position * N + one.sample_index
            rows += [(position, number, float(one.reward or 0), float(gain), segment) for segment in one.segments]
    shape = len(rows), max(len(segment.token_ids) for *_, segment in rows)
    input_ids, attention_mask, loss_mask = (np.zeros(shape, np.int64) for _ in range(3))
    logprobs, weights_version = np.zeros(shape, np.float32), np.full(shape, -1, np.int32)
    numbers = dict[str | None, int]()
    for i, (*_, segment) in enumerate(rows):
        n = len(segment.token_ids)
        input_ids[i, :n], attention_mask[i, :n], loss_mask[i, :n] = segment.token_ids, 1, segment.loss_mask
        logprobs[i, :n] = [0.0 if logprob is None else logprob for logprob in segment.logprobs]
        weights_version[i, :n] = [
            -1 if version is None else numbers.setdefault(version, len(numbers)) for version in segment.weights_version
        ]
    return TrainingRows(
        input_ids=input_ids, attention_mask=attention_mask, loss_mask=loss_mask, logprobs=logprobs,
        weights_version=weights_version, versions=tuple(str(version) for version in numbers),
        rewards=np.array([reward for _, _, reward, _, _ in rows]), advantages=np.array([gain for *_, gain, _ in rows]),
        group=np.array([position for position, *_ in rows], np.int32),
        rollout=np.array([number for _, number, *_ in rows], np.int32),
    )  # fmt: skip


if __name__ == "__main__":
    main()
