"""`RollyardGenerator`: SkyRL's rollouts, run in a RolloutPool."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from skyrl.train.generators.base import GeneratorInput, GeneratorInterface, GeneratorOutput
from skyrl.train.generators.utils import get_rollout_metrics

from rollyard.client import AsyncClient
from rollyard.core.errors import Conflict
from rollyard.trainers.checkpoint_versions import CheckpointVersions
from rollyard.trainers.skyrl.generator_rows import group_name, group_request, output_of, positions_by_instance

log = logging.getLogger(__name__)


class RollyardGenerator(GeneratorInterface):  # type: ignore[misc]
    """Generator for a SkyRL trainer: synchronous or asynchronous, with flat or step-wise trajectories."""

    def __init__(
        self,
        pool: str,
        *,
        run: str,
        step_wise: bool = False,
        request: Mapping[str, Any] | None = None,
        versions: CheckpointVersions | None = None,
        kubeconfig: Path | str | None = None,
        namespace: str | None = None,
        retry_seconds: float = 1800.0,
    ) -> None:
        """`pool`: the RolloutPool. `run`: name of the training run, with which the ids of its rollouts begin. A trainer
        that starts again under this name gets the rollouts that it has begun. So give a new training a new name.

        `step_wise`: value of `generator.step_wise_trajectories`. `request`: fields of a rollout request for all rows,
        such as `agent`, `budgets` or `sampling`. `versions`: names of the weights if `rollyard weights follow` serves
        the trainer's checkpoints. Rollouts then wait for the weights of their step. `retry_seconds`: time for which a
        submit waits for an unreachable server. Results are waited for without a limit.
        """
        self._pool, self._run, self._step_wise = pool, run, step_wise
        self._fields, self._versions, self._namespace = dict(request or {}), versions, namespace
        self._kubeconfig, self._retry_seconds = kubeconfig, retry_seconds
        self._times = Counter[str]()
        """How often `generate` has returned rollouts of a group's name."""

    async def generate(self, input_batch: GeneratorInput) -> GeneratorOutput:
        """Run the rollouts of a batch. The rows of one instance are one group. Raises Invalid for a row without a task,
        and Conflict if the run has rollouts of this step with another request."""
        groups = positions_by_instance(input_batch)
        names = [group_name(self._run, input_batch, instance) for instance in groups]
        requests = [
            group_request(
                input_batch,
                positions,
                pool=self._pool,
                # In dynamic sampling SkyRL may ask for other rollouts of an instance in the same step.
                name=f"{name}-{times}" if name and (times := self._times[name]) else name,
                fields=self._fields,
                versions=self._versions,
            )
            for positions, name in zip(groups.values(), names, strict=True)
        ]
        # One client for each call: a client belongs to one event loop, and SkyRL makes its generator outside of any.
        async with AsyncClient(kubeconfig=self._kubeconfig, retry_seconds=self._retry_seconds) as client:
            try:
                ids = await client.submit(requests, self._namespace)
            except Conflict as error:
                raise Conflict(f"{error}. To change a training, give it another `run`") from None
            found = await client.wait_many(ids, self._namespace)
        order = [position for positions in groups.values() for position in positions]
        trajectories = [t for _, t in sorted(zip(order, found, strict=True), key=lambda pair: pair[0])]
        self._times.update(name for name in names if name)
        for t in trajectories:
            if t.reward is None:
                log.warning("rollout %s ended %s without a reward: %s", t.id, t.status, t.error and t.error.message)
        return output_of(
            input_batch,
            trajectories,
            step_wise=self._step_wise,
            versions=self._versions,
            metrics_of=get_rollout_metrics,
        )
