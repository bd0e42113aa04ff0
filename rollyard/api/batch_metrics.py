"""Metrics of running batches. All batches of a pool are added up."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rollyard.api.metrics_text import family, label
from rollyard.kinds.batch import DeliveryBias
from rollyard.server.batches.batch_view import bias
from rollyard.store.batch_records import BatchRecord, LengthSums

BIASES = ("tokens", "turns", "seconds")

GAUGES: dict[str, tuple[str, Callable[[BatchRecord], int]]] = {
    "running": ("Batches that have not ended.", lambda batch: 1),
    "groups_in_flight": ("Groups with at least one rollout that has not ended.", lambda batch: batch.in_flight),
    "groups_unacknowledged": (
        "Delivered groups that are not acknowledged.",
        lambda batch: batch.delivered - batch.acknowledged,
    ),
    "rollouts_unfinished": ("Rollouts of running batches that have not ended.", lambda batch: batch.unfinished),
}


def batch_metrics(running: Sequence[BatchRecord]) -> str:
    """Return metrics in Prometheus's text format, labelled with the namespace and the pool."""
    pools: dict[str, list[BatchRecord]] = {}
    for batch in running:
        pools.setdefault(f"{label('namespace', batch.namespace)},{label('pool', batch.pool)}", []).append(batch)
    lines: list[str] = []
    for name, (text, gauge) in GAUGES.items():
        samples = [(labels, float(sum(map(gauge, batches)))) for labels, batches in pools.items()]
        lines += family(f"rollyard_batches_{name}", "gauge", text, samples)
    ratios = [(labels, _bias(batches)) for labels, batches in pools.items()]
    biases = [(f"{labels},{label('of', of)}", getattr(found, of)) for labels, found in ratios for of in BIASES]
    lines += family(
        "rollyard_batches_bias", "gauge", "Mean length of delivered rollouts / of informative ones.", biases
    )
    return "".join(lines)


def _bias(batches: Sequence[BatchRecord]) -> DeliveryBias:
    delivered = sum((batch.delivered_lengths for batch in batches), LengthSums())
    return bias(delivered, sum((batch.whole_lengths for batch in batches), LengthSums()))
