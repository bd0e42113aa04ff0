"""The program of a process that makes entries of reasoning-gym and scores answers, each in a fork with limits."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from importlib.metadata import version
from typing import Any

import reasoning_gym
from reasoning_gym.composite import DatasetSpec
from reasoning_gym.utils import SYSTEM_PROMPTS, extract_answer

from rollyard.tasks.gym.parsed_answers import replace_parsers
from rollyard.tasks.gym.refused_answers import NONSENSE, refusal
from rollyard.tasks.scoring.checker_process import serve

CPU_SECONDS = 10
MEMORY_BYTES = 4 << 30
EXAMPLES = ("possible_answer", "example_answer", "example_correct_answer")
"""Metadata with a right answer, in data sets with many."""


def entry_or_score(task: bytes, asked: bytes | None = None, text: bytes = b"") -> Mapping[str, Any]:
    """Return the question, the answer and the system prompt of a task's entry. With `asked`, the question that the agent got,
    return the reward of the agent's text. `error`: why the task has no entry."""
    fields = json.loads(task)
    try:
        dataset = _dataset(fields)
        entry = dataset[fields["index"]]
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - the library's own, by a wrong task
        return {"error": f"reasoning-gym {version('reasoning-gym')}: {type(error).__name__}: {error}"}
    if asked is None:
        if _reward(dataset, entry, NONSENSE).get("reward", 0.0) >= 1.0:
            return {"error": f"reasoning-gym {version('reasoning-gym')} calls every answer of this data set right"}
        return {"question": entry["question"], "answer": _reference(entry), "system": SYSTEM_PROMPTS["default"]}
    if entry["question"].encode("utf-8", "replace") != asked:
        why = f"reasoning-gym {version('reasoning-gym')} asks another question here; install one version for all nodes"
        return {"error": why}
    return _score(dataset, entry, text.decode())


def _dataset(fields: Mapping[str, Any]) -> Any:
    name, config = fields["dataset"], {**fields["config"], "seed": fields["seed"]}
    if name not in (known := reasoning_gym.factory.DATASETS):
        near = get_close_matches(name, known, cutoff=0.5) or sorted(known)
        raise ValueError(f"no data set {name!r}; there are {', '.join(near)}")
    if name == "composite":
        config["datasets"] = [DatasetSpec(**spec) for spec in config.get("datasets", [])]
        config["datasets"] += [_of_levels(*one) for one in config.pop("curricula", {}).items()]
    if fields["difficulty"] is None and not fields["level"]:
        return reasoning_gym.create_dataset(name, **config)
    found = _config_of_levels(name, fields["difficulty"], fields["level"], config)
    return reasoning_gym.factory.DATASETS[name][0](config=found)


def _config_of_levels(
    name: str, difficulty: int | None, levels: Mapping[str, int], config: Mapping[str, Any] | None = None
) -> Any:
    curriculum = reasoning_gym.factory.create_curriculum(name)
    if difficulty is not None:
        curriculum.set_global_level(difficulty)
    for attribute, level in levels.items():
        if attribute not in curriculum.attributes:
            raise ValueError(f"{name} has no attribute {attribute!r}; it has {', '.join(curriculum.attributes)}")
        curriculum.set_attr_level(attribute, level)
    return curriculum.generate_configuration(config)


def _of_levels(name: str, member: Mapping[str, Any]) -> DatasetSpec:
    """Return a member as the library's CurriculumExperiment makes it, but with the seed and size of the composite: without a
    seed each process would make other entries."""
    levels = dict(member["attribute_levels"])
    config = vars(_config_of_levels(name, levels.pop("*", None), levels))
    own = {field: value for field, value in config.items() if field not in ("seed", "size")}
    return DatasetSpec(name, member.get("weight", 1.0), own)


def _reference(entry: Mapping[str, Any]) -> str | None:
    known = [entry["answer"], *(entry["metadata"].get(name) for name in EXAMPLES)]
    # sympy leaves some integrals as they are, which is no answer
    found = next((answer for answer in known if answer is not None and "Integral(" not in str(answer)), None)
    return found if found is None or isinstance(found, str) else json.dumps(found)


def _score(dataset: Any, entry: Mapping[str, Any], text: str) -> Mapping[str, Any]:
    answer = extract_answer(text)
    return {**_reward(dataset, entry, answer), "answered": float(answer is not None)}


def _reward(dataset: Any, entry: Mapping[str, Any], answer: str | None) -> dict[str, Any]:
    if answer is not None and (why := refusal(entry, _reference(entry), answer)) is not None:
        return {"reward": 0.0, "refused": why}
    try:
        reward = float(dataset.score_answer(answer, entry))
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - the library's own, by an answer
        return {"reward": 0.0, "raised": f"{type(error).__name__}: {str(error)[:200]}"}
    return {"reward": reward} if math.isfinite(reward) else {"reward": 0.0, "refused": f"the library gives {reward}"}


if __name__ == "__main__":
    # The order of sets of texts decides about entries of isomorphic_strings, knight_swap, ransom_note and others.
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(sys.executable, [sys.executable, "-m", __spec__.name], {**os.environ, "PYTHONHASHSEED": "0"})
    replace_parsers()
    serve(entry_or_score, CPU_SECONDS, MEMORY_BYTES)
