"""Options that choose tasks by their verdicts in a report of `rollyard tasks check`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from rollyard.client.task_report import TaskReport
from rollyard.client.task_verdict import TaskVerdict
from rollyard.core.errors import BadRequest
from rollyard.kinds.task import Task

T = TypeVar("T")


@dataclass(frozen=True)
class Chosen:
    """Tasks that a command takes: all, or those with one of the verdicts `only` in a report."""

    report: TaskReport | None
    only: tuple[TaskVerdict, ...]

    def choose(self, items: Iterable[T], task_of: Callable[[T], Task]) -> list[T]:
        """Return the items whose tasks are taken, and print how many are not. Raises BadRequest if none is."""
        if self.report is None:
            return list(items)
        chosen, left_out = self.report.choose(items, task_of, self.only)
        words = ", ".join(f"{number} {verdict}" for verdict, number in sorted(left_out.items()))
        if not chosen:
            raise BadRequest(f"no task is {' or '.join(self.only)} in the report: {words}")
        if left_out:
            click.echo(f"{left_out.total()} tasks are left out: {words}", err=True)
        return chosen


def only_checked(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options --report and --only, and the argument `checked`."""

    @click.option(
        "--report",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="report of `rollyard tasks check -o`; only tasks that it calls sound are taken",
    )
    @click.option(
        "--only",
        multiple=True,
        type=click.Choice([verdict.value for verdict in TaskVerdict]),
        help="verdict in the report; repeat for several  [default: sound]",
    )
    @wraps(command)
    def run(*arguments: Any, report: Path | None, only: tuple[str, ...], **more: Any) -> Any:
        if only and report is None:
            raise click.UsageError("--only needs --report FILE, which `rollyard tasks check -o FILE` writes")
        verdicts = tuple(map(TaskVerdict, only)) or (TaskVerdict.SOUND,)
        chosen = Chosen(None if report is None else TaskReport.read(report), verdicts)
        return command(*arguments, checked=chosen, **more)

    return run
