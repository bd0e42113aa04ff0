"""GRPO through the service, in short: groups whose rewards differ, weights pushed after each step, and used afterwards."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from examples.grpo.plot import PANELS, draw
from tests.support.forked_trainers import ForkedTrainers

pytestmark = pytest.mark.slow(60)


def trained(trainers: ForkedTrainers, out: Path, *options: str) -> list[dict[str, Any]]:
    text = trainers.run("examples.grpo.train", "--out", out, *options, home=out)
    assert re.search(r"step +1 of \d+ .* left", text)
    assert "held-out reward by training step" in text
    return [json.loads(line) for line in (out / "steps.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("count", "groups", "options"),
    [
        pytest.param(2, 2, (), id="two steps"),
        pytest.param(3, 4, (), id="batches", marks=pytest.mark.long),
        pytest.param(3, 4, ("--async",), id="stream", marks=pytest.mark.long),
    ],
)
def test_each_step_trains_on_the_weights_of_earlier_steps_and_pushes_its_own(
    trainers: ForkedTrainers, tmp_path: Path, count: int, groups: int, options: tuple[str, ...]
) -> None:
    shape = ("--steps", str(count), "--minutes", "60", "--groups", str(groups), "--n", "4", "--held-out", "1")
    shape += ("--every", "1")  # a measurement waits until the weights of its step serve
    steps = trained(trainers, tmp_path, *shape, *options)
    assert [s["step"] for s in steps] == list(range(count + 1))
    first = set(steps[1]["versions"])
    assert len(first) == 1, "before the first push there is one version"
    for step in steps[1:]:
        assert set(step["versions"]) <= first | {f"step{k}" for k in range(1, step["step"])}
        assert sum(step["versions"].values()) > 0
        assert 0 < step["entropy"] < 5
        assert 0 < step["reward"] < 1
        assert step["tokens_per_second"] > 0
    # 20 places begin five groups or six before the first push; four groups a step need more than they give in the third
    pushed = set().union(*(s["versions"] for s in steps[1:])) - first
    assert pushed or count < 3, "no step trained on tokens of pushed weights"
    assert steps[0]["held_out"] is not None
    assert steps[-1]["held_out"] is not None
    assert (tmp_path / "weights" / f"step{count}" / "model.safetensors").exists()
    assert (tmp_path / "model" / "model.safetensors").exists()
    assert (tmp_path / "curve.svg").exists()


def test_a_run_does_not_overwrite_an_earlier_one(trainers: ForkedTrainers, tmp_path: Path) -> None:
    (tmp_path / "steps.jsonl").write_text("earlier\n")
    said = trainers.run("examples.grpo.train", "--out", tmp_path, home=tmp_path, code=2)
    assert "name another folder with --out" in said
    assert (tmp_path / "steps.jsonl").read_text() == "earlier\n"


def test_the_plot_has_a_line_for_each_run_in_each_panel(tmp_path: Path) -> None:
    for run in range(2):
        steps = [{"step": k, "minutes": k / 2, **{name: k / 3 for name, *_ in PANELS}} for k in range(4)]
        steps[2]["held_out"] = None
        (tmp_path / f"{run}.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    draw([tmp_path / "0.jsonl", tmp_path / "1.jsonl"], tmp_path / "curve.svg")
    lines = ElementTree.parse(tmp_path / "curve.svg").findall(".//{http://www.w3.org/2000/svg}polyline")
    points = [len(line.attrib["points"].split()) for line in lines]
    assert points == [3, 3] * len(PANELS), "step 0 has a held-out reward only, and step 2 has none"


@pytest.mark.long
@pytest.mark.slow(1000)
def test_the_held_out_reward_rises(trainers: ForkedTrainers, tmp_path: Path) -> None:
    held_out = [
        s["held_out"]
        for s in trained(trainers, tmp_path, "--steps", "36", "--minutes", "60")
        if s["held_out"] is not None
    ]
    assert sum(held_out[-3:]) / 3 > held_out[0] + 0.1, held_out
