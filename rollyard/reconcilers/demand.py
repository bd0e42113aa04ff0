"""Demand on a pool, as metrics for the autoscaler. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rollyard.kinds.autoscaling import InferenceAutoscaling
from rollyard.kinds.rollout import Stage
from rollyard.kinds.rollout_pool import RolloutPoolSpec
from rollyard.kinds.sandbox_template import sandbox_capacity
from rollyard.reconcilers.autoscaler import Metric

Counts = Mapping[Stage, int]


@dataclass(frozen=True, slots=True)
class LoadReport:
    """Last load that a model server reported. A value is None if the server did not report it."""

    waiting: int | None = None
    kv_usage: float | None = None


def rollout_metrics(spec: RolloutPoolSpec, queued: Counts, in_flight: Counts) -> list[Metric]:
    """Metrics of a RolloutPool: rollouts in INIT and RUN need RUN workers, and rollouts in EVAL need EVAL workers.

    Both queued and running rollouts count. Rollouts in INIT count for RUN, because RUN is their next stage. There is no
    metric for INIT workers. INIT may have fewer workers than RUN, so such a metric would request too many allocations,
    with idle RUN workers.
    """
    total = {stage: queued.get(stage, 0) + in_flight.get(stage, 0) for stage in Stage}
    return [
        Metric("INIT and RUN", total[Stage.INIT] + total[Stage.RUN], max_workers(spec, Stage.RUN)),
        Metric("EVAL", total[Stage.EVAL], max_workers(spec, Stage.EVAL)),
    ]


def max_workers(spec: RolloutPoolSpec, *stages: Stage) -> int:
    """Greatest number of workers of these stages together in one allocation, while the other stages have their minimum."""
    workers = {stage: getattr(spec.stages, stage.value.lower()).workers for stage in Stage}
    others = sum(w.min for stage, w in workers.items() if stage not in stages)
    room = sandbox_capacity(spec.sandbox, spec.allocation) - others
    return int(min(sum(workers[stage].max for stage in stages), room))


def sessions(spec: RolloutPoolSpec, queued: Counts, in_flight: Counts) -> int:
    """Number of sessions that a RolloutPool needs: one for each rollout in flight in INIT and RUN, and one for each
    queued rollout for which the pool has workers left at its largest size."""
    live = in_flight.get(Stage.INIT, 0) + in_flight.get(Stage.RUN, 0)
    largest = spec.autoscaling.max_replicas if spec.autoscaling is not None else spec.replicas or 0
    most = 0 if spec.suspend else largest * max_workers(spec, Stage.INIT, Stage.RUN)
    return max(live, min(live + queued.get(Stage.INIT, 0), most))


def inference_metrics(targets: InferenceAutoscaling, live: int, reports: Sequence[LoadReport]) -> list[Metric]:
    """Metrics of an InferencePool.

    `live`: number of present and requested sessions. `reports`: one for each active allocation that was ever ready.
    """
    return [
        Metric("sessions", live, targets.target_sessions_per_replica),
        _reported_metric("requests waiting", [r.waiting for r in reports], targets.target_waiting_per_replica),
        _reported_metric("KV use", [r.kv_usage for r in reports], targets.target_kv_usage),
    ]


def _reported_metric(name: str, values: Sequence[float | None], target: float) -> Metric:
    known = [value for value in values if value is not None]
    total = None if values and not known else sum(known)
    return Metric(name, total, target, complete=len(known) == len(values))
