"""`rollyard tasks import gym`: entries of a procedural data set as tasks of the kind `gym`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from rollyard.cli.written_file import say, written_file
from rollyard.core.errors import BadRequest, TaskError
from rollyard.kinds.gym_task import GymTask
from rollyard.kinds.installed_task_fields import check_task
from rollyard.kinds.task import Task
from rollyard.tasks.gym.library import ReasoningGym


@click.command("gym")
@click.argument("dataset")
@click.option("--count", type=click.IntRange(1), default=100, show_default=True, help="number of tasks")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="seed of the data set")
@click.option("--first", type=click.IntRange(0), default=0, show_default=True, help="index of the first entry")
@click.option(
    "--difficulty",
    "difficulties",
    type=click.IntRange(0),
    multiple=True,
    help="level of all attributes of the curriculum; if repeated, the tasks climb through the levels in this order",
)
@click.option("--level", "levels", multiple=True, metavar="NAME=LEVEL", help="level of one attribute; may be repeated")
@click.option("--config", multiple=True, metavar="NAME=JSON", help="field of the config; may be repeated")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="file of tasks; default: standard output"
)
def import_gym(
    dataset: str,
    count: int,
    seed: int,
    first: int,
    difficulties: Sequence[int],
    levels: Sequence[str],
    config: Sequence[str],
    output: Path | None,
) -> None:
    """Write entries of DATASET, a data set of reasoning-gym, as tasks of the kind gym, one JSON line a task.

    If reasoning-gym is installed here, it makes the first entry, so that a wrong name or config is noticed."""
    fields: dict[str, Any] = {"kind": "gym", "library": "reasoning-gym", "dataset": dataset, "seed": seed}
    optional = {"config": _pairs(config, json.loads), "level": _pairs(levels, int)}
    fields |= {name: value for name, value in optional.items() if value}

    def task(number: int) -> dict[str, Any]:
        level = {"difficulty": difficulties[number * len(difficulties) // count]} if difficulties else {}
        return {**fields, **level, "index": first + number, "metadata": {"dataset": dataset, **level}}

    first_task = Task.model_validate(task(0))
    check_task(first_task)
    asyncio.run(_make_entry(first_task))
    with written_file(output) as tasks:
        for number in range(count):
            tasks.write(json.dumps(task(number)) + "\n")
    say(f"{count:7} tasks  {dataset}")


async def _make_entry(task: Task) -> None:
    try:
        library = ReasoningGym()
    except TaskError:
        say("reasoning-gym is not installed here, so the data set's name and config are not checked")
        return
    try:
        await library.entry(task.fields_as(GymTask))
    except TaskError as error:
        raise BadRequest(str(error)) from None
    finally:
        await library.close()


def _pairs(texts: Sequence[str], read: Callable[[str], Any]) -> dict[str, Any]:
    found = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name in found:
            raise BadRequest(f"{name} is given twice; import once for each value, and join the files")
        try:
            found[name] = read(value)
        except ValueError:
            raise BadRequest(f"{text!r}: write NAME=VALUE, such as max_terms=6") from None
    return found
