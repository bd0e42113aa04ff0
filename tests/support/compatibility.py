"""The table of docs/compatibility.md, made from what the tests compared: `tests/compatibility.json` holds its rows.

To add a row, take the fixture `compatibility` in a test that runs the other project, compare with `same` instead of with
`assert`, and call `row` at the end. Run this test with ROLLYARD_WRITE_COMPATIBILITY=1: it writes its row and the page.
A conflict in the page ends with `python -m tests.support.compatibility`, which makes the page from the rows.
"""

from __future__ import annotations

import ast
import importlib.metadata
import json
import os
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "tests" / "compatibility.json"
PAGE = ROOT / "docs" / "compatibility.md"
START, END = "<!-- made by tests/support/compatibility.py -->\n", "<!-- end of the made part -->\n"
Part = Literal["tokens", "mask", "logprobs", "versions", "rewards", "groups"]
PARTS: tuple[Part, ...] = get_args(Part)
NO_TEST = {
    "VeRL-Tool": "it is on GitHub alone; its test clients were run by hand with its [tool server's bridge](verl-tool.md)",
    "rLLM": "it is on GitHub alone; [its flow and evaluator](rllm.md) were run by hand",
    "slime": "it is on GitHub alone and needs a GPU; [a step and an evaluation](slime.md) were run by hand with its modules",
    "prime-rl": "it is on GitHub alone and needs a GPU; it writes checkpoints, which a pool [follows](weights.md)",
    "NeMo RL": "it is on GitHub alone and needs a GPU; it collects rows through [NeMo Gym](nemo-gym.md)",
}
"""Project -> why no test runs its released library."""


class Row(BaseModel):
    """Comparisons of one test with one release of another project."""

    project: str
    version: str
    start: str
    """Command or import with which a user begins."""
    page: str
    """Name of a file in docs/."""
    ran: str
    equal: list[Part]
    """Parts whose values over there equal the stored ones."""
    missing: dict[Part, str]
    """Each other part, and why it does not come over."""


class Compatibility:
    """Comparisons of one test."""

    def __init__(self, node: str) -> None:
        """`node`: id of the test."""
        self._node = node
        self._equal: set[Part] = set()

    def same(self, part: Part, theirs: Any, stored: Any) -> None:
        """Compare what the other project got with what is stored here. An empty list compares nothing."""
        assert theirs == stored, part
        if theirs not in ([], {}, (), None):
            self._equal.add(part)

    def row(
        self, project: str, version: str, *, start: str, page: str, ran: str, missing: dict[Part, str] | None = None
    ) -> None:
        """Compare the row of this test with the stored one. Each part is either compared or in `missing`."""
        assert sorted([*self._equal, *(missing or {})]) == sorted(PARTS), f"compared: {self._equal}"
        equal = [part for part in PARTS if part in self._equal]
        made = Row(
            project=project, version=version, start=start, page=page, ran=ran, equal=equal, missing=missing or {}
        )
        if os.environ.get("ROLLYARD_WRITE_COMPATIBILITY"):
            _store(self._node, made)
        hint = f"run {self._node} with ROLLYARD_WRITE_COMPATIBILITY=1, and look at what changes in {PAGE.name}"
        assert rows().get(self._node) == made, hint


def installed(package: str, environment: Path | None = None) -> str:
    """Read the version of a package, of this environment or of another one."""
    if environment is None:
        return importlib.metadata.version(package)
    folders = [str(path) for path in environment.glob("lib/python*/site-packages")]
    (found,) = importlib.metadata.distributions(name=package, path=folders)
    return found.version


def rows() -> dict[str, Row]:
    """Read the stored rows, by the id of their test."""
    return {node: Row.model_validate(row) for node, row in json.loads(FILE.read_text()).items()}


def has_row_of(node: str) -> bool:
    """Whether the test is there and calls `row`."""
    path, _, name = node.partition("::")
    if not (ROOT / path).exists():
        return False
    tests = [t for t in ast.walk(ast.parse((ROOT / path).read_text())) if getattr(t, "name", "") == name.split("[")[0]]
    calls = [call.func for test in tests for call in ast.walk(test) if isinstance(call, ast.Call)]
    return any(isinstance(func, ast.Attribute) and func.attr == "row" for func in calls)


def made_part() -> str:
    """Return the tables of the page."""
    found = sorted(rows().items(), key=lambda item: (item[1].project.lower(), item[1].version))
    lines = [f"| project | version | {' | '.join(PARTS)} | begin with |", "|---" * (len(PARTS) + 3) + "|"]
    for _, row in found:
        cells = ["yes" if part in row.equal else "no" for part in PARTS]
        lines.append(f"| [{row.project}]({row.page}) | {row.version} | {' | '.join(cells)} | {row.start} |")
    lines += [f"| {name} | no test |{' |' * len(PARTS)} |" for name in NO_TEST]
    lines += ["", "| project | what was run | what does not come over | test |", "|---|---|---|---|"]
    for node, row in found:
        reasons = dict.fromkeys(row.missing.values())
        parts = {why: ", ".join(part for part in row.missing if row.missing[part] == why) for why in reasons}
        missing = ". ".join(f"{named}: {why}" for why, named in parts.items())
        test = f"[`{node.partition('::')[2]}`](../{node.partition('::')[0]})"
        lines.append(f"| {row.project} {row.version} | {row.ran} | {missing} | {test} |")
    lines += [f"| {name} | {why} | | |" for name, why in NO_TEST.items()]
    return "".join(f"{line}\n" for line in lines)


def page() -> str:
    """Return the whole page with the tables made anew."""
    before, _, rest = PAGE.read_text().partition(START)
    return f"{before}{START}{made_part()}{END}{rest.partition(END)[2]}"


def _store(node: str, row: Row) -> None:
    stored = {**rows(), node: row}
    as_json = {node: stored[node].model_dump() for node in sorted(stored)}
    FILE.write_text(json.dumps(as_json, indent=2, ensure_ascii=False) + "\n")
    PAGE.write_text(page())


if __name__ == "__main__":
    PAGE.write_text(page())
