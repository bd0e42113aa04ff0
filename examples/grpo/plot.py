"""Curves of one or more training runs as a picture; the format follows the name of the file (.svg, .png, .pdf).

python -m examples.grpo.plot --out curve.svg demo-output/grpo/RUN/steps.jsonl
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS = [
    ("held_out", "held-out reward", 1.0),
    ("reward", "reward of drawn groups", 1.0),
    ("filtered", "share of groups without a signal", 1.0),
    ("entropy", "entropy, nats a token", None),
    ("staleness", "staleness, weights versions", None),
    ("tokens_per_second", "trained tokens a second", None),
]
"""Field of a step, title, and the greatest value of the axis; None: a little above the greatest value found."""
COLORS = ["#0b7285", "#d9480f", "#5f3dc4", "#2b8a3e"]
COLUMNS = 3
Points = tuple[list[float], list[float]]


def curves(run: Sequence[dict[str, Any]], name: str) -> Points:
    """Return the minutes and the values of one field. Step 0 has a held-out reward only."""
    steps = [s for s in run if s[name] is not None and (s["step"] or name == "held_out")]
    return [s["minutes"] for s in steps], [s[name] for s in steps]


def figure_of(runs: Sequence[Sequence[dict[str, Any]]], names: Sequence[str] = ()) -> Figure:
    """Return a figure with a line for each run in each panel, over the minutes since the start of the training. `names`: of
    the runs, for the legend."""
    from matplotlib.figure import Figure  # slow to import, and needed only at the end of a run

    figure = Figure(figsize=(11, 5), layout="constrained")
    axes = figure.subplots(len(PANELS) // COLUMNS, COLUMNS, sharex=True)
    for (name, title, top), axis in zip(PANELS, axes.flat, strict=True):
        for i, run in enumerate(runs):
            marker = "o" if name == "held_out" else ""
            (line,) = axis.plot(*curves(run, name), color=COLORS[i % len(COLORS)], linewidth=1.4, marker=marker)
            line.set(markersize=3, gid=f"{name}-{i}")
        axis.set_title(title, loc="left", fontweight="bold", fontsize=9)
        axis.set_ylim(0, top)
        axis.set_xlim(left=0)
        axis.tick_params(labelsize=9)
        axis.grid(color="#e5e5e5", linewidth=0.7)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes[-1]:
        axis.set_xlabel("minutes", fontsize=9)
    if names:
        figure.legend(axes.flat[0].lines, names, loc="outside upper right", ncols=len(names), frameon=False, fontsize=9)
    return figure


def draw(files: Sequence[Path], out: Path, names: Sequence[str] = ()) -> None:
    """Draw the runs of these files of steps. The picture is whole or not there, also if the process is stopped."""
    import matplotlib

    runs = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    kind, part = out.suffix[1:] or "svg", out.with_name(f".{out.name}.part")
    with matplotlib.rc_context({"svg.hashsalt": "rollyard"}):  # with it and without a date, equal data give equal files
        figure_of(runs, names).savefig(part, format=kind, metadata={"Date": None} if kind == "svg" else None)
    os.replace(part, out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="steps.jsonl of each run")
    parser.add_argument("--out", type=Path, required=True, help="the picture")
    parser.add_argument("--names", nargs="*", default=[], help="name of each run, for the legend")
    given = parser.parse_args()
    if given.names and len(given.names) != len(given.files):
        parser.error(f"{len(given.names)} --names for {len(given.files)} runs: give one for each, or none")
    draw(given.files, given.out, given.names)


if __name__ == "__main__":
    main()
