"""Objects with a status from another release can still be read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import pytest
from pydantic import BaseModel

from rollyard.kinds.allocation import AllocationStatus
from rollyard.kinds.inference_pool import InferencePoolStatus
from rollyard.kinds.rollout_pool import RolloutPoolStatus


def parts(of: object) -> Iterator[type[BaseModel]]:
    """Every model that an annotation or a model's fields lead to."""
    if isinstance(of, type) and issubclass(of, BaseModel):
        yield of
        for field in of.model_fields.values():
            yield from parts(field.annotation)
    for inner in get_args(of):
        yield from parts(inner)


@pytest.mark.parametrize("status", [InferencePoolStatus, RolloutPoolStatus, AllocationStatus])
def test_a_field_that_is_not_known_is_ignored_in_every_part_of_a_status(status: type[BaseModel]) -> None:
    found = set(parts(status))
    assert len(found) > 2, "it looks into lists and dicts"
    assert {part.__name__ for part in found if part.model_config.get("extra") != "ignore"} == set()
