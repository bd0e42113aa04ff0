from __future__ import annotations

import dataclasses

import pytest

from rollyard.core.replaced_fields import replace
from rollyard.store.base import RolloutRecord

RECORD = RolloutRecord(
    namespace="default",
    id="a",
    digest="",
    request="{}",
    pool="p",
    task_kind="math",
    group=None,
    sample_index=0,
    mode="train",
    priority=0,
    created_at=1.0,
)


def test_a_copy_is_that_of_the_standard_library() -> None:
    assert replace(RECORD, seq=7, reward=0.5) == dataclasses.replace(RECORD, seq=7, reward=0.5)
    assert replace(RECORD) == RECORD
    assert replace(RECORD) is not RECORD


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(TypeError, match="RolloutRecord has no field colour"):
        replace(RECORD, **{"colour": 1})  # type: ignore[arg-type]


def test_all_fields_of_a_record_are_parameters_in_their_order() -> None:
    """A field outside `__init__` would shift the others."""
    fields = dataclasses.fields(RECORD)
    assert all(field.init and not field.kw_only for field in fields)
