"""Rollout requests in rows of other programs' datasets, for bridges and for adapters of trainers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pydantic

from rollyard.core.errors import Invalid
from rollyard.kinds.rollout import RolloutRequest
from rollyard.kinds.schema.validation import problems_of


def request_of_row(
    row: Mapping[str, Any],
    task: object,
    *,
    noun: str,
    remedy: str,
    set_by_bridge: Mapping[str, Any],
    defaults: Mapping[str, Any],
) -> RolloutRequest:
    """Make the rollout request of a row. Raises Invalid.

    `row`: its field `rollyard` has fields of a request. It is an object, or the object as JSON text: a table of Arrow
    adds to each object of a column the fields of the column's other objects. `task`: the row's task, if it has no field
    `rollyard`. `noun` and `remedy`: the word for the row in errors, and the advice to a row without a task. `defaults`:
    fields that the row may change; of `sampling` it may change single parameters.
    """
    given = row.get("rollyard")
    if given is None and isinstance(task, Mapping) and "kind" in task:
        given = {"task": task}
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError as error:
            raise Invalid(f"the {noun}'s field `rollyard` is not JSON: {error}") from None
    if not isinstance(given, Mapping):
        raise Invalid(f"the {noun} names no task; {remedy}")
    if ours := sorted(given.keys() & {"id", "n", "group"}):
        raise Invalid(f"the {noun}'s field `rollyard.{ours[0]}` is set by the bridge; leave it out")
    wanted = {**defaults, **given, **set_by_bridge}
    own = given.get("sampling")
    if "sampling" in defaults and (own is None or isinstance(own, Mapping)):
        wanted["sampling"] = {**defaults["sampling"], **(own or {})}
    try:
        return RolloutRequest.model_validate(wanted)
    except pydantic.ValidationError as error:
        problems = "; ".join(f"rollyard.{problem}" for problem in problems_of(RolloutRequest, error))
        raise Invalid(f"the {noun} cannot be run: {problems}") from None
