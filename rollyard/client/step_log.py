"""Metrics of training steps for a trainer's own logger: TensorBoard, Weights & Biases, trackio, or anything with `log`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from rollyard.kinds.metric_history import TrainingStep

PREFIX = "rollyard/"
_NO_VALUES = frozenset({"batch", "step"})


class StepLog(Protocol):
    """Logger of a batch: `client.batch(request, log=...)`. It may block; it is called in a thread, one call at a time."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take the values of one training step, such as `rollyard/reward_mean`. Each step of a batch comes once, in order;
        after a restart of the trainer the steps of the same batch come again. Unknown values are left out."""


def step_values(step: TrainingStep) -> dict[str, float]:
    """Return the values of a step by name. A value without a number is left out, never 0; so is a list."""
    found = step.model_dump(exclude=set(_NO_VALUES)).items()
    return {PREFIX + name: float(value) for name, value in found if isinstance(value, int | float)}


def complete_steps(steps: Iterable[TrainingStep], *, step_groups: int | None, ended: bool) -> list[TrainingStep]:
    """Return the steps to which no group will be added: all if the batch has ended, else those before the last one, and the
    last one if it has all its groups."""
    found = list(steps)
    if not ended and found and found[-1].groups != step_groups:
        found.pop()
    return found


class TensorBoardLog:
    """Log of a `SummaryWriter`, that of torch.utils.tensorboard or of tensorboardX."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()


class ExperimentLog:
    """Log of a run of Weights & Biases (what `wandb.init` returns), or of the module `trackio` after `trackio.init`."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)
