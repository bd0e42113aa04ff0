"""GRPO through the service, in short: groups whose rewards differ, weights pushed after each step, and used afterwards."""

from __future__ import annotations

import itertools
import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from examples.grpo.plot import PANELS, draw, figure_of
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


@pytest.mark.parametrize("left", ["steps.jsonl", "curve.svg"])
def test_a_run_does_not_overwrite_an_earlier_one(trainers: ForkedTrainers, tmp_path: Path, left: str) -> None:
    (tmp_path / left).write_text("earlier\n")
    said = trainers.run("examples.grpo.train", "--out", tmp_path, home=tmp_path, code=2)
    assert "name another folder with --out" in said
    assert (tmp_path / left).read_text() == "earlier\n"


def run_of(number: int) -> list[dict[str, Any]]:
    steps = [{"step": k, "minutes": k / 2, **{name: (k + number) / 4 for name, *_ in PANELS}} for k in range(4)]
    steps[2]["held_out"] = None
    steps[3]["tokens_per_second"] = 123_456.0
    return steps


def test_the_picture_has_a_line_for_each_run_in_each_panel(tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.jsonl" for number in range(2)]
    for number, file in enumerate(files):
        file.write_text("".join(json.dumps(step) + "\n" for step in run_of(number)))
    draw(files, tmp_path / "curve.svg")
    tree = ElementTree.parse(tmp_path / "curve.svg")
    for name, *_ in PANELS:
        for number in range(2):
            (line,) = tree.findall(f".//{{*}}g[@id='{name}-{number}']")
            path = line.find("{*}path")
            assert path is not None
            points = len(re.findall(r"[ML]", path.attrib["d"]))
            assert points == 3, "step 0 has a held-out reward only, and step 2 has none"
    first = (tmp_path / "curve.svg").read_bytes()
    draw(files, tmp_path / "curve.svg")
    assert (tmp_path / "curve.svg").read_bytes() == first
    assert sorted(file.name for file in tmp_path.iterdir()) == ["0.jsonl", "1.jsonl", "curve.svg"]


def test_no_label_is_cut_and_no_panel_touches_another() -> None:
    figure = figure_of([run_of(0), run_of(1)], ["seed 0", "seed 1"])
    figure.draw_without_rendering()
    boxes = [axis.get_tightbbox() for axis in figure.axes]
    for box in [*boxes, figure.legends[0].get_tightbbox()]:
        assert box is not None
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1
    for one, other in itertools.combinations(boxes, 2):
        assert one is not None
        assert other is not None
        assert not one.overlaps(other)


@pytest.mark.long
@pytest.mark.slow(1000)
def test_the_held_out_reward_rises(trainers: ForkedTrainers, tmp_path: Path) -> None:
    held_out = [
        s["held_out"]
        for s in trained(trainers, tmp_path, "--steps", "36", "--minutes", "60")
        if s["held_out"] is not None
    ]
    assert sum(held_out[-3:]) / 3 > held_out[0] + 0.1, held_out
