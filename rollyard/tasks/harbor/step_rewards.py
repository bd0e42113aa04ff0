"""The reward of a task from the results of its steps. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from rollyard.tasks.harbor.reward_files import Rewards


@dataclass(frozen=True)
class StepRewards:
    """A step that was begun."""

    name: str
    rewards: Rewards | None
    """None: its verifier gave none, or the step could not be prepared."""
    why: str = ""
    """Reason for no reward."""


def is_failed(rewards: Rewards, thresholds: Mapping[str, float]) -> bool:
    """Whether a step's rewards are below its least ones. A missing one is."""
    return any(rewards.get(key, -math.inf) < least for key, least in thresholds.items())


def of_steps(results: Sequence[StepRewards], strategy: Literal["mean", "final"]) -> Rewards | None:
    """Return the mean of each key, or the rewards of the last step. A missing key counts as 0, as does a step without rewards;
    the caller makes sure that the agent is the cause. None: no step has rewards."""
    given = [result.rewards for result in results if result.rewards is not None]
    if not given:
        return None
    keys = sorted({key for rewards in given for key in rewards})
    if strategy == "final":
        return results[-1].rewards if results[-1].rewards is not None else dict.fromkeys(keys, 0.0)
    return {key: sum((result.rewards or {}).get(key, 0.0) for result in results) / len(results) for key in keys}


def to_text(results: Sequence[StepRewards]) -> str:
    return json.dumps([asdict(result) for result in results])


def from_text(text: str) -> list[StepRewards]:
    return [StepRewards(**fields) for fields in json.loads(text)]
