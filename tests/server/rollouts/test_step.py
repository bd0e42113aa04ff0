"""`step` alone: every invariant of a rollout's life, by example and by random event sequences."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollyard.core.errors import Fenced
from rollyard.kinds.failure_table import WEIGHTS_STALE
from rollyard.kinds.resumption import Resumption
from rollyard.kinds.rollout import RolloutError, Stage, Status
from rollyard.server.rollouts.history import last_loss
from rollyard.server.rollouts.step import (
    MAX_LOSSES,
    SUSPECT_LOSSES,
    Cancelled,
    Ended,
    EndpointMoved,
    Event,
    Finished,
    Granted,
    ImageGivenUp,
    ImageMissing,
    Lost,
    Outdated,
    Requeued,
    RunBegun,
    RunStored,
    StopHolder,
    TurnsSaved,
    backoff,
    is_suspect,
    step,
)
from rollyard.store.base import BlobRef, RolloutRecord
from tests.support.make import rollout

BLOB = BlobRef("pack", 0, 3, "00")
FAULT = RolloutError(stage=Stage.RUN, reason="SandboxLost", message="it died")


def granted(record: RolloutRecord, at: float = 1.0) -> RolloutRecord:
    return step(record, Granted(at, "uid/instance", "node1", {"policy": "e1"}))[0]


def finished(
    record: RolloutRecord, status: Status, reward: float | None = None, attempts: int = 3, sampled: int = 5
) -> Finished:
    return Finished(2.0, record.fence, status, reward, None if status.scored else FAULT, BLOB, attempts, sampled)


def test_a_rollout_goes_from_the_queue_to_one_terminal_record() -> None:
    record = granted(rollout())
    assert (record.status, record.fence, record.queued_seconds) == (Status.RUNNING, 1, 1.0)
    record, effects = step(record, RunStored(1.5, 1, BLOB, BLOB))
    assert (record.stage, record.result, effects) == (Stage.EVAL, BLOB, ())
    record, effects = step(record, finished(record, Status.COMPLETED, 1.0))
    assert (record.status, record.reward, record.holder, effects) == (Status.COMPLETED, 1.0, None, (Ended(),))


def test_a_word_from_a_void_lease_is_fenced() -> None:
    record = granted(granted_again := step(granted(rollout()), Lost(2.0, 1, "Expired"))[0])
    assert granted_again.status is Status.QUEUED
    for stale in (RunStored(3.0, 1, BLOB, BLOB), Lost(3.0, 1, "x"), EndpointMoved(3.0, 1, "policy", "e2")):
        with pytest.raises(Fenced):
            step(record, stale)
    with pytest.raises(Fenced):
        step(record, replace(finished(record, Status.COMPLETED, 1.0), fence=1))


def test_a_lost_lease_costs_an_attempt_but_no_retry() -> None:
    record, effects = step(granted(rollout()), Lost(5.0, 1, "Preempted"))
    assert (record.attempt, record.faults, record.losses) == (2, 0, 1)
    assert record.endpoints == {"policy": "e1"}, "its prefix is in that cache"
    assert effects == (Requeued(5.0),)


def test_what_is_handed_back_in_good_order_costs_nothing() -> None:
    record = rollout()
    for _ in range(MAX_LOSSES + 5):
        record = granted(record)
        record, _ = step(record, Lost(1.0, record.fence, "NodeAgentStopped", handed_back=True))
    assert (record.status, record.faults, record.losses) == (Status.QUEUED, 0, 0)


def saved(record: RolloutRecord, turns: int, version: str = "v1") -> RolloutRecord:
    record, effects = step(record, TurnsSaved(1.5, record.fence, turns, weights_version=version))
    assert effects == ()
    return record


def with_version(record: RolloutRecord, version: str) -> RolloutRecord:
    return step(record, Granted(1.0, "uid/instance", "node1", {"policy": "e1"}, version))[0]


def test_a_lost_lease_with_saved_turns_keeps_the_attempt_and_the_version_of_its_tokens() -> None:
    record = saved(with_version(rollout(), "v1"), 3)
    record, effects = step(record, Lost(5.0, 1, "Expired"))
    assert (record.attempt, record.stage, record.saved_turns, record.losses) == (1, Stage.INIT, 3, 1)
    assert (record.weights_version, effects) == ("v1", (Requeued(5.0),))
    record = with_version(record, "v2")
    assert (record.fence, record.weights_version) == (2, "v1")
    with pytest.raises(Fenced):
        step(record, TurnsSaved(6.0, 1, 4))
    went_on = Resumption(turn=2, reason="Expired", replayed=2, dropped=1, why="turn 3 was cut off")
    record, _ = step(record, TurnsSaved(6.0, 2, 2, went_on, "v2"))
    assert (record.saved_turns, record.weights_version) == (2, "v1")
    assert "after turn 2, 2 played again, 1 sampled again: turn 3 was cut off" in record.history
    record, _ = step(record, RunStored(7.0, 2, BLOB, BLOB))
    assert record.saved_turns == 0
    with pytest.raises(Fenced):
        step(record, TurnsSaved(8.0, 2, 3))


def test_a_rollout_that_kept_no_turn_has_the_version_of_its_new_lease() -> None:
    record = step(saved(with_version(rollout(), "v1"), 3), Lost(5.0, 1, "Expired"))[0]
    record = step(with_version(record, "v2"), TurnsSaved(6.0, 2, 0, Resumption(turn=0, dropped=3, why="no"), "v2"))[0]
    assert (record.attempt, record.weights_version, record.saved_turns) == (1, "v2", 0)
    assert step(record, Lost(7.0, 2, "Expired"))[0].attempt == 2


def test_a_lost_sandbox_keeps_saved_turns_but_not_for_the_last_attempt() -> None:
    record = saved(with_version(rollout(), "v1"), 3)
    other = replace(finished(record, Status.INFRA_FAILED), error=replace_reason(FAULT, "NodeFault"))
    assert step(record, other)[0].saved_turns == 0, "nobody knows what its files are"
    record, _ = step(record, finished(record, Status.INFRA_FAILED))
    assert (record.attempt, record.faults, record.saved_turns, record.weights_version) == (1, 1, 3, "v1")
    record = with_version(record, "v2")
    assert last_loss(record) == ("SandboxLost", "node1")
    record, _ = step(record, finished(record, Status.INFRA_FAILED))
    assert (record.attempt, record.faults, record.saved_turns, record.weights_version) == (2, 2, 0, None)
    assert last_loss(with_version(record, "v2")) == ("", ""), "it begins again as any new attempt"


def replace_reason(error: RolloutError, reason: str) -> RolloutError:
    return error.model_copy(update={"reason": reason})


def test_what_may_be_the_cause_of_losses_is_tried_once_without_its_saved_turns() -> None:
    record = saved(granted(rollout()), 3)
    for _ in range(MAX_LOSSES - 2):
        record = granted(step(record, Lost(1.0, record.fence, "Expired"))[0])
        assert (record.saved_turns, record.attempt) == (3, 1)
    record, _ = step(record, Lost(1.0, record.fence, "Expired"))
    assert (record.losses, record.saved_turns, record.attempt) == (MAX_LOSSES - 1, 0, 2)


@pytest.mark.parametrize("handed_back", [True, False])
def test_weights_that_became_too_old_drop_saved_turns_in_the_queue_too(handed_back: bool) -> None:
    record = saved(with_version(rollout(), "v1"), 3)
    record, _ = step(record, Lost(2.0, 1, "Drained", handed_back))
    record, effects = step(record, Outdated(3.0, 1, WEIGHTS_STALE, "too old"))
    assert (record.status, record.saved_turns, record.weights_version) == (Status.QUEUED, 0, None)
    assert (record.attempt, record.outdated, effects) == (2, 1, (Requeued(3.0),))


def missing(record: RolloutRecord, at: float = 2.0, ends_at: float = 99.0) -> ImageMissing:
    return ImageMissing(at, record.fence, "the image a cannot be used now: no", "docker://r/a:1", at, ends_at)


def test_a_missing_image_costs_nothing_until_the_rollout_has_waited_too_long() -> None:
    record = granted(rollout())
    record, effects = step(record, missing(record))
    assert (record.status, record.attempt, record.faults, record.losses) == (Status.QUEUED, 1, 0, 0)
    assert (record.image, record.stage, effects) == ("docker://r/a:1", Stage.INIT, (Requeued(2.0),))
    assert not record.endpoints, "no model server has seen its prompt"
    assert '"ImageMissing",1,"INIT",{"reason":"ImageUnavailable","message":"the image a cannot' in record.history
    again = granted(record)
    record, effects = step(again, missing(again, at=99.0))
    assert (record.status, effects) == (Status.INFRA_FAILED, (Ended(),))
    assert record.error is not None
    assert (record.error.reason, record.error.message) == ("ImageUnavailable", "the image a cannot be used now: no")


def test_only_a_queued_rollout_is_given_up_for_its_image() -> None:
    running = granted(rollout())
    assert step(running, ImageGivenUp(2.0, "no")) == (running, ())
    assert step(rollout(), ImageGivenUp(2.0, "no"))[0].status is Status.INFRA_FAILED


def test_a_missing_image_at_eval_keeps_the_run() -> None:
    record, _ = step(granted(rollout()), RunStored(1.5, 1, BLOB, BLOB))
    record, _ = step(record, missing(record))
    assert (record.stage, record.result, record.attempt) == (Stage.EVAL, BLOB, 1)


def test_a_rollout_that_ends_every_holder_does_not_go_round_for_ever() -> None:
    record = rollout()
    for losses in range(1, MAX_LOSSES + 1):
        assert is_suspect(record) == (losses > SUSPECT_LOSSES), "after a few it runs alone"
        record = granted(record)
        record, _ = step(record, Lost(1.0, record.fence, "Expired"))
    assert (record.status, record.reward) == (Status.INFRA_FAILED, None)
    assert record.error is not None
    assert record.error.reason == "LostTooOften"
    assert "lost 6 times in a row, the last 3 on a node agent without other work" in record.error.message


def test_what_got_through_its_run_is_no_suspect_any_more() -> None:
    record = rollout()
    for _ in range(SUSPECT_LOSSES):
        record = granted(record)
        record, _ = step(record, Lost(1.0, record.fence, "Expired"))
    assert is_suspect(record)
    record = granted(record)
    record, _ = step(record, RunStored(1.5, record.fence, BLOB, BLOB))
    assert not is_suspect(record)


def lost_at(record: RolloutRecord, turns: int, times: int) -> RolloutRecord:
    """Return the record after so many lost leases, each with so many saved turns."""
    for _ in range(times):
        record = saved(granted(record), turns)
        record, _ = step(record, Lost(2.0, record.fence, "Expired"))
    return record


def test_a_rollout_is_no_suspect_if_slurm_ended_its_jobs_from_outside() -> None:
    record = lost_at(rollout(), 2, MAX_LOSSES - 1)
    assert record.saved_turns == 0, "the last try begins again"
    for _ in range(MAX_LOSSES):
        record = saved(granted(record), 3)
        record, _ = step(record, Lost(3.0, record.fence, "AllocationEnded", blameless=True))
    assert (record.status, record.losses, record.saved_turns) == (Status.QUEUED, MAX_LOSSES - 1, 3)
    assert '"LeaseLost"' in record.history.splitlines()[-1]


@pytest.mark.parametrize(("turns", "losses"), [(2, SUSPECT_LOSSES), (3, 0)])
def test_a_rollout_is_no_suspect_once_a_node_agent_outlived_it_beyond_the_turn_of_its_losses(
    turns: int, losses: int
) -> None:
    record = saved(granted(lost_at(rollout(), 2, SUSPECT_LOSSES)), turns)
    record, _ = step(record, Lost(3.0, record.fence, "Drained", handed_back=True))
    assert (record.losses, record.saved_turns) == (losses, turns)


def test_a_rollout_that_never_resumes_stays_a_suspect_when_it_is_handed_back() -> None:
    record = rollout()
    for _ in range(SUSPECT_LOSSES):
        record = step(granted(record), Lost(2.0, record.fence + 1, "Expired"))[0]
    record = step(granted(record), Lost(3.0, record.fence + 1, "Drained", handed_back=True))[0]
    assert is_suspect(record)


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.TRUNCATED])
def test_a_reward_without_a_sampled_token_does_not_exist(status: Status) -> None:
    record = granted(rollout())
    record, effects = step(record, finished(record, status, 1.0, sampled=0))
    assert (record.status, record.reward, record.result, effects) == (Status.FAILED, None, BLOB, (Ended(),))
    assert record.error is not None
    assert (record.error.reason, str(status) in record.error.message) == ("NothingSampled", True)


def test_the_reward_of_a_check_needs_no_token() -> None:
    record = granted(rollout(mode="check"))
    record, _ = step(record, finished(record, Status.COMPLETED, 1.0, sampled=0))
    assert (record.status, record.reward, record.error) == (Status.COMPLETED, 1.0, None)


@pytest.mark.parametrize("reward", [None, float("nan"), float("inf"), float("-inf")])
def test_a_score_that_is_no_finite_number_is_a_failure(reward: float | None) -> None:
    record = granted(rollout())
    record, _ = step(record, finished(record, Status.COMPLETED, reward))
    assert (record.status, record.reward) == (Status.FAILED, None)
    assert record.error is not None
    assert record.error.reason == "NoReward"


def test_infrastructure_faults_are_retried_and_then_end_without_a_reward() -> None:
    record = rollout()
    for fault in (1, 2):
        record = granted(record)
        record, effects = step(record, finished(record, Status.INFRA_FAILED))
        assert (record.status, record.faults, record.attempt) == (Status.QUEUED, fault, fault + 1)
        assert effects == (Requeued(2.0 + backoff("r", fault)),)
        assert record.endpoints == {}, "it may have been the endpoint's fault"
    record = granted(record)
    record, _ = step(record, finished(record, Status.INFRA_FAILED))
    assert (record.status, record.reward, record.error) == (Status.INFRA_FAILED, None, FAULT)


def test_a_fault_in_eval_scores_the_stored_run_again() -> None:
    record = granted(rollout())
    record, _ = step(record, RunStored(1.0, record.fence, BLOB, BLOB))
    record, _ = step(record, finished(record, Status.INFRA_FAILED))
    assert (record.status, record.stage, record.result, record.attempt) == (Status.QUEUED, Stage.EVAL, BLOB, 1)


def test_cancelling_ends_at_once_and_stops_the_holder() -> None:
    record, effects = step(granted(rollout()), Cancelled(2.0))
    assert (record.status, effects) == (Status.CANCELLED, (StopHolder("uid/instance", 1), Ended()))
    assert step(record, Cancelled(3.0)) == (record, ())


@pytest.mark.parametrize("status", [Status.FAILED, Status.INFRA_FAILED, Status.CANCELLED])
def test_only_scored_endings_have_a_reward(status: Status) -> None:
    record = granted(rollout())
    record, _ = step(record, finished(record, status, 1.0, attempts=1))
    assert record.reward is None


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "grant",
                "begin",
                "save",
                "resume",
                "run",
                "finish",
                "lost",
                "end of job",
                "hand back",
                "outdate",
                "cancel",
                "move",
            ]
        ),
        st.booleans(),
        st.sampled_from([s for s in Status if s.terminal]),
    ),
    max_size=60,
)


def event_of(word: str, stale: bool, status: Status, record: RolloutRecord, at: float) -> Event:
    fence = record.fence - 1 if stale else record.fence
    match word:
        case "grant":
            return Granted(at, "uid/i", "n", {"policy": "e"})
        case "begin":
            return RunBegun(at, fence)
        case "save":
            return TurnsSaved(at, fence, record.saved_turns + 1)
        case "resume":
            kept = record.saved_turns // 2
            return TurnsSaved(at, fence, kept, Resumption(turn=kept), "v2")
        case "run":
            return RunStored(at, fence, BLOB, BLOB)
        case "finish":
            return Finished(at, fence, status, 0.5, FAULT, BLOB, 3, sampled=int(at) % 3)
        case "lost":
            return Lost(at, fence, "Expired")
        case "end of job":
            return Lost(at, fence, "AllocationEnded", blameless=True)
        case "hand back":
            return Lost(at, fence, "Drained", handed_back=True)
        case "outdate":
            return Outdated(at, fence, WEIGHTS_STALE, "they are too old")
        case "move":
            return EndpointMoved(at, fence, "policy", "e2")
        case _:
            return Cancelled(at)


@given(EVENTS)
def test_whatever_happens_a_rollout_ends_once_and_fences_only_grow(events: list[tuple[str, bool, Status]]) -> None:
    record, endings = rollout(), 0
    for at, (word, stale, status) in enumerate(events):
        before = record
        try:
            record, effects = step(record, event_of(word, stale, status, record, float(at)))
        except Fenced:
            assert word != "cancel"
            continue
        endings += effects.count(Ended())
        if stale and word not in ("grant", "cancel"):
            raise AssertionError("a void lease changed the record")
        assert not (before.status.terminal and record != before)
        assert record.fence >= before.fence
        assert record.leased == (record.status is Status.RUNNING)
        assert (record.reward is not None) == record.status.scored
        assert (record.finished_at is not None) == record.status.terminal
        assert record.faults <= 3
        assert not record.saved_turns or record.stage is not Stage.EVAL
        if record.attempt > before.attempt or record.status.terminal:
            assert record.saved_turns == 0
        elif before.leased and not record.leased and before.stage is not Stage.EVAL:
            assert before.saved_turns == record.saved_turns > 0
    assert endings == record.status.terminal
