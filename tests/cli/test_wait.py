"""When `wait` and `apply --wait` go on, are done, or end with an error, by what a pool's conditions say."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from rollyard.cli.objects import condition_holds, waiting_text
from rollyard.core.errors import NoProgress, NotFound
from rollyard.kinds.rollout_pool import RolloutPool
from tests.support import make

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def pool(generation: int, **conditions: str) -> RolloutPool:
    """`Ready="True 2 AllReady"`: status, observed generation, reason."""
    facts = []
    for type, text in conditions.items():
        status, observed, reason = text.split()
        more = {"observedGeneration": int(observed), "lastTransitionTime": NOW, "message": "words"}
        facts.append({"type": type, "status": status, "reason": reason, **more})
    return make.rollout_pool("demo", {"conditions": facts}, metadata={"generation": generation}, replicas=2)


@pytest.mark.parametrize("type", ["Ready", "Updated", "ready"])
def test_a_generation_that_nobody_has_looked_at_is_waited_for(type: str) -> None:
    before = pool(2, Ready="True 1 AllReady", Updated="True 1 Updated")
    assert not condition_holds(before, type=type, status="True")
    assert condition_holds(pool(2, Ready="True 2 AllReady", Updated="True 2 Updated"), type=type, status="True")
    failed_before = pool(2, Ready="True 1 AllReady", Updated="False 1 CrashLoop")
    assert not condition_holds(failed_before, type=type, status="True"), "the one before it, that was corrected"


@pytest.mark.parametrize("type", ["Ready", "Updated"])
def test_a_change_that_fails_again_and_again_ends_the_wait_though_the_old_ones_serve(type: str) -> None:
    with pytest.raises(NoProgress, match="rolloutpool/demo: Updated is False: CrashLoop: words"):
        condition_holds(pool(2, Ready="True 2 AllReady", Updated="False 2 CrashLoop"), type=type, status="True")


@pytest.mark.parametrize("reason", ["AllocationFailed", "Updating", "WaitingForSlurm"])
def test_what_may_still_come_is_waited_for(reason: str) -> None:
    assert not condition_holds(pool(1, Ready=f"False 1 {reason}"), type="Ready", status="True")


def test_other_conditions_and_other_states_are_waited_for_as_they_are() -> None:
    failing = pool(1, Ready="False 1 CrashLoop", SlurmReachable="False 1 NoAnswer")
    assert condition_holds(failing, type="Ready", status="False")
    assert not condition_holds(failing, type="SlurmReachable", status="True")
    with pytest.raises(NotFound):
        condition_holds(None, type="Ready", status="True")


def test_a_wait_says_what_it_waits_for() -> None:
    going = pool(2, Ready="True 2 AllReady", Updated="False 2 Updating", Suspended="False 2 NotSuspended")
    assert waiting_text(going, ["Ready"]) == "Updated is False: Updating: words"
    assert waiting_text(going, ["suspended"]) == "Suspended is False: NotSuspended: words"
    assert waiting_text(going, ["Redy"]) == "it has no condition Redy; it has Ready, Updated, Suspended"
    assert "not processed it yet" in waiting_text(pool(3, Ready="True 2 AllReady"), ["Ready"])
