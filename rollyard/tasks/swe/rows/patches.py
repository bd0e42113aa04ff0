"""Patches in the form of `git diff`, as text: the paths that they change, their reverse, and the patch between two texts."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from rollyard.tasks.rows.dataset_row import RowRefused
from rollyard.tasks.swe.patch_paths import patch_paths

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@(.*)", re.DOTALL)
_SPECIAL = re.compile(r"[*?\[]")
_SWAPPED = (
    ("new file mode", "deleted file mode"), ("old mode", "new mode"), ("rename from", "rename to"),
)  # fmt: skip


def changed_paths(patch: str) -> list[str]:
    """Return the paths that a patch makes, changes, renames or deletes, each once."""
    return [path.decode(errors="replace") for path in patch_paths(patch)]


def pattern(path: str) -> str:
    """Return the pattern, as in .gitignore, of exactly this path of the repository."""
    return "/" + _SPECIAL.sub(lambda found: f"[{found[0]}]", path.removeprefix("./").strip("/"))


def patterns(patch: str) -> list[str]:
    return [pattern(path) for path in changed_paths(patch)]


def difference(path: str, old: str | None, new: str | None) -> str:
    """Return the patch that turns a file's old text into the new one; None: the file is not there."""
    if old == new:
        return ""
    lines = [f"diff --git a/{path} b/{path}\n"]
    if old is None:
        lines.append("new file mode 100644\n")
    if new is None:
        lines.append("deleted file mode 100644\n")
    before, after = ("/dev/null" if text is None else f"{side}/{path}" for side, text in (("a", old), ("b", new)))
    for line in difflib.unified_diff(_lines(old or ""), _lines(new or ""), before, after):
        lines.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(lines)


def reversed_patch(patch: str) -> str:
    """Return the patch that takes a patch back. Raises RowRefused for a binary one."""
    return "".join(_reversed(patch if patch.endswith("\n") else f"{patch}\n"))


def _reversed(patch: str) -> Iterator[str]:
    old = new = 0
    minus = ""
    for line in _lines(patch):
        if old > 0 or new > 0:
            old -= line[0] in " -\n"  # some editors cut the blank of an empty line
            new -= line[0] in " +\n"
            yield {"+": "-", "-": "+"}.get(line[0], line[0]) + line[1:]
        elif hunk := _HUNK.fullmatch(line):
            old, new = int(hunk[2] or 1), int(hunk[4] or 1)
            ranges = [
                f"{start},{count}" if count else start for start, count in ((hunk[3], hunk[4]), (hunk[1], hunk[2]))
            ]
            yield f"@@ -{ranges[0]} +{ranges[1]} @@{hunk[5]}"
        elif line.startswith("--- "):
            minus = line[4:]
        elif line.startswith("+++ "):
            yield f"--- {_other_side(line[4:])}+++ {_other_side(minus)}"
        elif line.startswith(("GIT binary patch", "Binary files ")):
            raise RowRefused("its patch is binary, and cannot be taken back from the text alone")
        else:
            yield _reversed_header(line)


def _reversed_header(line: str) -> str:
    for one, other in _SWAPPED:
        for start, instead in ((one, other), (other, one)):
            if line.startswith(f"{start} "):
                return instead + line[len(start) :]
    if index := re.fullmatch(r"index (\w+)\.\.(\w+)(.*)", line, re.DOTALL):
        return f"index {index[2]}..{index[1]}{index[3]}"
    return line


def _other_side(name: str) -> str:
    return {"a/": "b/", "b/": "a/"}.get(name[:2], name[:2]) + name[2:]


def _lines(text: str) -> list[str]:
    """Return the lines with their ends. `splitlines` would also split at form feeds."""
    return re.findall(r"[^\n]*\n|[^\n]+$", text)
