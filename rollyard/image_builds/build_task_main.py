"""The process that does one of many builds (`build_burst.py`). Its argument is the task's folder."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from rollyard.image_builds.build_task import BuildTask


def main(folder: Path) -> int:
    """Build, and print the result at the end of the output. Return the exit code."""
    result = asyncio.run(BuildTask(folder).run(sys.stderr.fileno(), _print_line))
    _print_line(result.digest or f"error: {result.error}")
    return 0 if result.digest else 1


def _print_line(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
