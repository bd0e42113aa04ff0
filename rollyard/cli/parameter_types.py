"""Types of values on the command line, which click checks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from rollyard.kinds.values.quantity import size_bytes


class Duration(click.ParamType[float]):
    """Duration as kubectl writes it, in seconds: `5`, `5s`, `90s`, `10m`, `2h`, `1m30s`, `0.5s`; and days, `30d`."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        parts = re.fullmatch(r"(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9}(?:\.\d{1,9})?)s?)?", value)
        if parts is None or not any(parts.groups()):
            self.fail(
                f"{value!r} is not a duration; write a number with s, m, h or d, such as 90s, 10m or 1h30m", param, ctx
            )
        days, hours, minutes, seconds = (float(part or 0) for part in parts.groups())
        return 86_400 * days + 3600 * hours + 60 * minutes + seconds


class Size(click.ParamType[int]):
    """Size as in a pool's spec, in bytes: `512M`, `8G`, `1T`."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return size_bytes(str(value))
        except ValueError as error:
            self.fail(f"{value!r}: {error}", param, ctx)


DURATION, SIZE = Duration(), Size()
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
"""A folder that is there."""
