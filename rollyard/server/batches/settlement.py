"""Changes of batches in one transaction: passes events to `advance` and `advance_group`, and carries out the effects.

One transaction stores all of these or none: a rollout's end, the verdict on its group, the delivery, the draw of new
tasks, the new position of their series, and the insert of their rollouts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

from pydantic import JsonValue

from rollyard.core.aio import Signal
from rollyard.core.replaced_fields import replace
from rollyard.core.telemetry import (
    BATCH_GROUPS,
    BATCH_SECONDS_TO_TARGET,
    BATCH_STALENESS,
    BATCH_TOKENS,
    BATCHES_ENDED,
    TASKS_PASSED_OVER,
)
from rollyard.kinds.base import evolve
from rollyard.kinds.batch import BatchKey, BatchRequest, BatchStatus
from rollyard.kinds.failure_table import BATCH_ENDED, DATASET_DELETED, NOT_NEEDED, POOL_DELETED, Ending
from rollyard.kinds.task import Task
from rollyard.server.batches.advance import (
    BatchCancelled,
    BatchEffect,
    BatchEnded,
    BatchEvent,
    CancelRest,
    DrawTasks,
    GroupAdopted,
    GroupDelivered,
    GroupDrawn,
    GroupEvent,
    GroupSettled,
    RolloutEnded,
    SourceDrained,
    advance,
    advance_group,
    pass_rate,
    settle_rate,
    take_end,
    training_step,
    wanted,
)
from rollyard.server.batches.discarded_lengths import discarded_lengths
from rollyard.server.batches.draw import DrawnTask, draw, engine_priority, longest_first, put_back
from rollyard.server.batches.judge import Verdict
from rollyard.server.batches.task_history import with_group
from rollyard.server.rollouts.new_rollouts import expand
from rollyard.server.rollouts.record_changes import RecordChanges
from rollyard.server.rollouts.step import Cancelled
from rollyard.store.base import RolloutRecord
from rollyard.store.batch_records import (
    BatchRecord,
    EndedRollout,
    GroupKey,
    GroupRecord,
    GroupState,
    SeriesKey,
    SeriesRecord,
    StepRecord,
    TaskHistory,
)
from rollyard.store.rollout_transaction import Transaction


@lru_cache(maxsize=64)
def parsed_request(text: str) -> BatchRequest:
    return BatchRequest.model_validate_json(text)


class Settlements:
    """Begins settlements, and emits `batch_changed` after their commits."""

    def __init__(self) -> None:
        self.batch_changed = Signal[BatchKey]()
        """Signal: a batch or one of its groups changed."""

    def begin(self, tx: Transaction, changes: RecordChanges, now: float) -> Settlement:
        """Begin a settlement in this transaction."""
        settlement = Settlement(tx, changes, now)
        changes.after_commit.append(lambda: self._report(settlement.changed))
        return settlement

    def settle_ended(self, tx: Transaction, changes: RecordChanges, now: float) -> None:
        """Count the ended rollouts in their groups and batches."""
        if changes.ended:
            self.begin(tx, changes, now).write()

    def _report(self, changed: set[BatchKey]) -> None:
        for key in changed:
            self.batch_changed.emit(key)


class Settlement:
    """Records that one transaction changes. `write` must be the last call."""

    def __init__(self, tx: Transaction, changes: RecordChanges, now: float) -> None:
        self._tx = tx
        self._tables = tx.batches
        self._changes = changes
        self._now = now
        self.changed: set[BatchKey] = set()
        """Batches that changed."""
        self._batches: dict[BatchKey, BatchRecord] = {}
        self._groups: dict[GroupKey, GroupRecord] = {}
        self._series: dict[SeriesKey, SeriesRecord] = {}
        self._steps: dict[tuple[BatchKey, int], StepRecord] = {}

    def begin(self, batch: BatchRecord, series: SeriesRecord) -> BatchKey:
        """Insert a batch. It takes over the groups that earlier batches of its series left unfinished, if these groups
        have the batch's pool and `n`."""
        batch = replace(batch, step=series.step, settled=series.settled, settled_informative=series.settled_informative)
        self._batches[batch.key] = self._tables.put_batch(batch)
        self._series[series.key] = series
        for group in self._tables.carried(batch.namespace, batch.series, batch.pool, parsed_request(batch.request).n):
            if self._batches[batch.key].status.terminal:
                break
            self._advance_group(batch.key, group, GroupAdopted())
        return batch.key

    def batch(self, key: BatchKey) -> BatchRecord | None:
        found = self._batches.get(key) or self._tables.batch(key)
        if found is not None:
            self._batches[key] = found
        return found

    def advance(self, key: BatchKey, event: BatchEvent) -> None:
        """Apply an event to a batch, and carry out the effects."""
        batch, request = self._batch_of(key)
        after, effects = advance(request, batch, event)
        self._keep(batch, after, request)
        for effect in effects:
            self._carry_out(key, request, effect)

    def _advance_group(self, key: BatchKey, group: GroupRecord, event: GroupEvent) -> None:
        batch, request = self._batch_of(key)
        after, moved, effects = advance_group(request, batch, group, event)
        self._keep(batch, after, request)
        self._groups[moved.key] = moved
        for effect in effects:
            match effect:
                case CancelRest():
                    self._cancel_rollouts(moved, NOT_NEEDED, "its group can no longer become informative")
                case GroupSettled(verdict=verdict):
                    self._settle(moved, verdict)
                    step = self._step(after, request, moved.delivery)
                    where = "unused" if moved.delivery is None else "used"
                    self._put_step(replace(step, **{where: getattr(step, where).plus(moved.ended)}))
                case GroupDelivered():
                    series = self._series_of(moved.namespace, moved.series)
                    self._put_series(replace(series, delivered_lengths=series.delivered_lengths.plus(moved.ended)))
                case _:
                    self._carry_out(key, request, effect)

    def _carry_out(self, key: BatchKey, request: BatchRequest, effect: BatchEffect) -> None:
        match effect:
            case DrawTasks(groups=groups):
                self._draw(key, request, groups)
            case BatchEnded(keep=keep):
                self._release(key, keep=keep)

    def _batch_of(self, key: BatchKey) -> tuple[BatchRecord, BatchRequest]:
        batch = self.batch(key)
        assert batch is not None
        return batch, parsed_request(batch.request)

    def _keep(self, before: BatchRecord, after: BatchRecord, request: BatchRequest) -> None:
        """Keep the batch that an event has changed, and count the change."""
        self._batches[after.key] = after
        self.changed.add(after.key)
        self._count_step(before, after, request)
        self._count(BATCH_TOKENS.labels("wasted").inc, after.wasted_tokens - before.wasted_tokens)
        if after.delivered > before.delivered:
            tokens = after.delivered_lengths.tokens - before.delivered_lengths.tokens
            self._count(BATCH_TOKENS.labels("delivered").inc, tokens)
            self._count(BATCH_STALENESS.observe, after.staleness - before.staleness)
        met = after.status is BatchStatus.COMPLETED is not before.status
        if met and request.target is not None and after.ended_at is not None:
            self._count(BATCH_SECONDS_TO_TARGET.observe, after.ended_at - after.created_at)

    def _step(self, batch: BatchRecord, request: BatchRequest, delivery: int | None) -> StepRecord:
        """Return the sums of the training step that uses this delivery; None stands for the next one."""
        step = training_step(request, batch, delivery or batch.delivered + 1)
        return (
            self._steps.get((batch.key, step))
            or self._tables.training_step(batch.namespace, batch.series, step, batch.id)
            or StepRecord(batch.namespace, batch.series, step, batch.id, began_at=self._now, ended_at=self._now)
        )

    def _put_step(self, step: StepRecord) -> None:
        key = BatchKey(step.namespace, step.batch), step.step
        self._steps[key] = replace(step, ended_at=self._now)

    def _count_step(self, before: BatchRecord, after: BatchRecord, request: BatchRequest) -> None:
        """Add the changes of the batch's counters to its training step."""
        counters = ("all_low", "all_high", "other", "faulty", "compared", "differing", "wasted_tokens", "staleness")
        grown = {name: getattr(after, name) - getattr(before, name) for name in counters}
        if not any(grown.values()):
            return
        delivered = after.delivered if after.delivered > before.delivered else None
        step = self._step(after, request, delivered)
        changes = {name: getattr(step, name) + grown[name] for name in counters}
        self._put_step(replace(step, **changes, most_stale=max(step.most_stale, grown["staleness"])))

    def _count(self, metric: Callable[[float], None], amount: float = 1) -> None:
        """Call this method of a metric after the commit."""
        self._changes.after_commit.append(partial(metric, amount))

    def drop_carried(self, namespace: str, dataset: str) -> None:
        """Cancel the groups that wait for a later batch, in all series that draw from a dataset."""
        for name in self._tables.series_of_dataset(namespace, dataset):
            for group in self._tables.carried(namespace, name):
                self._groups[group.key] = replace(group, state=GroupState.CANCELLED)
                self._cancel_rollouts(group, DATASET_DELETED, f"its dataset {dataset} was deleted")

    def write(self) -> None:
        """Count the rollouts that ended in this transaction, and write all changed records."""
        while self._changes.ended:
            self._count_end(self._changes.ended.popleft())
        self._flush()

    def _flush(self) -> None:
        for batch in self._batches.values():
            self._tables.put_batch(batch)
        for group in self._groups.values():
            self._tables.put_group(group)
        for series in self._series.values():
            self._tables.put_series(series)
        for step in self._steps.values():
            self._tables.put_training_step(step)
        self._groups.clear()

    def _count_end(self, record: RolloutRecord) -> None:
        assert record.group is not None
        place = GroupKey(record.namespace, record.group)
        group = self._groups.get(place) or self._tables.group(*place)
        if group is None:
            return  # a caller submitted this group without a batch
        ended = ended_rollout(record)
        if group.batch is None:
            self._groups[place] = take_end(group, ended)
            return
        key = BatchKey(record.namespace, group.batch)
        if record.error is not None and record.error.reason == POOL_DELETED.reason:
            self.advance(key, BatchCancelled(self._now, keep=False))
            group = self._groups.get(place) or self._tables.group(*place)
            assert group is not None
        self._advance_group(key, group, RolloutEnded(self._now, ended))

    def _settle(self, group: GroupRecord, verdict: Verdict) -> None:
        """Record a final verdict in the series and in the task's history. The task of a faulty group
        is put back instead, if `may_return` allows this."""
        series = self._series_of(group.namespace, group.series)
        self._count(BATCH_GROUPS.labels(verdict.value).inc)
        if verdict is Verdict.FAULTY:
            self._put_series(put_back(series, group))
            return
        informative = verdict is Verdict.INFORMATIVE
        series = settle_rate(series, informative=informative)
        if informative:
            series = replace(series, whole_lengths=series.whole_lengths.plus(group.ended))
        self._put_series(series)
        if series.dataset is not None:
            place = (group.namespace, series.dataset, group.task_index)
            known = self._history(series, group.task_index)
            self._tables.put_history(*place, with_group(known, group, informative=informative))

    def _draw(self, key: BatchKey, request: BatchRequest, groups: int) -> None:
        batch = self._batches[key]
        count = min(groups, wanted(request, batch))  # an earlier effect may have drawn groups already
        if count <= 0:
            return
        series = self._series_of(batch.namespace, batch.series)
        history = partial(self._history, series)
        stored = self._tables.stored_tasks(series.digest) if series.tasks is None else series.tasks
        epochs = request.epochs or (None if series.dataset is not None else 1)
        drawing = draw(series, count, history, stored=stored, epochs=epochs, pass_over=request.pass_over)
        self._put_series(drawing.series)
        self._count(TASKS_PASSED_OVER.inc, drawing.passed_over)
        self._count(BATCH_GROUPS.labels("drawn").inc, len(drawing.tasks))
        self._batches[key] = replace(batch, passed_over=batch.passed_over + drawing.passed_over)
        tasks = longest_first(drawing.tasks, history) if request.longest_first else drawing.tasks
        for task in tasks:
            self._insert_group(key, request, task)
        if drawing.drained:
            self.advance(key, SourceDrained(self._now))

    def _insert_group(self, key: BatchKey, request: BatchRequest, task: DrawnTask) -> None:
        batch = self._batches[key]
        series = self._series_of(batch.namespace, batch.series)
        text = self._tables.task(series.digest, task.index)
        assert text is not None
        made = Task.model_validate_json(text)
        number, records = self._free_number(batch, self._prioritised(batch, request, series, task), series, made)
        self._put_series(replace(series, next_number=number + 1))
        group = GroupRecord(
            namespace=batch.namespace,
            id=f"{series.name}-g{number}",
            series=series.name,
            number=number,
            pool=batch.pool,
            n=request.n,
            task_index=task.index,
            epoch=task.epoch,
            drawn_at=self._now,
            drawn_step=batch.step + (batch.acknowledged // request.step_groups if request.step_groups else 0),
            batch=batch.id,
            tries=task.tries,
        )
        ranks = self._tx.queue_ranks(batch.pool_key)
        step = 1 / request.weight
        rank = ranks.first(batch.queue_rank, step)
        self._changes.inserted += [
            self._tx.put(replace(record, queue_rank=rank + i * step)) for i, record in enumerate(records)
        ]
        self._batches[key] = replace(batch, queue_rank=rank + (len(records) - 1) * step)
        self._advance_group(key, group, GroupDrawn())

    def _prioritised(
        self, batch: BatchRecord, request: BatchRequest, series: SeriesRecord, task: DrawnTask
    ) -> BatchRequest:
        """Return the request with the task's priority at the engine. The request stays unchanged if the engine does not
        order requests by priority, if the batch does not set `longest_first`, if the user has set a priority, or if the
        task has no history."""
        if not (batch.engine_priority and request.longest_first) or "priority" in request.sampling.extra:
            return request
        whole = series.whole_lengths
        mean = whole.seconds / whole.rollouts if whole.rollouts else 0.0
        priority = engine_priority(self._history(series, task.index), mean)
        if priority is None:
            return request
        extra: dict[str, JsonValue] = {**request.sampling.extra, "priority": priority}
        return evolve(request, sampling=evolve(request.sampling, extra=extra))

    def _free_number(
        self, batch: BatchRecord, request: BatchRequest, series: SeriesRecord, task: Task
    ) -> tuple[int, list[RolloutRecord]]:
        """Return the number of the next group, and the group's records. The records' ids are made from the number. If a
        rollout with one of these ids exists already, the number is skipped."""
        number = series.next_number
        while True:
            records = expand(batch.namespace, request.rollouts(f"{batch.series}-g{number}", task), self._now)
            if all(self._tx.get(r.namespace, r.id) is None for r in records):
                return number, records
            number += 1

    def _cancel_rollouts(self, group: GroupRecord, why: Ending, message: str) -> None:
        for id in self._tables.unended(group.namespace, group.id):
            record = self._tx.get(group.namespace, id)
            assert record is not None
            self._changes.step(self._tx, record, Cancelled(self._now, why, message))

    def _release(self, key: BatchKey, *, keep: bool) -> None:
        """Detach the live groups from an ended batch, so that a later batch of the series can take them over. If
        `keep` is false, cancel the groups instead."""
        batch = self._batches[key]
        self._count(BATCHES_ENDED.labels(batch.status.value).inc)
        series = self._series_of(batch.namespace, batch.series)
        steps = training_step(parsed_request(batch.request), batch, max(1, batch.delivered)) + 1
        self._put_series(replace(series, step=max(series.step, steps)))
        self._flush()
        for group in self._tables.live_groups(key):
            if keep:
                self._groups[group.key] = replace(group, batch=None)
                continue
            self._discard(key, group)

    def _discard(self, key: BatchKey, group: GroupRecord) -> None:
        """Cancel a live group whose batch has ended. The result of `discarded_lengths` for the group is added to
        `whole_lengths`, because `batch_view.bias` compares the delivered groups with these sums."""
        batch, series = self._batches[key], self._series_of(group.namespace, group.series)
        request = parsed_request(batch.request)
        share = 1.0 if group.state is GroupState.INFORMATIVE else pass_rate(request, batch)
        history = self._history(series, group.task_index)
        records = [self._tx.get(group.namespace, id) for id in self._tables.unended(group.namespace, group.id)]
        running = [active_seconds(record, self._now) for record in records if record is not None]
        lengths = discarded_lengths(group, running, history, series.whole_lengths, share)
        self._put_series(replace(series, whole_lengths=series.whole_lengths + lengths))
        wasted = replace(batch, wasted_tokens=batch.wasted_tokens + group.tokens)
        self._count_step(batch, wasted, request)
        self._batches[key] = replace(wasted, whole_lengths=batch.whole_lengths + lengths)
        self._groups[group.key] = replace(group, state=GroupState.CANCELLED)
        self._count(BATCH_GROUPS.labels("cancelled").inc)
        self._count(BATCH_TOKENS.labels("wasted").inc, group.tokens)
        self._cancel_rollouts(group, BATCH_ENDED, f"its batch {key.id} ended {batch.status}")

    def _history(self, series: SeriesRecord, index: int) -> TaskHistory | None:
        if series.dataset is None:
            return None
        return self._tables.history(series.namespace, series.dataset, index)

    def _series_of(self, namespace: str, name: str) -> SeriesRecord:
        key = SeriesKey(namespace, name)
        found = self._series.get(key) or self._tables.series(*key)
        assert found is not None
        self._series[key] = found
        return found

    def _put_series(self, series: SeriesRecord) -> None:
        self._series[series.key] = series


def ended_rollout(record: RolloutRecord) -> EndedRollout:
    """Return the facts about an ended rollout that are stored with its group."""
    summary = record.summary
    seconds = sum(float(summary.get(stage) or 0.0) for stage in ("init", "run", "eval"))
    return EndedRollout(
        record.sample_index,
        record.status,
        record.reward,
        int(summary.get("tokens") or 0),
        int(summary.get("turns") or 0),
        round(seconds, 3),
        int(summary.get("tool_calls") or 0),
    )


def active_seconds(record: RolloutRecord, now: float) -> float:
    """Return the seconds for which node agents have worked on a rollout that has not ended."""
    until = now if record.leased else record.queued_at
    return max(0.0, until - record.created_at - record.queued_seconds)
