"""Constant answers against every data set of reasoning-gym: the number of data sets, and those rewarded without being right."""

from __future__ import annotations

import json
import re

from reasoning_gym import create_dataset
from reasoning_gym.factory import DATASETS

from rollyard.tasks.gym.parsed_answers import replace_parsers
from rollyard.tasks.gym.reasoning_gym_process import _reference, _reward

CONSTANTS = (
    "nan",
    "inf",
    "-Infinity",
    "",
    " ",
    "banana",
    "[]",
    "{}",
    "()",
    "0",
    "1",
    "True",
    "False",
    "None",
    "oo",
    "1/0",
)
UNEVALUATED = ("{}", "Integral({}, x)", "Sum({}, x)", "Derivative({}, x)")
LISTS = [json.dumps(["nan"] * count) for count in range(1, 21)] + ["nan " * 3, "nan, nan"]
INDEXES = (0, 3)

replace_parsers()
wrong = []
names = sorted(DATASETS.keys() - {"composite"})
for name in names:
    dataset = create_dataset(name, seed=7)
    for entry in (dataset[index] for index in INDEXES):
        right = (_reference(entry) or "").strip()
        texts = [entry["question"], str(entry["metadata"].get("integrand", "x"))]
        unevaluated = [form.format(text) for form in UNEVALUATED for text in texts]
        for answer in [*CONSTANTS, *unevaluated, *LISTS]:
            # a text is compared without quotation marks, case and spaces
            same = re.sub(r"['\"\s]", "", answer).casefold() == re.sub(r"['\"\s]", "", right).casefold()
            if _reward(dataset, entry, answer)["reward"] >= 1.0 and not same:
                wrong.append((name, answer[:60], right))
print("\n" + json.dumps([len(names), wrong]))  # data sets print too
