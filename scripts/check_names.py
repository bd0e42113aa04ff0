"""Names and docstrings: a class name stands once in the project, and a docstring opens with a noun or a verb."""

import ast
import re
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OPENING = re.compile(r"(Of|What|Who|So|That)\b")
MAX_OPENINGS = 0
"""Docstrings that may still open otherwise; it only goes down, to 0."""
ALLOWED: dict[str, str] = {}
"""Class names that may stand several times, each with the reason."""


def main() -> int:
    classes: dict[str, list[str]] = defaultdict(list)
    openings = []
    for path in sorted((ROOT / "rollyard").rglob("*.py")):
        place = path.relative_to(ROOT)
        tree = ast.parse(path.read_text())
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(f"{place}:{node.lineno}")
        for node in ast.walk(tree):
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if OPENING.match(ast.get_docstring(node) or ""):
                openings.append(f"{place}:{getattr(node, 'lineno', 1)}")
    complaints = [
        f"class {name} stands twice, give one of them another name: {', '.join(places)}"
        for name, places in classes.items()
        if len(places) > 1 and name not in ALLOWED
    ]
    complaints += [f"{name} stands once: take it out of ALLOWED" for name in ALLOWED if len(classes[name]) < 2]
    if len(openings) > MAX_OPENINGS:
        places = ", ".join(openings)
        complaints.append(
            f"{len(openings)} docstrings open with Of, What, Who, So or That; at most {MAX_OPENINGS} may: {places}"
        )
    print("\n".join(complaints))
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
