"""Repeated runs of tasks: each task in several variants, and each variant several times.

A run is a rollout, and its id follows from the name of the whole, the task, the variant and the run's number. The server
runs a rollout of one id once. So the runs need no other record: a program that was killed submits them again, attaches to
those that the server has, and adds the others.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rollyard.client.rollout_client import RolloutClient
from rollyard.kinds.rollout import RolloutRequest
from rollyard.kinds.task import Task
from rollyard.trajectory import Trajectory

MAX_NAME_CHARS = 80
"""Greatest length of a name. The ids of the rollouts, which begin with it, may have 128 characters."""


@dataclass(frozen=True)
class Variant:
    """Way to run a task. `fields`: fields of the RolloutRequest, such as agent, mode and sampling."""

    name: str
    fields: Mapping[str, Any]


class Run(NamedTuple):
    task: Task
    variant: str
    number: int


@dataclass(frozen=True)
class RepeatedRuns:
    name: str
    """Name of the whole, and of the group of all its rollouts."""
    pool: str
    tasks: Sequence[Task]
    variants: Sequence[Variant]
    times: int
    """Number of runs of each variant of a task."""
    ids: Callable[[str], str | None] = lambda id: id
    """Id of a run -> id of the rollout that stands for it now; None for a run that needs none."""

    def __len__(self) -> int:
        return len(self.tasks) * len(self.variants) * self.times

    def runs(self) -> Iterator[tuple[Run, RolloutRequest]]:
        """Yield all runs, those of a task one after the other."""
        for task in self.tasks:
            begin = f"{self.name}.{task.digest}"
            for variant in self.variants:
                for number in range(self.times):
                    id = self.ids(f"{begin}.{variant.name}.{number}")
                    if id is None:
                        continue
                    request = {"id": id, "pool": self.pool, "task": task, "group": self.name, **variant.fields}
                    yield Run(task, variant.name, number), RolloutRequest.model_validate(request)

    async def there(self, client: RolloutClient, namespace: str | None = None) -> int:
        """Return the number of these runs that the server has. The group may have further ones, such as those of a task that
        has changed."""
        own = {request.id for _, request in self.runs()}
        return len(own & {view.id async for view in client.rollouts(namespace, group=self.name)})

    async def ended(
        self, client: RolloutClient, namespace: str | None = None
    ) -> AsyncGenerator[tuple[Run, Trajectory]]:
        """Yield the runs as they end, also those that have ended before. Raises as `RolloutClient.run_all`."""
        of_id: dict[str, Run] = {}

        def requests() -> Iterator[RolloutRequest]:
            for run, request in self.runs():
                of_id[str(request.id)] = run
                yield request

        async for trajectory in client.run_all(requests(), namespace):
            yield of_id.pop(trajectory.id), trajectory
