"""Rollouts for TRL's `AsyncGRPOTrainer`: a `rollout_worker` that reads rollout groups from a stream.

The server chooses the tasks, filters the groups and limits staleness. The trainer gets one sample for each segment
that has tokens to train on and whose rollout has a reward. After the trainer has taken all samples of a group, the
group is acknowledged when the trainer next has new weights. In two cases the group is acknowledged earlier: if the
stream and the trainer would wait for each other, and if the trainer stops.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from rollyard.client import Client
from rollyard.client.advantages import group_advantages
from rollyard.client.sync_client import BlockingBatch
from rollyard.core.errors import NoProgress, RollyardError, Unavailable
from rollyard.kinds.batch import BatchRequest
from rollyard.trainers.trl.pushed_weights import WeightTransfer
from rollyard.trajectory.group import Group

log = logging.getLogger(__name__)
STOP_SECONDS = 60.0


class SampleQueue(queue.Queue[Any]):
    """Queue of samples for the trainer. It also records up to which group the trainer has taken all samples."""

    def __init__(self) -> None:
        super().__init__()  # no limit: the server delivers only some steps ahead of the acknowledged groups
        self.taken = 0
        """The trainer has taken all samples of the deliveries up to this number. It begins with the number of the last
        acknowledged delivery, or with 0."""
        self._left: dict[int, int] = {}

    def put_group(self, delivery: int, samples: list[Any]) -> None:
        """Add the samples of the next delivery; the list may be empty."""
        with self.mutex:
            self._left[delivery] = len(samples)
            self._count()
        for sample in samples:
            self.put(sample)

    def _get(self) -> Any:
        """Remove the next sample. `queue.Queue.get` calls this method while it has the lock."""
        sample = super()._get()
        self._left[sample.group_id] -= 1
        self._count()
        return sample

    def _count(self) -> None:
        while self._left and not self._left[first := min(self._left)]:
            del self._left[first]
            self.taken = first


class StreamWorker:
    """Reads a stream in a thread, and gives its samples with advantages to the trainer."""

    def __init__(
        self,
        client: Client,
        request: BatchRequest,
        weights: WeightTransfer,
        *,
        advantages: str = "grpo",
        namespace: str | None = None,
    ) -> None:
        """`request`: a stream with `step_groups`. `weights`: the trainer's `WeightTransfer`. `advantages`: a name from
        `rollyard.client.advantages.ADVANTAGES`. Raises ValueError if `request` is unsuitable."""
        if request.step_groups is None:
            raise ValueError("set `step_groups` to the number of groups of one training step, and leave out `target`")
        if request.max_staleness < 1:
            raise ValueError(
                "`max_staleness` must be at least 1: AsyncGRPOTrainer fetches the first samples of the next step before "
                "it trains on those of a step"
            )
        from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

        self._sample_class = RolloutSample
        self.rollout_buffer = SampleQueue()
        self.metrics_queue: queue.Queue[dict[str, float]] = queue.Queue()
        self._client, self._request, self._namespace = client, request, namespace
        self._weights, self._advantages = weights, advantages
        self._batch: BlockingBatch | None = None
        self._acknowledged = 0
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._stopping = False

    # calls of the trainer

    def start(self) -> None:
        """Create the stream. If a stream with this id exists, continue it after its last acknowledged group. Raises
        NoProgress if it has ended."""
        view = self._client.create_batch(self._request, self._namespace)
        if view.status.terminal:
            raise NoProgress(f"batch {view.id!r} has ended {view.status}; choose another id, or leave it out")
        self._acknowledged = self.rollout_buffer.taken = view.acknowledged
        self._batch = self._client.batch(view.id, self._namespace, after=view.acknowledged)
        self._thread = threading.Thread(target=self._read, args=(self._batch,), name="rollyard-stream", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the stream. If the request has `carry_over` "keep" and names a series or a dataset, the unfinished groups
        are kept, and the series' next stream with the same pool and `n` begins with them. Otherwise the unfinished
        groups are cancelled."""
        self._stopping = True
        if self._batch is None or self._thread is None:
            return
        self._acknowledge(self._batch)
        try:
            self._batch.cancel()
        except RollyardError as error:
            log.warning("batch %s is not cancelled: %s", self._batch.id, error)
        self._thread.join(STOP_SECONDS)

    def update_model_version(self, model_version: int) -> None:
        """Acknowledge the groups whose samples the trainer has taken. The trainer calls this when it has new weights."""
        if self._batch is not None:
            self._acknowledge(self._batch)

    def check_health(self, stale_after_s: float) -> None:
        """Raise NoProgress if no further sample will come. The trainer calls this method while it waits for samples.

        `stale_after_s` has no effect, because a long rollout is not a failure.
        """
        if self._thread is None or self._batch is None or not self.rollout_buffer.empty():
            return
        if not self._thread.is_alive():
            view = self._batch.view
            why = f"{self._error}" if self._error else f"it ended {view.status if view else ''}"
            raise NoProgress(f"no more groups from batch {self._batch.id!r}: {why}") from self._error
        if self.rollout_buffer.taken > self._acknowledged:
            self._acknowledge_if_idle(self._batch)

    # the stream

    def _read(self, batch: BlockingBatch) -> None:
        try:
            for group in batch:
                self.rollout_buffer.put_group(group.delivery, list(self._samples(group)))
                self._report(batch, group)
        except Exception as error:  # noqa: BLE001  check_health raises NoProgress from it in the trainer's thread
            if not self._stopping:
                self._error = error

    def _samples(self, group: Group) -> Iterator[Any]:
        """Yield one sample for each segment that has tokens to train on and whose rollout has a reward. A rollout
        without a reward does not change the advantages of the others."""
        gains = group_advantages(group.rewards, self._advantages)
        spread = float(np.nanstd([np.nan if r is None else r for r in group.rewards], ddof=0))
        for trajectory, gain in zip(group.rollouts, gains, strict=True):
            for index, segment in enumerate(trajectory.segments):
                if trajectory.reward is not None and any(segment.loss_mask):
                    metrics = {
                        "reward": trajectory.reward,
                        "reward_std": spread,
                        "rollout/turns": len(trajectory.turns),
                    }
                    yield self._sample_class(
                        prompt=[{"role": "user", "content": trajectory.task.model_dump_json()}],
                        completion=[
                            {"role": "assistant", "content": t.text} for t in trajectory.turns if t.segment == index
                        ],
                        input_ids=np.array(segment.token_ids, np.int64),
                        completion_mask=np.array(segment.loss_mask, np.int64),
                        old_log_probs=np.array([0.0 if p is None else p for p in segment.logprobs], np.float32),
                        advantage=float(gain),
                        model_version=min(self._weights.number(v) for v in segment.weights_version if v is not None),
                        group_id=group.delivery,
                        metrics=metrics,
                    )

    def _report(self, batch: BlockingBatch, group: Group) -> None:
        view = batch.view
        assert view is not None
        ended = view.passed + view.filtered.total + view.faulty
        self.metrics_queue.put(
            {
                "stream/without_reward": sum(reward is None for reward in group.rewards) / len(group.rewards),
                "stream/filtered_share": view.filtered.total / max(ended, 1),
                "stream/groups_in_flight": float(view.in_flight),
            }
        )

    def _acknowledge(self, batch: BlockingBatch) -> None:
        upto = self.rollout_buffer.taken
        if upto <= self._acknowledged:
            return
        try:
            batch.acknowledge(upto)
            self._acknowledged = upto
        except Unavailable as error:
            log.warning("groups up to %d of batch %s are not acknowledged yet: %s", upto, batch.id, error)

    def _acknowledge_if_idle(self, batch: BlockingBatch) -> None:
        """Acknowledge early if the stream waits for the trainer while the trainer waits for samples.

        This happens if some rollouts of a step have no reward, so that the step's groups have too few samples.
        """
        try:
            view = self._client.get_batch(batch.id, self._namespace)
        except Unavailable:
            return
        if not view.in_flight and view.delivered == batch.after:
            self._acknowledge(batch)
