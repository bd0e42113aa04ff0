"""Calls on usage, and on allocations that ended or will be replaced."""

from __future__ import annotations

from rollyard.client.api_client import ApiClient
from rollyard.kinds.planned_successor import PlannedSuccessor, PlannedSuccessors
from rollyard.kinds.usage import AllocationHistory, EndedAllocation, SlurmUsageView, UsageView


class UsageClient(ApiClient):
    async def usage(self, namespace: str | None = None, *, since: float | None = None, by: str = "pool") -> UsageView:
        """Return GPU-hours, CPU-hours, tokens and rollouts since a time (Unix seconds; None: a week ago). Without a
        namespace, those of all namespaces. `by`: pool, namespace or week."""
        query = _query(namespace=namespace, since=since, by=by)
        return UsageView.model_validate(await self._http.json("GET", "/v1/usage", query=query))

    async def slurm_usage(
        self, namespace: str | None = None, *, since: float | None = None, limit: int | None = None
    ) -> SlurmUsageView:
        """Return the hours of jobs since a time (Unix seconds; None: a week ago) beside those of Slurm's accounting. Without a
        namespace, those of all namespaces. `limit`: most jobs to list, None for 100."""
        query = _query(namespace=namespace, since=since, limit=limit)
        return SlurmUsageView.model_validate(await self._http.json("GET", "/v1/usage/slurm", query=query))

    async def ended_allocations(
        self, namespace: str | None = None, *, since: float | None = None, limit: int | None = None
    ) -> list[EndedAllocation]:
        """Return the allocations whose jobs ended at a time or later (Unix seconds; None: a week ago), newest first. Without
        a namespace, those of all namespaces. `limit`: None for 1000."""
        query = _query(namespace=namespace, since=since, limit=limit)
        body = await self._http.json("GET", "/v1/allocations/history", query=query)
        return AllocationHistory.model_validate(body).allocations

    async def planned_successors(self, namespace: str | None = None) -> list[PlannedSuccessor]:
        """Return the successors of allocations that are still to be submitted, by the present plan. Without a namespace, those
        of all namespaces."""
        body = await self._http.json("GET", "/v1/allocations/successors", query=_query(namespace=namespace))
        return PlannedSuccessors.model_validate(body).successors


def _query(**given: object) -> dict[str, str]:
    return {name: str(value) for name, value in given.items() if value is not None}
