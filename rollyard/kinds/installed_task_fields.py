"""The installed models of tasks' fields, of Rollyard and of plug-ins, from the entry point group `rollyard.task_fields`."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from rollyard.core.errors import Cause, Invalid
from rollyard.kinds.task import Task
from rollyard.kinds.task_fields import CommonFields, TaskFields

log = logging.getLogger(__name__)

ENTRY_POINTS = "rollyard.task_fields"


@cache
def installed_models() -> Mapping[str, type[TaskFields]]:
    """Return the model of each task kind that has one. The first call imports them. A model that cannot be imported removes
    only the check of its own kind."""
    found = {}
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            found[entry.name] = _load(entry)
        except BaseException as error:  # noqa: BLE001 - the boundary to code that is not ours
            log.error(
                "the fields of task kind %s are not checked here: %s cannot be imported: %s: %s",
                *(entry.name, entry.value, type(error).__name__, error),
            )
    return found


def check_task(task: Task) -> CommonFields:
    """Check a task's fields, and return them. Raises Invalid with a cause for each wrong field. If the kind has no model, only
    the fields that every task may have are checked."""
    try:
        return task.fields_as(installed_models().get(task.kind, CommonFields))
    except Invalid:
        raise
    except Exception as error:  # a validator of a plug-in
        raise Invalid(
            f"the {task.kind} task cannot be checked: its model raised {type(error).__name__}: {error}"
        ) from error


def check_tasks(tasks: Sequence[Task], place: str = "rollouts[{}]") -> None:
    """Raise Invalid for a task with wrong fields.

    `place`: path in the HTTP body to which a cause's field is appended. `{}` in the path stands for the task's index.
    """
    for i, task in enumerate(tasks):
        with placed(place.format(i)):
            check_task(task)


@contextlib.contextmanager
def placed(place: str) -> Iterator[None]:
    """Put the path of a task before the fields of its causes."""
    try:
        yield
    except Invalid as error:
        causes = [Cause(f"{place}.{c.field}", c.message, c.reason) for c in error.causes]
        raise Invalid(f"{place}: {error}", causes=causes) from None


def offers_tools(task: Task) -> bool:
    """Return whether the agent of a task, which is not checked yet, surely has tools."""
    model = installed_models().get(task.kind)
    return model is not None and model.offers_tools(task.fields)


def _load(entry: EntryPoint) -> type[TaskFields]:
    model = entry.load()
    if not isinstance(model, type) or not issubclass(model, TaskFields):
        raise TypeError("it is no subclass of rollyard.tasks.TaskFields")
    return model
