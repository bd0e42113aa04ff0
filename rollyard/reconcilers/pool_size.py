"""Size of a pool, from its spec, its budget of GPU-hours, or its demand. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rollyard.kinds.allocation import Allocation
from rollyard.kinds.autoscaling import GpuLedger, GpuUsage
from rollyard.kinds.base import Reason
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.pool import GPU_HOURS_SPENT
from rollyard.kinds.registry import Pool
from rollyard.kinds.values.job_state import JobState
from rollyard.reconcilers.autoscaler import Metric, ScaleDecision, ScalerMemory, autoscale

SHOWN_SECONDS = 600
"""Time step of `status.gpuHours` in seconds. A finer step would cause many writes of the status."""


def decide_size(
    pool: Pool, memory: ScalerMemory | None, metrics: Sequence[Metric], ledger: GpuLedger, now: float
) -> ScaleDecision:
    """Decide the size. `memory`: state that the last call returned; None if there is none, as after a start of the
    server."""
    spec = pool.spec
    if spec.suspend:
        return ScaleDecision(0, "suspended")
    if isinstance(pool, InferencePool) and pool.spec.engine.external is not None:
        return ScaleDecision(0, "others start its servers")
    if spec.max_gpu_hours is not None and (hours := ledger.hours(now)) >= spec.max_gpu_hours:
        words = f"{hours:.2f} GPU-hours used, spec.maxGpuHours is {spec.max_gpu_hours:g}"
        return ScaleDecision(0, words, limit=Reason(GPU_HOURS_SPENT, _spent_message(spec.max_gpu_hours)))
    if spec.autoscaling is None:
        return ScaleDecision(spec.replicas or 0, f"spec.replicas is {spec.replicas}")
    if memory is None:
        memory = ScalerMemory.begin(now, new=pool.status.observed_generation == 0)
    current = pool.status.replicas.desired
    return autoscale(spec.autoscaling, memory, pool.status.scaling, metrics, current=current, now=now)


def _spent_message(cap: float) -> str:
    """Message about the budget. It omits the used hours, which grow while allocations drain."""
    return (
        f"the {cap:g} GPU-hours of spec.maxGpuHours are used up; the pool gives back its allocations, busy ones after their "
        "work; raise or remove spec.maxGpuHours to continue"
    )


def account_gpu_hours(ledger: GpuLedger, allocations: Iterable[Allocation], now: float) -> GpuLedger:
    """Return the ledger with the present usage added. The result does not depend on how often this is called."""
    there = {a.metadata.name: a for a in allocations if a.spec.template.gpus}
    if not there and not ledger.spells:
        return ledger
    gone = [spell for name, spell in ledger.spells.items() if name not in there]
    seen = {name: _gpu_usage(a, ledger.spells.get(name)) for name, a in there.items()}
    return GpuLedger(
        past=ledger.past + sum(spell.seconds(now) for spell in gone),
        spells={name: spell for name, spell in seen.items() if spell is not None},
    )


def _gpu_usage(allocation: Allocation, known: GpuUsage | None) -> GpuUsage | None:
    """Usage of one allocation; `known` if the job is pending or never had a node. Slurm's expected start of a pending job
    does not count."""
    status, template = allocation.status, allocation.spec.template
    if status.job_state in (None, JobState.PENDING) or status.start_time is None or not status.node:
        return known
    return GpuUsage(gpus=template.nodes * template.gpus, start=status.start_time, end=status.end_time)


def shown_hours(ledger: GpuLedger, now: float) -> float:
    """GPU-hours for the status: the hours used up to the last time that is a multiple of SHOWN_SECONDS."""
    return round(ledger.hours(now - now % SHOWN_SECONDS), 2)
