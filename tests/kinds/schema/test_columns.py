"""The columns of `rollyard get`."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import starmap

import pytest

from rollyard.kinds.base import ConditionUpdate, set_conditions
from rollyard.kinds.schema.columns import pool_reason

IMAGE = ConditionUpdate("ImagesReady", False, "ImageUnavailable")
QUEUE = ConditionUpdate("SlurmReachable", False, "NoAnswer")


@pytest.mark.parametrize(
    ("updates", "text"),
    [
        ([], "Unknown"),
        ([("Ready", True, "AllReady")], "AllReady"),
        ([("Ready", True, "AllReady"), ("ImagesReady", True, "ImagesReady"), ("RenewalBlocked", False, "No")], "AllReady"),
        ([("Ready", True, "AllReady"), IMAGE, ("Suspended", False, "No")], "AllReady,ImagesReady=False"),
        ([("Ready", True, "AllReady"), QUEUE, IMAGE], "AllReady,SlurmReachable=False,ImagesReady=False"),
        ([("Ready", True, "AllReady"), ("RenewalBlocked", True, "QueueTooLong")], "AllReady,RenewalBlocked=True"),
        ([("Ready", False, "Suspended"), IMAGE], "Suspended"),
    ],
)  # fmt: skip
def test_a_pool_that_is_ready_names_its_troubles(updates: list[tuple[str, bool, str]], text: str) -> None:
    found = set_conditions([], starmap(ConditionUpdate, updates), generation=1, now=datetime.now(UTC))
    assert pool_reason(found) == text
