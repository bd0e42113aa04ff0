"""The page on reward hacks counts the honest look-alikes that the tests have."""

from __future__ import annotations

from pathlib import Path

from tests.tasks.hacks import (
    test_code_hacks,
    test_gym_hacks,
    test_harbor_hacks,
    test_math_hacks,
    test_stem_hacks,
    test_swe_hacks,
)
from tests.tasks.stem import test_judge

PAGE = Path(__file__).parents[3] / "docs" / "reward-hacks.md"


def test_the_page_counts_the_look_alikes_and_their_marks() -> None:
    counts = {
        "swe": len(test_swe_hacks.HONEST),
        "code": len(test_code_hacks.HONEST) + len(test_code_hacks.HONEST_PROGRAMS),
        "math": len(test_math_hacks.HONEST),
        "stem": len(test_stem_hacks.HONEST) + len(test_judge.HONEST),
        "harbor": len(test_harbor_hacks.HONEST),
        "gym": len(test_gym_hacks.HONEST),
    }
    marks = {"swe": test_swe_hacks.MARKED, "harbor": test_harbor_hacks.MARKED}
    marked = sum(map(len, marks.values()))  # the tests of the other kinds assert that theirs have no mark
    lines = {kind: f"| `{kind}` | {count} | 0 |" for kind, count in counts.items()}
    for kind, names in marks.items():
        lines[kind] = f"| `{kind}` | {counts[kind]} | {len(names)}: {', '.join(sorted(names))} |"
    total = sum(counts.values())
    table = ["| kind | honest look-alikes | with a mark |", "|---|---|---|", *lines.values()]
    table.append(f"| all | {total} | {marked} ({100 * marked / total:.0f} %) |")
    assert "\n".join(table) in PAGE.read_text()
