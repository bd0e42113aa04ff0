"""docs/failures.md shows the failure table."""

from __future__ import annotations

from pathlib import Path

from rollyard.kinds.failure_table import ENDINGS, Ending

PAGE = Path(__file__).parents[2] / "docs" / "failures.md"


def line(row: Ending) -> str:
    names = [f"`{name}`" if name is not None else "" for name in (row.harbor, row.nemo_gym)]
    cells = [f"`{row.reason}`", row.status, row.fault, "yes" if row.trainable else "no", row.again]
    return f"| {' | '.join([*cells, ', '.join(row.stages), row.meaning, *names])} |"


def test_the_page_of_failures_has_every_row_of_the_table_and_no_other() -> None:
    expected = [line(row) for row in ENDINGS.values()]
    shown = [text for text in PAGE.read_text().splitlines() if text.startswith("| `")]
    assert shown == expected, "write this into docs/failures.md:\n" + "\n".join(expected)
