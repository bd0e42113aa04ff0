"""Demand for each kind of pool, and its use of GPU-hours."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rollyard.kinds.allocation import Allocation
from rollyard.kinds.autoscaling import GpuLedger, InferenceAutoscaling
from rollyard.kinds.base import evolve
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.pool import GPU_HOURS_SPENT
from rollyard.kinds.rollout import Stage
from rollyard.kinds.rollout_pool import RolloutPoolSpec
from rollyard.reconcilers.demand import LoadReport, inference_metrics, max_workers, rollout_metrics, sessions
from rollyard.reconcilers.pool_size import SHOWN_SECONDS, account_gpu_hours, decide_size, shown_hours
from tests.support import make

NOW = 1_700_000_000.0
INIT, RUN, EVAL = Stage.INIT, Stage.RUN, Stage.EVAL


def rollout_spec(**more: Any) -> RolloutPoolSpec:
    stages = {n: {"workers": {"min": 1, "max": m}} for n, m in (("init", 2), ("run", 8), ("eval", 4))}
    return RolloutPoolSpec.model_validate(
        {"autoscaling": {"maxReplicas": 3}, "stages": stages, "allocation": {"cpusPerTask": 8}, **more}
    )


def asked(spec: RolloutPoolSpec, queued: dict[Stage, int], in_flight: dict[Stage, int], size: int = 0) -> int:
    return max(m.needs(size) or 0 for m in rollout_metrics(spec, queued, in_flight))


# demand of a RolloutPool


def test_the_stage_that_asks_for_most_wins() -> None:
    spec = rollout_spec()
    assert asked(spec, {}, {}) == 0
    assert asked(spec, {INIT: 1}, {}) == 1
    assert asked(spec, {INIT: 30}, {INIT: 2, RUN: 8}) == 5, "all of these run next: 40 by 8"
    assert asked(spec, {EVAL: 20}, {RUN: 8, EVAL: 4}) == 6, "24 by 4"


def test_a_stage_is_no_wider_than_its_allocation_has_room_for() -> None:
    assert [max_workers(rollout_spec(), stage) for stage in Stage] == [2, 8, 4]
    small = rollout_spec(allocation={"cpusPerTask": 2})
    assert [max_workers(small, stage) for stage in Stage] == [2, 6, 4], "eight sandboxes, one for each other stage"
    assert max_workers(small, INIT, RUN) == 7


# demand of an InferencePool


def test_sessions_are_what_rollouts_hold_and_can_begin() -> None:
    spec = rollout_spec()
    assert sessions(spec, {INIT: 5, EVAL: 9}, {INIT: 1, RUN: 2, EVAL: 4}) == 8, "EVAL needs no model"
    assert sessions(spec, {INIT: 1000}, {RUN: 8}) == 30, "three allocations begin no more than ten each"
    assert sessions(rollout_spec(suspend=True), {INIT: 1000}, {RUN: 8}) == 8
    fixed = rollout_spec(autoscaling=None, replicas=1)
    assert sessions(fixed, {INIT: 1000}, {}) == 10


def test_waiting_requests_and_kv_use_ask_for_more_than_sessions_do() -> None:
    targets = InferenceAutoscaling(max_replicas=9, target_sessions_per_replica=10)

    def needs(live: int, *reports: LoadReport) -> list[int | None]:
        return [m.needs(len(reports)) for m in inference_metrics(targets, live, reports)]

    assert needs(20, LoadReport(0, 0.1), LoadReport(0, 0.2)) == [2, 0, 1]
    assert needs(20, LoadReport(12, 0.1), LoadReport(8, 0.2)) == [2, 4, 1]
    assert needs(20, LoadReport(0, 1.0), LoadReport(0, 0.95)) == [2, 0, 3]


def test_what_a_server_has_not_said_is_not_known() -> None:
    targets = InferenceAutoscaling(max_replicas=9)

    def missing(*reports: LoadReport) -> list[bool]:
        return [m.missing for m in inference_metrics(targets, 0, reports)]

    assert missing() == [False, False, False], "where there is none, there is no load"
    assert missing(LoadReport(0, 0.0), LoadReport(0, 0.0)) == [False, False, False]
    assert missing(LoadReport(0, 0.0), LoadReport(0, None)) == [False, False, True]
    assert missing(LoadReport()) == [False, True, True]
    [_, waiting, usage] = inference_metrics(targets, 0, [LoadReport(3, 0.5), LoadReport()])
    assert (waiting.describe(), usage.total) == ("requests waiting at least 3, target 5 each", 0.5)


# GPU-hours


def allocation(name: str, *, start: float | None = None, end: float | None = None, **status: Any) -> Allocation:
    """An allocation of two nodes with four GPUs each; with `end` its job has ended."""

    def at(seconds: float | None) -> datetime | None:
        return None if seconds is None else datetime.fromtimestamp(NOW + seconds, UTC)

    facts = {
        "job_state": "RUNNING" if end is None else "COMPLETED",
        "node": "n1",
        "start_time": at(start),
        "end_time": at(end if end is not None else 28_800),
    }
    spec = {"template": {"nodes": 2, "gpusPerNode": 4}}
    return make.allocation(name, pool="InferencePool", spec=spec, **(facts | status))


def test_what_runs_counts_as_long_as_it_runs_and_what_only_waits_does_not() -> None:
    pending = {"job_state": "PENDING", "node": ""}
    there = [allocation("a", start=0), allocation("b", start=60, **pending), allocation("c", **pending)]
    ledger = account_gpu_hours(GpuLedger(), there, NOW)
    assert ledger.hours(NOW + 1800) == 4.0
    cancelled = allocation("d", start=10, end=10, node="")
    assert account_gpu_hours(ledger, [there[0], cancelled], NOW + 60).spells.keys() == {"a"}


def test_each_allocation_counts_once() -> None:
    ledger = account_gpu_hours(GpuLedger(), [allocation("a", start=0), allocation("b", start=0)], NOW)
    over = [allocation("a", start=0, end=1800), allocation("b", start=0, end=900)]
    for _ in range(3):
        ledger = account_gpu_hours(GpuLedger.model_validate_json(ledger.model_dump_json()), over, NOW + 1900)
    assert ledger.hours(NOW + 5000) == 6.0
    for _ in range(3):
        ledger = account_gpu_hours(ledger, over[:1], NOW + 2000)
    assert (ledger.past, ledger.hours(NOW + 9000)) == (8 * 900, 6.0)
    assert account_gpu_hours(ledger, [], NOW + 9000) == GpuLedger(past=8 * 2700)


def test_one_that_is_gone_before_its_end_was_seen_counts_until_now() -> None:
    ledger = account_gpu_hours(GpuLedger(), [allocation("a", start=0)], NOW)
    assert account_gpu_hours(ledger, [], NOW + 1800) == GpuLedger(past=8 * 1800)


def test_what_was_last_seen_running_counts_to_the_end_of_its_walltime_at_most() -> None:
    """The server was away for three days; neither Slurm nor accounting has said yet how it ended."""
    in_an_hour = datetime.fromtimestamp(NOW + 3600, UTC)
    last_seen = account_gpu_hours(GpuLedger(), [allocation("a", start=0, end_time=in_an_hour)], NOW)
    back = account_gpu_hours(last_seen, [allocation("a", start=0, end_time=in_an_hour)], NOW + 3 * 86_400)
    assert (last_seen.hours(NOW + 1800), back.hours(NOW + 3 * 86_400)) == (4.0, 8.0)
    assert account_gpu_hours(back, [], NOW + 4 * 86_400) == GpuLedger(past=8 * 3600)


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500)), max_size=4), st.sets(st.integers(0, 1500)))
def test_however_often_one_looks_the_sum_is_the_same(jobs: list[tuple[int, int]], looks: set[int]) -> None:
    """Each job is looked at until a while after its end, and then gone."""
    ledger = GpuLedger()
    every = sorted({*looks, *(s for s, _ in jobs), *(s + n for s, n in jobs), 2000})
    for now in every:
        there = [
            allocation(f"a{i}", start=start, end=start + n if now >= start + n else None)
            for i, (start, n) in enumerate(jobs)
            if start <= now <= start + n + 100
        ]
        ledger = account_gpu_hours(ledger, there, NOW + now)
    assert ledger == GpuLedger(past=8 * sum(n for _, n in jobs))


def inference_pool(cap: float | None) -> InferencePool:
    return make.inference_pool(replicas=2, max_gpu_hours=cap, allocation={"gpusPerNode": 8})


def test_at_the_cap_everything_is_given_back_and_says_why() -> None:
    ledger = GpuLedger(past=3600 * 10)
    assert decide_size(inference_pool(None), None, [], ledger, NOW).desired == 2
    assert decide_size(inference_pool(10.5), None, [], ledger, NOW).desired == 2
    spent = decide_size(inference_pool(10), None, [], ledger, NOW)
    assert (spent.desired, spent.message) == (0, "10.00 GPU-hours used, spec.maxGpuHours is 10")
    assert spent.limit is not None
    assert spent.limit.word == GPU_HOURS_SPENT
    assert "the 10 GPU-hours of spec.maxGpuHours are used up" in spent.limit.message
    assert "raise or remove spec.maxGpuHours" in spent.limit.message


def test_hours_in_the_status_do_not_move_with_every_look() -> None:
    ledger = account_gpu_hours(GpuLedger(), [allocation("a", start=0)], NOW)
    base = NOW - NOW % SHOWN_SECONDS + SHOWN_SECONDS
    assert len({shown_hours(ledger, base + s) for s in range(0, SHOWN_SECONDS, 7)}) == 1
    assert shown_hours(ledger, base + SHOWN_SECONDS) > shown_hours(ledger, base)


def test_a_suspended_pool_and_a_fixed_one_ask_nobody() -> None:
    pool = make.rollout_pool(replicas=3)
    assert decide_size(pool, None, [], GpuLedger(), NOW).desired == 3
    off = evolve(pool, spec=evolve(pool.spec, suspend=True))
    assert decide_size(off, None, [], GpuLedger(), NOW).desired == 0
