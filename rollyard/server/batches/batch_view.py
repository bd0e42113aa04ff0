"""View of a batch for its users, with the reason if the batch makes no progress. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rollyard.kinds.batch import BatchRequest, BatchView, DeliveryBias, FilteredGroups
from rollyard.server.batches.advance import MANY_FAULTY, only_tries, pass_rate, wanted
from rollyard.store.batch_records import BatchRecord, LengthSums, SeriesRecord


def view(
    batch: BatchRecord, series: SeriesRecord | None, request: BatchRequest, source_error: str | None = None
) -> BatchView:
    """Return the view of a batch. `source_error`: the present error of the batch's task source."""
    return BatchView(
        id=batch.id,
        namespace=batch.namespace,
        pool=batch.pool,
        series=batch.series,
        dataset=request.dataset.name if request.dataset is not None else None,
        status=batch.status,
        target=request.target,
        n=request.n,
        passed=batch.delivered + batch.informative,
        delivered=batch.delivered,
        acknowledged=batch.acknowledged,
        drawn=batch.drawn,
        filtered=FilteredGroups(all_low=batch.all_low, all_high=batch.all_high, other=batch.other),
        faulty=batch.faulty,
        in_flight=batch.in_flight,
        unacknowledged=batch.delivered - batch.acknowledged,
        carried_in=batch.carried_in,
        passed_over=batch.passed_over,
        drained=batch.drained,
        delivered_tokens=int(batch.delivered_lengths.tokens),
        wasted_tokens=batch.wasted_tokens,
        informative_share=informative_share([batch]),
        estimated_pass_rate=round(pass_rate(request, batch), 4),
        seconds_to_target=_seconds_to_target(batch, request),
        staleness_mean=round(batch.staleness / batch.delivered, 4) if batch.delivered else None,
        bias=bias(batch.delivered_lengths, batch.whole_lengths),
        series_bias=bias(series.delivered_lengths, series.whole_lengths) if series is not None else DeliveryBias(),
        waiting=why_waiting(batch, request, source_error),
        created_at=batch.created_at,
        ended_at=batch.ended_at,
    )


def informative_share(batches: Sequence[BatchRecord]) -> float | None:
    """Return the share of groups whose rewards differ, among the groups with a verdict and at least two rewards."""
    compared = sum(batch.compared for batch in batches)
    return round(sum(batch.differing for batch in batches) / compared, 6) if compared else None


def bias(delivered: LengthSums, whole: LengthSums) -> DeliveryBias:
    """Return the mean lengths of rollouts in delivered groups, divided by the mean lengths in all informative groups.
    Discarded groups count with estimated lengths, multiplied by the probability that the group is informative."""
    if not (delivered.rollouts and whole.rollouts):
        return DeliveryBias()

    def ratio(above: float, below: float) -> float | None:
        return round(above / delivered.rollouts / (below / whole.rollouts), 4) if below else None

    return DeliveryBias(
        tokens=ratio(delivered.tokens, whole.tokens),
        turns=ratio(delivered.turns, whole.turns),
        seconds=ratio(delivered.seconds, whole.seconds),
    )


def why_waiting(batch: BatchRecord, request: BatchRequest, source_error: str | None = None) -> str | None:
    """Return the reason why the batch makes no progress; None if it makes progress or has ended."""
    if batch.status.terminal:
        return None
    if batch.faulty_in_a_row >= MANY_FAULTY:
        tries = ", so it tries one group at a time" if only_tries(request, batch) else ""
        return (
            f"the last {batch.faulty_in_a_row} groups had fewer than {request.min_usable} rewards{tries}; see "
            f"`rollyard rollouts list --pool {batch.pool} --status Failed --status InfraFailed` for the reasons"
        )
    if batch.slots == 0 and batch.in_flight:
        return f"no node agent of pool {batch.pool} is connected; see `rollyard describe rolloutpool {batch.pool}`"
    if batch.in_flight:
        return None
    if batch.drained:
        return f"its source has no more tasks; acknowledge the {batch.delivered} delivered groups to complete it"
    if request.bounded_by_acknowledgement and wanted(request, batch) == 0:
        return (
            f"{batch.delivered - batch.acknowledged} delivered groups are not acknowledged; acknowledge those that were "
            "used, and the next are drawn"
        )
    return source_error or "its source has no task at present"


def _seconds_to_target(batch: BatchRecord, request: BatchRequest) -> float | None:
    if request.target is None or batch.ended_at is None or batch.delivered < request.target:
        return None
    return round(batch.ended_at - batch.created_at, 3)
