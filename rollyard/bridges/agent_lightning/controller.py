"""Runs the queued rollouts of an Agent Lightning server in a RolloutPool.

All state is in the two servers, so a killed controller goes on where it stopped:

- The id of our rollout is derived from Agent Lightning's rollout and the number of the attempt.
- A rollout that this controller took is `running`, with an attempt of ours. It is submitted again, which attaches.
- The events that an attempt already has are counted, and the rest is posted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

from rollyard.bridges.agent_lightning.agl_api import AglApi
from rollyard.bridges.agent_lightning.rollout_events import events_of, request_of
from rollyard.client import AsyncClient
from rollyard.core.aio import end_tasks
from rollyard.core.errors import ApiError, Conflict, NotFound
from rollyard.kinds.rollout import Status
from rollyard.trajectory import Trajectory

log = logging.getLogger(__name__)

MAX_ERROR_CHARS = 1000


class AglController:
    def __init__(
        self, agl: AglApi, client: AsyncClient, namespace: str, pool: str, *, retries: int, poll_seconds: float
    ) -> None:
        """`retries`: further rollouts after one that ended InfraFailed."""
        self._agl, self._client, self._namespace, self._pool = agl, client, namespace, pool
        self._retries, self._poll_seconds = retries, poll_seconds
        self._prefix = f"rollyard-{namespace}-{pool}-"
        self._running: dict[str, asyncio.Task[None]] = {}
        self._submitted: dict[str, str] = {}
        """Agent Lightning's id -> id of our rollout, of the running ones."""

    async def run(self) -> None:
        """Run until cancelled. Our rollouts that were submitted run on. Raises Unauthorized."""
        try:
            while True:
                await self._round()
                await asyncio.sleep(self._poll_seconds)
        finally:
            await end_tasks(*self._running.values())

    async def _round(self) -> None:
        """Take what is queued, and cancel what Agent Lightning has deleted."""
        for id, task in list(self._running.items()):
            if task.done():
                del self._running[id]
                self._submitted.pop(id, None)
                if not task.cancelled():
                    task.result()
        live = {found["rollout_id"]: found for found in await self._agl.rollouts("queuing", "running")}
        for id, rollout in live.items():
            if id not in self._running and (attempt := await self._take(rollout)) is not None:
                self._running[id] = asyncio.create_task(self._run(rollout, attempt))
        for id in self._running.keys() - live.keys():
            if not self._running[id].done():
                await self._abandon(id)

    async def _abandon(self, id: str) -> None:
        """Cancel a rollout that Agent Lightning no longer has among the live ones, unless its end has just been reported."""
        if not await self._agl.has(id):
            self._running[id].cancel()
            if id in self._submitted:
                with contextlib.suppress(ApiError):
                    await self._client.cancel(self._submitted[id], self._namespace)

    async def _take(self, rollout: dict[str, Any]) -> int | None:
        """Make a queued rollout ours. Return the number of its attempt; None if it is another controller's."""
        status = rollout["status"]
        if status["state"] == "running":
            name = status.get("last_attempt_id") or ""
            number = name.removeprefix(self._prefix)
            return int(number) if name.startswith(self._prefix) and number.isdigit() else None
        with contextlib.suppress(NotFound, Conflict):
            await self._agl.patch(rollout["rollout_id"], state="running", last_attempt_id=f"{self._prefix}0")
            return 0
        return None

    async def _run(self, rollout: dict[str, Any], attempt: int) -> None:
        """Run one rollout to its end, in as many attempts as it needs."""
        id = rollout["rollout_id"]
        try:
            while True:
                trajectory = await self._result(rollout, attempt)
                if trajectory is None:
                    return
                if trajectory.status is not Status.INFRA_FAILED or attempt >= self._retries:
                    break
                attempt += 1
                await self._agl.patch(id, last_attempt_id=f"{self._prefix}{attempt}")
            await self._report(id, f"{self._prefix}{attempt}", trajectory)
        except (NotFound, Conflict) as error:
            log.warning("rollout %s of Agent Lightning cannot be reported: %s", id, error)

    async def _result(self, rollout: dict[str, Any], attempt: int) -> Trajectory | None:
        """Run an attempt. None if it was refused; then the rollout has ended `failed`."""
        id = rollout["rollout_id"]
        try:
            wanted = request_of(rollout, self._pool, attempt)
            self._submitted[id] = str(wanted.id)
            return await self._client.run(wanted, self._namespace)
        except ApiError as error:
            await self._fail(id, str(error))
            return None

    async def _report(self, id: str, attempt: str, trajectory: Trajectory) -> None:
        """Post the events and end the rollout. Without a reward it ends `failed`, without events."""
        if trajectory.reward is None:
            error = trajectory.error
            why = f"{error.reason}: {error.message}" if error is not None else f"the rollout ended {trajectory.status}"
            await self._fail(id, why)
            return
        events = events_of(trajectory)
        posted = await self._agl.event_count(id)
        while posted < len(events):
            try:
                await self._agl.post_event(id, attempt, events[posted])
                posted += 1
            except ConnectionError:
                posted = await self._agl.event_count(id)
        await self._agl.patch(id, state="succeeded")

    async def _fail(self, id: str, why: str) -> None:
        await self._agl.patch(id, state="failed", error_message=why[:MAX_ERROR_CHARS])
