"""The failure table against the error classes, and against what `step` does."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import rollyard.tokens
from rollyard.core import errors
from rollyard.core.errors import RollyardError
from rollyard.kinds.failure_table import ENDINGS, Again, Ending, Fault, ending_of
from rollyard.kinds.rollout import Stage, Status
from rollyard.node.lease_run import FAILURES
from rollyard.server.rollouts.step import Finished, step
from rollyard.store.base import BlobRef
from tests.server.rollouts.test_step import granted
from tests.support.make import rollout

CAUGHT = (*FAILURES, errors.SandboxBroken, errors.RoleModelAttacked, errors.TemplateUnusable)
"""Errors that end an attempt (`LeaseRun`)."""
WRAPPED = {errors.Invalid, errors.FileMissing, errors.TooLarge}
"""Errors of the API that a lease run reports as a TaskError."""
HANDED_BACK = {errors.ImageNotReady}
"""Errors after which the rollout is handed back, and never ends."""


def classes() -> list[type[RollyardError]]:
    for module in pkgutil.walk_packages(rollyard.tokens.__path__, "rollyard.tokens."):
        importlib.import_module(module.name)
    found, open_ = [], [RollyardError]
    while open_:
        found.append(open_.pop())
        open_ += found[-1].__subclasses__()
    return [cls for cls in found if cls.__module__.startswith("rollyard.")]


def test_every_error_that_can_end_a_rollout_has_a_row_of_its_own() -> None:
    assert {cls.__name__ for cls in classes()} >= {"StreamLost", "PromptTooLong", "NoParserFits", "SandboxLost"}
    for cls in classes():
        if issubclass(cls, CAUGHT) and cls not in WRAPPED | HANDED_BACK:
            assert vars(cls).get("ending") in ENDINGS, (
                f"give {cls.__name__} an `ending`, and the failure table a row for it"
            )
        elif cls not in HANDED_BACK:
            assert cls.ending is None, f"{cls.__name__} ends no rollout"


def test_public_reasons_are_what_they_were() -> None:
    """Renaming a class changes no reason; changing a reason breaks callers."""
    assert sorted(ENDINGS) == [
        *(
            "AnswerRefused",
            "BatchEnded",
            "Cancelled",
            "Completed",
            "ContextExceeded",
            "DatasetDeleted",
            "EndpointError",
        ),
        *("EndpointLost", "EndpointRefused", "HandlerFailed", "ImageNotFound", "ImageUnavailable", "LostTooOften"),
        *("NoParserFits", "NoReward", "NodeAgentError", "NodeFault", "NotNeeded", "NothingSampled", "PoolDeleted"),
        *("PromptTooLong", "ResultRefused", "RoleBudgetUsed", "RoleModelAttacked", "RoleModelFailed"),
        *("SandboxBroken", "SandboxError", "SandboxLost", "SandboxSilent"),
        *("SandboxStartFailed", "SnapshotRefused", "SnapshotUnusable", "StageTimeout", "StreamLost", "TaskError"),
        *("TemplateUnusable", "ToolCallsUnreadable", "Truncated", "WeightsMixed", "WeightsStale", "WeightsVersionGone"),
    ]


def test_an_error_without_a_row_is_the_tasks_fault() -> None:
    assert ending_of(RollyardError("?")).status is Status.FAILED


@pytest.mark.parametrize("row", ENDINGS.values(), ids=lambda row: row.reason)
def test_what_a_row_says_is_what_step_does(row: Ending) -> None:
    record = granted(rollout())
    error = None if row.status.scored else row.error(Stage.RUN, "why")
    reward = 1.0 if row.trainable else None
    after, _ = step(
        record,
        Finished(2.0, record.fence, row.status, reward, error, BlobRef("p", 0, 1, ""), max_attempts=2, sampled=1),
    )
    if row.again is Again.COUNTED:
        assert after.status is Status.QUEUED
    elif row.again is Again.NO:
        assert after.status is row.status
    assert (after.reward is not None) == row.trainable
    assert (row.status is Status.INFRA_FAILED) == (row.fault is Fault.INFRASTRUCTURE)
    assert (row.status is Status.CANCELLED) == (row.fault is Fault.CALLER)
