"""Calls on evaluations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rollyard.client.batch_client import BatchClient
from rollyard.client.repeated_runs import RepeatedRuns, Variant
from rollyard.client.rollout_client import RolloutClient
from rollyard.kinds.evaluation import (
    EVALUATED,
    EvaluatedTask,
    EvaluatedTasks,
    EvaluationComparison,
    EvaluationRequest,
    EvaluationState,
    EvaluationSummary,
    EvaluationView,
    RunPlace,
    tasks_digest,
)
from rollyard.kinds.rollout import AgentSpec, Budgets, Sampling
from rollyard.kinds.task import Task
from rollyard.trajectory import Trajectory


class EvaluationClient(RolloutClient, BatchClient):
    async def create_evaluation(self, request: EvaluationRequest, namespace: str | None = None) -> EvaluationSummary:
        """Create an evaluation, or attach to an equal one of this name. `evaluate` does it too. Raises Invalid, and Conflict if
        the evaluation of this name has other tasks or settings."""
        body = request.model_dump(mode="json", exclude_defaults=True)
        answer = await self._http.json("POST", "/v1/evaluations", query=self._http.query(namespace), body=body)
        return EvaluationSummary.model_validate(answer)

    async def evaluate(
        self,
        tasks: str | Iterable[Task | Mapping[str, Any]],
        namespace: str | None = None,
        *,
        pool: str,
        k: int = 1,
        name: str | None = None,
        source: str = "",
        weights_version: str | None = None,
        sampling: Sampling | None = None,
        agent: AgentSpec | None = None,
        budgets: Budgets | None = None,
        rerun_faulty: bool = False,
        progress: Callable[[Trajectory], None] = lambda trajectory: None,
    ) -> EvaluationView:
        """Run each task k times; return the evaluation when all rollouts have ended.

        `tasks`: name of a dataset, or tasks. Equal tasks count once. `name`: name of the evaluation; the default follows from
        the pool and the tasks. `source`: name of the tasks' origin, for people. `weights_version`: the only version that
        counts; the pool must serve it. `rerun_faulty`: if all rollouts have ended, first repeat those that do not count: those
        without a reward, and those of another weights version. `progress`: called after the end of each rollout that had not
        ended before.

        Waits without a time limit, even while the server is unreachable. A program that was killed and calls this again with
        the same arguments goes on. Raises Invalid, NotFound, and Conflict as `create_evaluation`.
        """
        if isinstance(tasks, str):
            source, tasks = source or tasks, await self.dataset_tasks(tasks, namespace)
        models = (task if isinstance(task, Task) else Task.model_validate(task) for task in tasks)
        chosen = list({task.digest: task for task in models}.values())
        digest = tasks_digest(chosen)
        given = {"weights_version": weights_version, "sampling": sampling, "agent": agent, "budgets": budgets}
        request = EvaluationRequest.model_validate({
            "name": name or f"{pool}-{digest[:8]}", "pool": pool, "dataset": source, "tasks": len(chosen),
            "tasks_digest": digest, "k": k, **{field: value for field, value in given.items() if value is not None},
        })  # fmt: skip
        found = await self.create_evaluation(request, namespace)
        if rerun_faulty:
            found = await self._repeat(request.name, namespace)
        if found.state is not EvaluationState.COMPLETED:
            variant = Variant(EVALUATED, request.rollout_fields())
            known = await self.evaluated_tasks(request.name, namespace) if found.ended or found.repeated else []
            runs = RepeatedRuns(request.name, pool, chosen, [variant], k, _unfinished(known))
            async for _, trajectory in runs.ended(self, namespace):
                progress(trajectory)
        return await self.evaluation(request.name, namespace)

    async def _repeat(self, name: str, namespace: str | None) -> EvaluationSummary:
        """Make room for other rollouts in the places of those that do not count, unless the evaluation is running."""
        path = f"/v1/evaluations/{name}/repeat"
        return EvaluationSummary.model_validate(await self._http.json("POST", path, query=self._http.query(namespace)))

    async def evaluations(self, namespace: str | None = None) -> list[EvaluationSummary]:
        """List the newest evaluations, newest first."""
        body = await self._http.json("GET", "/v1/evaluations", query=self._http.query(namespace))
        return [EvaluationSummary.model_validate(item) for item in body["evaluations"]]

    async def evaluation(
        self, name: str, namespace: str | None = None, *, solved_at: float | None = None, by: str | None = None
    ) -> EvaluationView:
        """Return an evaluation with its statistics so far. `solved_at`: least reward of a solved task; None: the full reward.
        `by`: "kind", or a name of the tasks' metadata, whose values get statistics of their own. Raises NotFound."""
        query = self._http.query(namespace, by=by, solved_at=_text(solved_at))
        return EvaluationView.model_validate(await self._http.json("GET", f"/v1/evaluations/{name}", query=query))

    async def evaluated_tasks(self, name: str, namespace: str | None = None) -> list[EvaluatedTask]:
        """Return the results of an evaluation's tasks. Raises NotFound."""
        path = f"/v1/evaluations/{name}/tasks"
        body = await self._http.json("GET", path, query=self._http.query(namespace))
        return EvaluatedTasks.model_validate(body).tasks

    async def compare_evaluations(
        self, first: str, second: str, namespace: str | None = None, *, solved_at: float | None = None
    ) -> EvaluationComparison:
        """Compare two evaluations over the tasks that both have. Raises NotFound."""
        query = self._http.query(namespace, solved_at=_text(solved_at)) | {"with": second}
        body = await self._http.json("GET", f"/v1/evaluations/{first}/comparison", query=query)
        return EvaluationComparison.model_validate(body)

    async def delete_evaluation(self, name: str, namespace: str | None = None) -> None:
        """Delete an evaluation with its results, and cancel its unfinished rollouts. Ended rollouts stay. Raises NotFound."""
        await self._http.json("DELETE", f"/v1/evaluations/{name}", query=self._http.query(namespace))


def _unfinished(tasks: Iterable[EvaluatedTask]) -> Callable[[str], str | None]:
    """Return the function from a run's id to the id of its rollout; None for a run that has ended."""
    ended = {RunPlace.of(id).run for task in tasks for id in task.rollouts}
    repeats = Counter[str]()
    for place in (RunPlace.of(id) for task in tasks for id in task.repeated):
        repeats[place.run] = max(repeats[place.run], place.repeat + 1)
    return lambda run: None if run in ended else RunPlace(run, repeats[run]).id


def _text(number: float | None) -> str | None:
    return None if number is None else repr(number)
