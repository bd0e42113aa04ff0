"""Curves of one or more training runs as an SVG file, without a plotting library.

python -m examples.grpo.plot --out curve.svg demo-output/grpo/steps.jsonl
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PANELS = [
    ("held_out", "held-out reward", 1.0),
    ("reward", "reward of drawn groups", 1.0),
    ("filtered", "share of groups without a signal", 1.0),
    ("entropy", "entropy, nats a token", None),
    ("staleness", "staleness, weights versions", None),
    ("tokens_per_second", "trained tokens a second", None),
]
"""Field of a step, title, and the greatest value of the axis; None: the greatest value found."""
COLORS = ["#0b7285", "#d9480f", "#5f3dc4", "#2b8a3e"]
WIDTH, HEIGHT, LEFT, TOP, COLUMNS = 260, 130, 40, 30, 3


def draw(files: Sequence[Path], out: Path) -> None:
    """Draw a line for each file of steps in each panel, over the minutes since the start of the training."""
    runs = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    minutes = max([step["minutes"] for run in runs for step in run] + [1.0])
    panels = [_panel(i, runs, minutes) for i in range(len(PANELS))]
    size = f"{COLUMNS * (WIDTH + LEFT) + 25} {len(PANELS) // COLUMNS * (HEIGHT + TOP + 25)}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" font-family="sans-serif" font-size="11">'
    out.write_text("\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *panels, "</svg>"]) + "\n")


def _panel(number: int, runs: Sequence[Sequence[dict[str, Any]]], minutes: float) -> str:
    name, title, top = PANELS[number]
    lines = [
        [(s["minutes"], s[name]) for s in run if s[name] is not None and (s["step"] or name == "held_out")]
        for run in runs
    ]
    top = top or max([value for line in lines for _, value in line] + [1e-9]) * 1.1
    x, y = LEFT + number % COLUMNS * (WIDTH + LEFT), TOP + number // COLUMNS * (HEIGHT + TOP + 25)
    parts = [f'<text x="{x}" y="{y - 8}" font-weight="bold">{title}</text>']
    for share in (0.0, 0.5, 1.0):
        at = y + HEIGHT * (1 - share)
        parts.append(f'<path d="M{x} {at:.1f}h{WIDTH}" stroke="#ddd"/>')
        parts.append(f'<text x="{x - 4}" y="{at + 4:.1f}" text-anchor="end">{share * top:.3g}</text>')
        at = x + WIDTH * share
        parts.append(f'<text x="{at:.1f}" y="{y + HEIGHT + 14}" text-anchor="middle">{share * minutes:.1f} min</text>')
    for i, line in enumerate(lines):
        points = " ".join(f"{x + WIDTH * at / minutes:.1f},{y + HEIGHT * (1 - value / top):.1f}" for at, value in line)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{COLORS[i % len(COLORS)]}" stroke-width="1.5"/>')
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="steps.jsonl of each run")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    draw(given.files, given.out)


if __name__ == "__main__":
    main()
