"""Refusals of Slurm are told with the field of the template that they are about."""

from __future__ import annotations

import pytest

from rollyard.kinds.allocation import AllocationTemplate
from rollyard.reconcilers.refused_field import refused_fields


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("SubmitRefused: Invalid feature specification", "constraint: bigmem"),
        ("Invalid account or account/partition combination specified", "partition: main"),
        ("Requested node configuration is not available", "cpusPerTask: 3, constraint: bigmem"),
        ("Invalid qos specification", ""),
        ("Memory specification can not be satisfied", ""),
    ],
)
def test_the_fields_that_are_given(words: str, told: str) -> None:
    template = AllocationTemplate(partition="main", constraint="bigmem", cpus_per_task=3)
    assert refused_fields(words, template) == told
