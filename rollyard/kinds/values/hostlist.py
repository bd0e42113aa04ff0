"""Parser of Slurm's lists of nodes, `n[01-04,7],gpu1`. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

MOST_NODES = 65_536
"""Greatest number of nodes in a list. Slurm has the same limit (MAX_SLURM_NODES)."""
_ITEM = re.compile(r"(?:[A-Za-z0-9_.-]|\[[0-9,-]+\])+")
_PART = re.compile(r"\[([0-9,-]+)\]|([^\[\]]+)")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_HINT = "write names of nodes, or ranges such as n[1-4,7]"


def expand(text: str) -> list[str]:
    """Return the names in order, without repetitions. Raises ValueError if the list is malformed or too long."""
    names: dict[str, None] = {}
    for item in re.split(r",(?![^\[]*\])", text):
        if not _ITEM.fullmatch(item):
            raise ValueError(f"{_HINT}, not {item!r}")
        parts = [list(_range(digits)) if digits else [plain] for digits, plain in _PART.findall(item)]
        for combination in itertools.product(*parts):
            names["".join(combination)] = None
            if len(names) > MOST_NODES:
                raise ValueError(f"{text!r} means more than {MOST_NODES} nodes")
    return list(names)


def _range(text: str) -> Iterator[str]:
    for piece in text.split(","):
        found = _RANGE.fullmatch(piece)
        first, last = (found[1], found[2] or found[1]) if found else ("1", "0")
        if int(last) < int(first):
            raise ValueError(f"{_HINT}, not [{text}]")
        if int(last) - int(first) >= MOST_NODES:
            raise ValueError(f"[{text}] means more than {MOST_NODES} nodes")
        for number in range(int(first), int(last) + 1):
            yield str(number).zfill(len(first))
