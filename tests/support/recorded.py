"""Compare what an earlier release wrote with what today's code makes of it."""

from __future__ import annotations

from typing import Any


def lost_fields(recorded: Any, today: Any, at: str = "") -> list[str]:
    """Paths of fields that are recorded, and that today's code drops or changes. More fields than recorded are fine."""
    if isinstance(recorded, dict) and isinstance(today, dict):
        lost = []
        for name, value in recorded.items():
            path = f"{at}.{name}" if at else name
            lost += lost_fields(value, today[name], path) if name in today else [path]
        return lost
    if isinstance(recorded, list) and isinstance(today, list) and len(recorded) == len(today):
        return [
            p for i, (a, b) in enumerate(zip(recorded, today, strict=True)) for p in lost_fields(a, b, f"{at}[{i}]")
        ]
    return [] if recorded == today else [at]
