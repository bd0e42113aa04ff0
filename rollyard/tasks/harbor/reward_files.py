"""The files in which a verifier of Harbor writes its reward. Pure.

They are read as Harbor 0.25 reads them (harbor/verifier/verifier.py): reward.json comes before reward.txt, and the exit status
of the script has no meaning. A program of the agent that the tests run can write them too. So if both are there and differ, and
the tests name reward.txt alone, reward.txt counts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

from rollyard.core.errors import TaskError

REWARD = "reward"
REWARD_JSON, REWARD_TEXT = "/logs/verifier/reward.json", "/logs/verifier/reward.txt"
Rewards = Mapping[str, float]
_DIFFERENT = "reward.json and reward.txt have different rewards; a program of the agent may have written one"
_NAMED_BY_NOBODY = (
    "there is only reward.json, and the tests name reward.txt alone; a program of the agent may have written it"
)


class UnreadableReward(Exception):
    """The files have no reward. `str()` is a sentence."""


@dataclass(frozen=True)
class RewardFiles:
    rewards: Rewards
    suspicions: tuple[str, ...] = ()
    """Sentences about what a program of the agent may have written."""
    notes: tuple[str, ...] = ()


def read_rewards(as_json: bytes | None, as_text: bytes | None, *, names_text: bool = False) -> RewardFiles:
    """Return the rewards by their keys. None: there is no such file. `names_text`: the tests name reward.txt, and never
    reward.json. Raises UnreadableReward."""
    if as_json is None and as_text is None:
        raise UnreadableReward("the verifier wrote neither reward.json nor reward.txt")
    if as_json is None:
        return RewardFiles(_of_text(as_text or b""))
    if as_text is None:
        return RewardFiles(_of_json(as_json), (_NAMED_BY_NOBODY,) if names_text else ())
    if not _contradict(as_json, as_text):
        return RewardFiles(_of_json(as_json))
    if names_text:
        return RewardFiles(_of_text(as_text), notes=("reward.json does not count: the tests name reward.txt alone",))
    return RewardFiles(_of_json(as_json), (_DIFFERENT,))


def _contradict(as_json: bytes, as_text: bytes) -> bool:
    """Return whether the two files have different rewards. Verifiers write one of them."""
    try:
        rewards = _of_json(as_json)
        return (rewards[REWARD] if REWARD in rewards else next(iter(rewards.values()))) != float(as_text.decode())
    except (UnreadableReward, StopIteration, ValueError):
        return True


def reward_of(rewards: Rewards, key: str) -> float:
    """Return the one reward of several. Raises TaskError."""
    if key in rewards:
        return rewards[key]
    if len(rewards) == 1:
        return next(iter(rewards.values()))
    raise TaskError(
        f"the verifier's rewards have no key {key!r}, but {', '.join(sorted(rewards)) or 'no key at all'}: name the one that "
        "counts in the task's `reward_key`"
    )


def _of_text(content: bytes) -> dict[str, float]:
    try:
        value = float(content.decode())
    except ValueError:
        raise UnreadableReward(f"reward.txt is no number: {_shown(content)}") from None
    return {REWARD: _finite(value, "reward.txt", content)}


def _of_json(content: bytes) -> dict[str, float]:
    try:
        found = json.loads(content.decode())
    except (ValueError, RecursionError):
        raise UnreadableReward(f"reward.json is no JSON: {_shown(content)}") from None
    if not isinstance(found, dict):
        raise UnreadableReward(f"reward.json is no object of numbers: {_shown(content)}")
    return {key: _finite(value, "reward.json", content) for key, value in found.items()}


def _finite(value: object, file: str, content: bytes) -> float:
    try:
        number = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise UnreadableReward(f"{file} has a value that is no finite number: {_shown(content)}")
    return number


def _shown(content: bytes) -> str:
    return repr(content[:100].decode(errors="replace"))
