"""The library's own questions and rewards as JSON, for the data sets named as arguments, or for all."""

import json
import sys

import reasoning_gym
from reasoning_gym.factory import DATASETS
from reasoning_gym.utils import extract_answer

found = {}
for name in sys.argv[1:] or sorted(DATASETS.keys() - {"composite"}):
    dataset = reasoning_gym.create_dataset(name, seed=7)
    entry = dataset[3]
    own = [] if entry["answer"] is None else [entry["answer"], f"{entry['answer']} or so"]
    rewards = []
    for answer in [*own, "7", "(1 + 2) * 3", "[[1, 0], [0, 1]]", "no idea", None]:
        taken = None if answer is None else extract_answer(f"<answer>{answer}</answer>")
        try:
            reward = float(dataset.score_answer(taken, entry))
        except Exception:  # noqa: BLE001
            reward = 0.0
        rewards.append((answer, reward))
    found[name] = entry["question"], rewards
print("\n" + json.dumps(found))  # data sets print too
