"""Allocations: intent before submit, adoption by comment, status from the snapshot, an end that leaves nothing behind."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from rollyard.clock import Clock, as_datetime
from rollyard.controller.crash_points import crash_point
from rollyard.controller.manager import Again, Done
from rollyard.controller.recorder import Recorder
from rollyard.errors import NotFound, RollyardError, SlurmUnreachable
from rollyard.inference.endpoints import Endpoints
from rollyard.kinds.allocation import Allocation, AllocationStatus
from rollyard.kinds.base import FINALIZER, Condition, ObjectKey, get_condition, set_condition
from rollyard.reconcilers.failures import GONE
from rollyard.reconcilers.plan import COMPLETING, AllocationPlan, plan_allocation
from rollyard.reconcilers.snapshots import SnapshotFeed
from rollyard.reconcilers.submitter import SUBMITTED, Submitter
from rollyard.reconcilers.workspace import Workspace
from rollyard.rollouts.agents import Agents
from rollyard.slurm.base import Driver, Job, Snapshot
from rollyard.store.base import Store

log = logging.getLogger(__name__)

WAIT_SECONDS = 1.0
ACCOUNTING_SECONDS = 10.0
"""Until accounting that did not answer is asked again."""
SILENCE_SECONDS = 180.0
"""After so much of it, an end is concluded without accounting."""


class AllocationReconciler:
    """One job for each Allocation, and no other."""

    def __init__(
        self,
        store: Store,
        driver: Driver,
        feed: SnapshotFeed,
        workspace: Workspace,
        recorder: Recorder,
        agents: Agents,
        endpoints: Endpoints,
        clock: Clock,
        submitter: Submitter,
        lost: Callable[[str], Awaitable[None]],
    ) -> None:
        self._store = store
        self._driver = driver
        self._feed = feed
        self._workspace = workspace
        self._recorder = recorder
        self._agents = agents
        self._endpoints = endpoints
        self._clock = clock
        self._submitter = submitter
        self._lost = lost
        """Told the uid of an allocation whose job has ended: its leases are taken back, and a copy that lives on is fenced."""
        self._missed: dict[str, tuple[int, int]] = {}
        """uid -> (snapshot number, complete snapshots in a row without its job)."""
        self._unanswered: dict[str, float] = {}
        """uid -> since when accounting does not answer how its job ended (Unix seconds)."""

    async def reconcile(self, key: ObjectKey) -> Done | Again:
        try:
            allocation = await self._store.get(key)
        except NotFound:
            return Done()
        assert isinstance(allocation, Allocation)
        if allocation.metadata.deletion_timestamp is None and not await self._owned(allocation):
            await self._store.delete(key, uid=allocation.metadata.uid)
            return Again(0.0)
        snapshot, uid = self._view(allocation), allocation.metadata.uid
        if uid in self._submitter.submitting:
            return Again(WAIT_SECONDS)
        owner = self._workspace.owner(allocation)
        plan = plan_allocation(allocation, owner, snapshot, self._misses(allocation, owner, snapshot))
        if plan.remove:
            await self._remove(allocation)
            return Done()
        if plan.submit:
            self._submitter.add(allocation)
            return Again(WAIT_SECONDS)
        if plan.cancel:
            await self._cancel(plan.cancel)
        allocation = await self._observe(allocation, plan)
        if allocation.status.ended and not plan.cancel:
            return Again(0.0) if allocation.metadata.deletion_timestamp is not None else Done()
        if plan.gone:
            return Again(ACCOUNTING_SECONDS)
        if allocation.spec.drain:
            await self._drain(allocation)
        undecided = plan.wait or plan.cancel or allocation.spec.drain or allocation.metadata.deletion_timestamp
        return Again(WAIT_SECONDS) if undecided else Done()

    async def gave_up(self, key: ObjectKey, error: RollyardError) -> None:
        """What cannot be submitted as it is written ends here; the pool says why."""
        try:
            allocation = await self._store.get(key)
        except NotFound:
            return
        assert isinstance(allocation, Allocation)
        await self._submitter.refuse(allocation, str(error))

    async def _owned(self, allocation: Allocation) -> bool:
        """Its very pool is still there; a pool whose finalizer was taken away by hand leaves its allocations behind."""
        try:
            return (await self._store.get(_pool_key(allocation))).metadata.uid == allocation.spec.pool.uid
        except NotFound:
            return False

    def _view(self, allocation: Allocation) -> Snapshot | None:
        """The latest snapshot that can tell of this allocation: one begun before its submit answered may lack the job."""
        latest, submitted = self._feed.latest, self._submitter.answered.get(allocation.metadata.uid)
        if latest is None or (submitted is not None and latest.taken_at < submitted):
            return None
        return latest

    def _misses(self, allocation: Allocation, owner: str, snapshot: Snapshot | None) -> int:
        """Complete snapshots in a row that could have shown its job, and do not."""
        uid, status = allocation.metadata.uid, allocation.status
        if snapshot is None:
            return 0
        seen = status.job_id in snapshot.jobs if status.job_id is not None else bool(snapshot.by_owner(owner))
        if seen:
            self._found(uid)
            return 0
        number, count = self._missed.get(uid, (0, 0))
        if number != self._feed.count:
            self._missed[uid] = (self._feed.count, count + 1)
        return self._missed[uid][1]

    def _found(self, uid: str) -> None:
        self._missed.pop(uid, None)
        self._unanswered.pop(uid, None)

    async def _cancel(self, ids: tuple[str, ...]) -> None:
        await self._driver.cancel(ids)
        crash_point("after-cancel")
        self._feed.refresh()

    async def _drain(self, allocation: Allocation) -> None:
        """Tell it once more, and end it when it takes too long."""
        uid, status = allocation.metadata.uid, allocation.status
        self._agents.drain(uid)
        self._endpoints.drain(uid)
        draining = next((c for c in status.conditions if c.type == "Draining"), None)
        since = draining.last_transition_time.timestamp() if draining else self._clock.time()
        limit = allocation.spec.drain_timeout_seconds
        if status.job_id is not None and status.job_state != COMPLETING and self._clock.time() - since > limit:
            await self._recorder.say(
                allocation, "DrainTimedOut", f"still busy after {limit} s; what is left is handed back"
            )
            await self._cancel((status.job_id,))

    async def _observe(self, allocation: Allocation, plan: AllocationPlan) -> Allocation:
        """Status from what was seen; what is not known stays as it was."""
        before, uid = allocation.status, allocation.metadata.uid
        update: dict[str, Any] = {}
        if plan.adopt is not None:
            update = _from_job(plan.adopt)
        elif plan.gone:
            update = await self._forgotten(allocation)
        status = before.model_copy(update=update)
        over = status.ended
        if over:
            words = await asyncio.to_thread(self._workspace.last_words, allocation)
            status = status.model_copy(update={"ready": False, "reason": words or status.reason})
        else:
            ready = self._ready(uid)
            ready_at = status.ready_at or (as_datetime(self._clock.time()) if ready else None)
            status = status.model_copy(update={"ready": ready, "ready_at": ready_at})
        conditions = self._conditions(allocation, status, over)
        final = status.model_copy(
            update={"conditions": conditions, "observed_generation": allocation.metadata.generation}
        )
        if final != before:
            allocation = await self._write(allocation, dict(final))
            await self._tell(allocation, before)
        if over:
            self._forget(uid)
            await self._lost(uid)
        elif allocation.status.job_state == "RUNNING" and allocation.status.end_time is not None:
            self._agents.ends(uid, allocation.status.end_time.timestamp())
        return allocation

    async def _forgotten(self, allocation: Allocation) -> dict[str, Any]:
        """Slurm's memory has lost the job; accounting may know how it ended. No answer is no end, for a while."""
        status, uid, now = allocation.status, allocation.metadata.uid, self._clock.time()
        assert status.job_id is not None
        try:
            job = (await self._driver.accounting([status.job_id])).get(status.job_id)
        except SlurmUnreachable as error:
            if now - self._unanswered.setdefault(uid, now) < SILENCE_SECONDS:
                return {}
            why = f"how job {status.job_id} ended is not known: accounting has not answered for {SILENCE_SECONDS:g} s"
            await self._recorder.say(allocation, "AccountingSilent", f"{why}: {error}", "Warning")
            job = None
        if job is not None and job.state.ended:
            return _from_job(job)
        end = min(now, status.end_time.timestamp()) if status.end_time is not None else now
        return {"job_state": GONE, "end_time": as_datetime(end)}

    def _forget(self, uid: str) -> None:
        self._agents.forget(uid)
        self._endpoints.forget(uid)
        self._submitter.forget(uid)
        self._found(uid)

    def _ready(self, uid: str) -> bool:
        endpoint = self._endpoints.of_allocation(uid)
        return endpoint.ready if endpoint is not None else self._agents.of_allocation(uid) is not None

    def _conditions(self, allocation: Allocation, status: AllocationStatus, over: bool) -> list[Condition]:
        generation, now = allocation.metadata.generation, as_datetime(self._clock.time())
        if over:
            reason, message = "Ended", f"job {status.job_id} ended {status.job_state}: {status.reason}"
        elif status.ready:
            reason, message = "Serving", f"job {status.job_id} on {status.node}"
        elif status.job_state == "RUNNING":
            endpoint = self._endpoints.of_allocation(allocation.metadata.uid)
            reason, message = "Starting", endpoint.reason if endpoint else f"job {status.job_id} has not dialled in yet"
        else:
            reason, message = (
                "Pending",
                f"job {status.job_id or '(not submitted)'} {status.job_state or ''} {status.reason}".strip(),
            )
        conditions = set_condition(
            status.conditions, "Ready", status.ready, reason, message, generation=generation, now=now
        )
        if status.job_id is not None and get_condition(conditions, SUBMITTED) is not None:  # also one that was adopted
            said = f"as job {status.job_id}"
            conditions = set_condition(conditions, SUBMITTED, True, "Submitted", said, generation=generation, now=now)
        if allocation.spec.drain:
            message = "takes nothing new and ends when what is in hand is done"
            conditions = set_condition(conditions, "Draining", True, "Drain", message, generation=generation, now=now)
        return conditions

    async def _tell(self, allocation: Allocation, before: AllocationStatus) -> None:
        status = allocation.status
        if status.job_state == before.job_state:
            return
        if status.ended:
            bad = (
                not (allocation.spec.drain or allocation.metadata.deletion_timestamp)
                and status.job_state != "COMPLETED"
            )
            code = f", exit code {status.exit_code}" if status.exit_code is not None else ""
            message = f"job {status.job_id} ended {status.job_state}{code}: {status.reason or 'it said nothing'}"
            await self._recorder.say(allocation, "JobEnded", message, "Warning" if bad else "Normal")
        elif status.job_state == "RUNNING":
            await self._recorder.say(allocation, "JobStarted", f"job {status.job_id} runs on {status.node}")

    async def _remove(self, allocation: Allocation) -> None:
        crash_point("before-allocation-removal")
        await asyncio.to_thread(self._workspace.remove, allocation)
        self._forget(allocation.metadata.uid)
        kept = [f for f in allocation.metadata.finalizers if f != FINALIZER]
        meta = allocation.metadata.model_copy(update={"finalizers": kept})
        await self._store.update(allocation.model_copy(update={"metadata": meta}), "spec")

    async def _write(self, allocation: Allocation, update: dict[str, Any]) -> Allocation:
        changed = allocation.model_copy(update={"status": allocation.status.model_copy(update=update)})
        written = await self._store.update(changed, "status")
        assert isinstance(written, Allocation)
        return written


def _pool_key(allocation: Allocation) -> ObjectKey:
    pool = allocation.spec.pool
    return ObjectKey(kind=pool.kind, namespace=allocation.metadata.namespace, name=pool.name)


def _from_job(job: Job) -> dict[str, Any]:
    return {
        "job_id": job.id,
        "restart_count": job.restart_count,
        "job_state": job.state.value,
        "reason": job.reason,
        "node": job.node,
        "start_time": as_datetime(job.start_time) if job.start_time is not None else None,
        "end_time": as_datetime(job.end_time) if job.end_time is not None else None,
        "exit_code": job.exit_code,
    }
