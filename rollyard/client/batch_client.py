"""Calls on datasets and batches."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rollyard.client.api_client import ApiClient
from rollyard.kinds.batch import BatchRequest, BatchView, DatasetView
from rollyard.kinds.metric_history import BatchHistory
from rollyard.kinds.task import Task

if TYPE_CHECKING:
    from rollyard.trajectory.columns import Columns
    from rollyard.trajectory.group import GroupPage


class BatchClient(ApiClient):
    async def put_dataset(
        self, name: str, tasks: Iterable[Task | Mapping[str, Any]] | Path, namespace: str | None = None
    ) -> DatasetView:
        """Upload tasks, or a file of JSON lines, as a dataset. A second upload of the same content changes nothing.

        Raises Invalid with the numbers of the first wrong lines, and Conflict if the dataset exists with other tasks.
        """
        body = await asyncio.to_thread(tasks.read_bytes if isinstance(tasks, Path) else lambda: _lines_of(tasks))
        path, query = f"/v1/datasets/{name}", self._http.query(namespace)
        return DatasetView.model_validate(
            await self._http.json("PUT", path, query=query, body=body, content_type="application/jsonl", seconds=600)
        )

    async def datasets(self, namespace: str | None = None) -> list[DatasetView]:
        """List the datasets of a namespace."""
        body = await self._http.json("GET", "/v1/datasets", query=self._http.query(namespace))
        return [DatasetView.model_validate(item) for item in body["datasets"]]

    async def dataset(self, name: str, namespace: str | None = None) -> DatasetView:
        """Return a dataset's digest and size, and the history of its tasks. Raises NotFound."""
        return DatasetView.model_validate(
            await self._http.json("GET", f"/v1/datasets/{name}", query=self._http.query(namespace))
        )

    async def dataset_tasks(self, name: str, namespace: str | None = None) -> list[Task]:
        """Return all tasks of a dataset, in their order. Raises NotFound."""
        found = list[Task]()
        while True:
            query = self._http.query(namespace, after=str(len(found)))
            _, data = await self._http.get_bytes(f"/v1/datasets/{name}/tasks", query, "application/jsonl")
            page = [Task.model_validate_json(line) for line in data.splitlines()]
            found += page
            if not page:
                return found

    async def delete_dataset(self, name: str, namespace: str | None = None) -> None:
        """Delete a dataset, the history of its tasks, and the record of which task is drawn next. If a batch
        of this dataset ended with unfinished groups, and these groups wait for a later batch, they are cancelled.

        Raises NotFound, and Conflict while a batch draws from the dataset.
        """
        await self._http.json("DELETE", f"/v1/datasets/{name}", query=self._http.query(namespace))

    async def create_batch(self, request: BatchRequest, namespace: str | None = None) -> BatchView:
        """Create a batch, or attach to the batch with the same id and body.

        A request without an id gets an id here, so that retries are safe.

        Raises Invalid for a request that cannot be accepted, and Conflict if a batch with this id has another body, or
        if the series draws from another source or with another seed.
        """
        body = request.model_dump(mode="json", exclude_unset=True) | {"id": request.id or f"b-{secrets.token_hex(6)}"}
        return BatchView.model_validate(
            await self._http.json("POST", "/v1/batches", query=self._http.query(namespace), body=body)
        )

    async def get_batch(self, id: str, namespace: str | None = None) -> BatchView:
        """Return a batch's state. Raises NotFound."""
        return BatchView.model_validate(
            await self._http.json("GET", f"/v1/batches/{id}", query=self._http.query(namespace))
        )

    async def batches(self, namespace: str | None = None, *, series: str | None = None) -> list[BatchView]:
        """List the newest batches, newest first. `series`: only those of this series."""
        body = await self._http.json("GET", "/v1/batches", query=self._http.query(namespace, series=series))
        return [BatchView.model_validate(item) for item in body["batches"]]

    async def groups(
        self, id: str, namespace: str | None = None, *, after: int = 0, wait: float = 0.0, limit: int = 64
    ) -> GroupPage:
        """Return at most `limit` groups whose delivery number is greater than `after`. `wait`: seconds to wait if there
        is none.

        Raises NotFound. Raises Expired if rollouts of these groups are deleted, or if the batch has delivered fewer
        groups than `after`.
        """
        from rollyard.trajectory.group import group_page

        return group_page(await self.groups_columns(id, namespace, after=after, wait=wait, limit=limit))

    async def groups_columns(
        self, id: str, namespace: str | None = None, *, after: int = 0, wait: float = 0.0, limit: int = 64
    ) -> Columns:
        """Do the same as `groups`, with the trajectories as arrays, group after group.

        In the returned columns, `about["groups"]` lists the fields of each group; the field `rollouts` is the number of
        the group's trajectories. `about["next"]` is the value of `after` for the next page. Raises NotFound, Expired.
        """
        from rollyard.trajectory.columns import CONTENT_TYPE, decode

        query = self._http.query(namespace, after=str(after), wait=str(wait), limit=str(limit))
        _, data = await self._http.get_bytes(f"/v1/batches/{id}/groups", query, CONTENT_TYPE)
        return await asyncio.to_thread(decode, data)

    async def acknowledge(self, id: str, upto: int, namespace: str | None = None) -> BatchView:
        """Acknowledge that all groups of a batch up to delivery `upto` were used. Raises NotFound, Invalid."""
        path = f"/v1/batches/{id}/acknowledge"
        return BatchView.model_validate(
            await self._http.json("POST", path, query=self._http.query(namespace), body={"upto": upto})
        )

    async def batch_history(
        self, id: str, namespace: str | None = None, *, series: bool = False, limit: int = 1000
    ) -> BatchHistory:
        """Return the last `limit` training steps of a batch, with rewards, informative groups and lengths. `series`: those of
        all batches of its series. Raises NotFound."""
        query = self._http.query(namespace, series="true" if series else None, limit=str(limit))
        body = await self._http.json("GET", f"/v1/history/batches/{id}", query=query)
        return BatchHistory.model_validate(body, extra="ignore")

    async def cancel_batch(
        self, id: str, namespace: str | None = None, *, rollouts: Literal["keep", "cancel"] = "keep"
    ) -> BatchView:
        """End a batch. `rollouts` decides about the batch's unfinished groups.

        - "keep": these groups wait for a later batch of the same series, which must have the same pool and the same
          `n`. But if the batch's `carry_over` is not "keep", or if no later batch can join the series, these groups are
          cancelled.
        - "cancel": these groups are cancelled.

        Raises NotFound.
        """
        query = self._http.query(namespace, rollouts=rollouts)
        return BatchView.model_validate(await self._http.json("DELETE", f"/v1/batches/{id}", query=query))


def _lines_of(tasks: Iterable[Task | Mapping[str, Any]]) -> bytes:
    found = (task.model_dump(mode="json") if isinstance(task, Task) else dict(task) for task in tasks)
    return "\n".join(json.dumps(task) for task in found).encode()
