"""The code blocks of README and docs, with what the comment before each says about it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BESIDE = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "deploy/slurm/README.md", "examples/tiny_policy/README.md")
PAGES = [*(ROOT / name for name in BESIDE), *sorted((ROOT / "docs").glob("*.md"))]
SHELL = ("sh", "bash", "console")
LANGUAGES = (*SHELL, "python", "yaml", "json", "toml", "")
"""`console` shows commands behind `$ ` with their output; a block without a language is a drawing or an HTTP exchange."""

_BLOCK = re.compile(r"(?:^<!-- (?P<note>[^\n]*?) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    text: str
    note: str

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def left_out(self) -> str:
        """Reason why it cannot run here; empty where it can."""
        return self.note.removeprefix("not run: ") if self.note.startswith("not run: ") else ""

    @property
    def last(self) -> bool:
        return self.note.startswith("run last: ")

    @property
    def part_of(self) -> str:
        """Kind and field that a fragment of YAML stands in, such as `RolloutPool spec`."""
        return self.note.removeprefix("part of: ") if self.note.startswith("part of: ") else ""


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(page, text.count("\n", 0, m.start("language")) + 1, m["language"], m["text"], m["note"] or "")
        for m in _BLOCK.finditer(text)
    ]


BLOCKS = [block for page in PAGES for block in blocks(page)]
