"""Reconciler of allocations: submits jobs, finds them again in Slurm's queue, writes their status, cleans up at the end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

from rollyard.controller.event_recorder import EventRecorder
from rollyard.controller.manager import Done, RequeueAfter
from rollyard.core.clock import Clock, as_datetime
from rollyard.core.errors import NotFound, RollyardError, SlurmUnreachable
from rollyard.core.failpoints import failpoint
from rollyard.kinds.allocation import Allocation, AllocationStatus
from rollyard.kinds.base import FINALIZER, ConditionUpdate, ObjectKey, Reason, evolve, get_condition, set_conditions
from rollyard.kinds.registry import Pool
from rollyard.kinds.usage import EndedAllocation
from rollyard.kinds.values.job_state import JobState
from rollyard.reconcilers.allocation_conditions import (
    DRAINING,
    ENDING,
    IN_QUEUE,
    AllocationView,
    allocation_conditions,
    why_left,
)
from rollyard.reconcilers.allocation_folder import AllocationFolders
from rollyard.reconcilers.allocation_plan import MIN_MISSES, AllocationPlan, plan_allocation
from rollyard.reconcilers.job_endings import FROM_OUTSIDE, JobEnd, long_text, short_text, why_ended
from rollyard.reconcilers.job_listings import ListingFeed
from rollyard.reconcilers.job_submitter import Submitter
from rollyard.server.rollouts.connected_node_agents import ConnectedNodeAgents
from rollyard.server.routing.endpoint_registry import EndpointRegistry
from rollyard.slurm.base import Driver, Job, JobListing
from rollyard.store.object_store import ObjectStore

log = logging.getLogger(__name__)

WAIT_SECONDS = 1.0
EARLY_END = timedelta(seconds=3)
"""A job's end may seem to lie this long before its submit: Slurm cuts off fractions, and its clock may be a little behind."""
NAME_SECONDS, NAME_POLL_SECONDS = 3.0, 0.5
"""Greatest wait for accounting to name the user who cancelled a job, and time between two queries (seconds)."""


class AllocationReconciler:
    """Submits one job for each Allocation, cancels copies of the job, and follows the job to its end."""

    def __init__(
        self,
        store: ObjectStore,
        driver: Driver,
        feed: ListingFeed,
        workspace: AllocationFolders,
        recorder: EventRecorder,
        node_agents: ConnectedNodeAgents,
        endpoints: EndpointRegistry,
        clock: Clock,
        submitter: Submitter,
        lost: Callable[[str, bool], Awaitable[None]],
        note_ended: Callable[[EndedAllocation], Awaitable[None]],
    ) -> None:
        self._store = store
        self._driver = driver
        self._feed = feed
        self._workspace = workspace
        self._recorder = recorder
        self._node_agents = node_agents
        self._endpoints = endpoints
        self._clock = clock
        self._submitter = submitter
        self._lose_allocation = lost
        """Function to call with the uid of an allocation after its job has ended, and with whether the end came from outside.
        The function takes back the allocation's leases, so that the server refuses results from processes that outlive the
        job."""
        self._note_ended = note_ended
        """Function that stores an ended allocation for later. It is called before the status shows the end, and again if
        the server is killed between the two."""
        self._missed: dict[str, tuple[int, int]] = {}
        """uid -> (number of the last counted listing, count of complete listings in a row without the allocation's
        job)."""
        self._awaiting_user_name: dict[str, float] = {}
        """uid -> start (Unix seconds) of the wait for accounting to name the user who cancelled the job."""

    async def reconcile(self, key: ObjectKey) -> Done | RequeueAfter:
        try:
            allocation = await self._store.get(key, Allocation)
        except NotFound:
            return Done()
        if allocation.metadata.deletion_timestamp is None and not await self._has_owner(allocation):
            await self._store.delete(key, uid=allocation.metadata.uid)
            return RequeueAfter(0.0)
        listing, uid = self._listing_for(allocation), allocation.metadata.uid
        if uid in self._submitter.submitting:
            return RequeueAfter(WAIT_SECONDS)
        owner = self._workspace.owner(allocation)
        plan = plan_allocation(allocation, owner, listing, self._count_misses(allocation, owner, listing))
        if plan.remove:
            await self._remove(allocation)
            return Done()
        if plan.submit:
            self._submitter.add(allocation)
            return RequeueAfter(WAIT_SECONDS)
        allocation = await self._observe(allocation, plan)
        if plan.cancel:  # only now, when `_observe` has written the status
            await self._cancel(plan.cancel)
        if allocation.status.is_ended and not plan.cancel:
            return RequeueAfter(0.0) if allocation.metadata.deletion_timestamp is not None else Done()
        if allocation.spec.drain:
            await self._drain(allocation)
        if plan.adopt is not None and plan.adopt.state.ended:
            return RequeueAfter(NAME_POLL_SECONDS)
        undecided = plan.wait or plan.cancel or allocation.spec.drain or allocation.metadata.deletion_timestamp
        return RequeueAfter(WAIT_SECONDS) if undecided else Done()

    async def gave_up(self, key: ObjectKey, error: RollyardError) -> None:
        """End an allocation after an error that a retry cannot remove. The pool's reconciler copies the reason into the
        pool's condition."""
        try:
            allocation = await self._store.get(key, Allocation)
        except NotFound:
            return
        await self._submitter.refuse(allocation, str(error))

    async def _has_owner(self, allocation: Allocation) -> bool:
        """Whether the allocation's pool still exists, with the same uid. A pool can be gone before its allocations if a
        user has removed the pool's finalizer."""
        try:
            return (await self._store.get(allocation.owner)).metadata.uid == allocation.spec.pool.uid
        except NotFound:
            return False

    def _listing_for(self, allocation: Allocation) -> JobListing | None:
        """Return the latest listing; None if there is none. Return None also if the listing began before this
        allocation's submit was answered, because the listing may lack the job."""
        latest, submitted = self._feed.latest, self._submitter.answered.get(allocation.metadata.uid)
        if latest is None or (submitted is not None and latest.taken_at < submitted):
            return None
        return latest

    def _count_misses(self, allocation: Allocation, owner: str, listing: JobListing | None) -> int:
        """Return the number of complete listings in a row that lack the job; 0 if the latest listing is unknown or
        incomplete. If the job's id is known, the listings are not counted here: return MIN_MISSES if the job is
        believed to be gone, otherwise 0."""
        uid, status = allocation.metadata.uid, allocation.status
        if listing is None:
            return 0
        if status.job_id is not None:
            return MIN_MISSES if self._feed.believed_gone(status.job_id) else 0
        if listing.by_owner(owner):
            self._missed.pop(uid, None)
            return 0
        if self._feed.incomplete:
            return 0
        number, count = self._missed.get(uid, (0, 0))
        if number != self._feed.count:
            self._missed[uid] = (self._feed.count, count + 1)
        return self._missed[uid][1]

    async def _cancel(self, ids: tuple[str, ...]) -> None:
        await self._driver.cancel(ids)
        failpoint("after-cancel")
        self._feed.refresh()

    async def _drain(self, allocation: Allocation) -> None:
        """Order the allocation's process to drain; each reconcile repeats the order. Cancel the job if draining takes
        too long."""
        uid, status = allocation.metadata.uid, allocation.status
        draining = get_condition(status.conditions, DRAINING)
        since = draining.last_transition_time.timestamp() if draining else self._clock.time()
        limit, now = allocation.spec.drain_timeout_seconds, self._clock.time()
        self._node_agents.drain(uid, since + limit)
        self._endpoints.drain(uid)
        if status.job_id is not None and status.job_state != JobState.COMPLETING and now - since > limit:
            if get_condition(status.conditions, ENDING) is None:
                text = f"still busy after {limit} s of draining; unfinished work is handed back"
                await self._recorder.record_event(allocation, "DrainTimedOut", text)
                conditions = set_conditions(
                    status.conditions,
                    [ConditionUpdate(ENDING, True, "DrainTimedOut", text)],
                    generation=allocation.metadata.generation,
                    now=as_datetime(now),
                )
                await self._submitter.update_status(allocation, {"conditions": conditions})
            await self._cancel((status.job_id,))

    async def _observe(self, allocation: Allocation, plan: AllocationPlan) -> Allocation:
        """Write the status from the plan. Fields about which nothing is known keep their values."""
        before, uid = allocation.status, allocation.metadata.uid
        update: dict[str, Any] = {}
        if plan.adopt is not None:
            update = _status_from_job(plan.adopt)
            if _is_requeued(evolve(before, **update)):  # the run that counts is the first one
                update |= {"node": before.node, "start_time": before.start_time}
        elif plan.gone:
            update = await self._status_without_job(allocation)
        status = evolve(before, **update)
        over = status.is_ended
        end: JobEnd | None = None
        if over and not before.is_ended:
            status = evolve(status, end_time=self._ended_at(status))
            end = await self._end(allocation, plan, status)
            if end is None:
                return allocation
            status = evolve(status, ready=False, reason=short_text(end))
            await self._note_ended(EndedAllocation.of(allocation, status, self._clock.time()))
            failpoint("after-ended-allocation")
        elif not over:
            ready = self._ready(uid)
            ready_at = status.ready_at or (as_datetime(self._clock.time()) if ready else None)
            status = evolve(status, ready=ready, ready_at=ready_at)
        endpoint, drained = self._endpoints.of_allocation(uid), get_condition(status.conditions, DRAINING)
        view = AllocationView(
            allocation,
            status,
            ended=long_text(end) if end is not None else status.reason,
            engine=endpoint.reason if endpoint is not None else None,
            why_drained=await self._reason_to_go(allocation) if allocation.spec.drain and drained is None else None,
            absence=self._feed.missing.get(status.job_id or ""),
            now=self._clock.time(),
        )
        final = evolve(
            status, conditions=allocation_conditions(view), observed_generation=allocation.metadata.generation
        )
        if final != before:
            allocation = await self._submitter.update_status(allocation, dict(final))
            await self._record_changes(allocation, before)
        if over:
            self._forget(uid)
            await self._lose_allocation(uid, status.job_state in FROM_OUTSIDE)
        elif allocation.status.job_state == JobState.RUNNING and allocation.status.end_time is not None:
            self._node_agents.set_walltime_end(uid, allocation.status.end_time.timestamp())
        return allocation

    def _ended_at(self, status: AllocationStatus) -> datetime:
        """Return the end's time by our clock: Slurm's, if it lies between our submit and now; else now."""
        now, submitted = as_datetime(self._clock.time()), status.intended_at
        end = status.end_time
        if end is None or end > now or (submitted is not None and end < submitted - EARLY_END):
            return now
        return end

    async def _end(self, allocation: Allocation, plan: AllocationPlan, status: AllocationStatus) -> JobEnd | None:
        """Return the facts about the job's end; None while accounting may still name the user who cancelled the job."""
        by_us = await self._why_ended(allocation)
        job = plan.adopt
        if job is not None and job.state is JobState.CANCELLED and not by_us and not _is_requeued(status):
            known = await self._accounting_of(job.id)
            if known is not None and not known.state.ended and self._waits_for_name(allocation.metadata.uid):
                return None
            job = known if known is not None and known.cancelled_by else job
        ended_at = status.end_time.timestamp() if status.end_time is not None else self._clock.time()
        return JobEnd(
            state=status.job_state or "",
            exit_code=status.exit_code,
            slurm_reason=status.reason,
            node=status.node,
            by_us=by_us,
            requeued=status.restart_count if _is_requeued(status) else 0,
            cancelled_by=job.cancelled_by if job is not None else "",
            output=await asyncio.to_thread(self._workspace.last_output, allocation, ended_at),
        )

    async def _accounting_of(self, id: str) -> Job | None:
        """Return accounting's present record of a job; None if accounting has none, or does not answer."""
        with contextlib.suppress(SlurmUnreachable, TimeoutError):
            async with asyncio.timeout(NAME_SECONDS):
                return (await self._driver.accounting([id])).get(id)
        return None

    def _waits_for_name(self, uid: str) -> bool:
        """Whether to wait longer for accounting to name the user. slurmdbd learns of an end a moment later than squeue
        shows it."""
        now = self._clock.time()
        return now - self._awaiting_user_name.setdefault(uid, now) < NAME_SECONDS

    async def _why_ended(self, allocation: Allocation) -> str:
        """Our reason for ending the job; empty if we did not end it."""
        if why := why_left(allocation.status):
            return why
        if allocation.spec.drain or allocation.metadata.deletion_timestamp is not None:
            return (await self._reason_to_go(allocation)).message
        return ""

    async def _reason_to_go(self, allocation: Allocation) -> Reason:
        siblings, _ = await self._store.list_objects("Allocation", allocation.metadata.namespace)
        try:
            pool = await self._store.get(allocation.owner)
        except NotFound:
            pool = None
        ours = [a for a in siblings if isinstance(a, Allocation)]
        return why_ended(allocation, pool if isinstance(pool, Pool) else None, ours)

    async def _status_without_job(self, allocation: Allocation) -> dict[str, Any]:
        """Return the status of an allocation whose job slurmctld has forgotten. Accounting may know how the job ended."""
        status, now = allocation.status, self._clock.time()
        assert status.job_id is not None
        absence = self._feed.missing[status.job_id]
        if absence.accounting_state is not None and absence.accounting_state.state.ended:
            return _status_from_job(absence.accounting_state)
        quiet = absence.quiet_seconds(now)
        why = f"job {status.job_id} is gone and its end is not known: it has not reported for {quiet:.0f} s"
        if absence.accounting_error:
            why = f"{why}, and accounting does not answer: {absence.accounting_error}"
            await self._recorder.record_event(allocation, "AccountingSilent", why, "Warning")
        elif absence.is_contradicted:
            why = f"{why}, and accounting still calls it {absence.accounting_state.state if absence.accounting_state else ''}"
            await self._recorder.record_event(allocation, "AccountingBehind", why, "Warning")
        end = min(now, status.end_time.timestamp()) if status.end_time is not None else now
        return {"job_state": JobState.GONE.value, "reason": "", "end_time": as_datetime(end)}

    def _forget(self, uid: str) -> None:
        self._node_agents.forget(uid)
        self._endpoints.forget(uid)
        self._submitter.forget(uid)
        self._awaiting_user_name.pop(uid, None)
        self._missed.pop(uid, None)

    def _ready(self, uid: str) -> bool:
        endpoint = self._endpoints.of_allocation(uid)
        return endpoint.ready if endpoint is not None else self._node_agents.of_allocation(uid) is not None

    async def _record_changes(self, allocation: Allocation, before: AllocationStatus) -> None:
        status = allocation.status
        listed, listed_before = (get_condition(s.conditions, IN_QUEUE) for s in (status, before))
        if listed is not None and listed.status == "False" and (not listed_before or listed_before.status == "True"):
            await self._recorder.record_event(allocation, "MissingFromQueue", listed.message, "Warning")
        if _is_requeued(status) and not _is_requeued(before):
            text = (
                f"job {status.job_id} was requeued, not by Rollyard; its second run is ended, because other allocations "
                "have its work"
            )
            await self._recorder.record_event(allocation, "Requeued", text, "Warning")
        if status.job_state == before.job_state:
            return
        if status.is_ended:
            ended = get_condition(status.conditions, "Ready")
            ours = allocation.spec.drain or allocation.metadata.deletion_timestamp
            orderly = status.job_state in (JobState.CANCELLED, JobState.COMPLETED) and not _is_requeued(status)
            bad = not ours or not orderly or get_condition(status.conditions, ENDING) is not None
            message = ended.message if ended is not None else status.reason
            await self._recorder.record_event(allocation, "JobEnded", message, "Warning" if bad else "Normal")
        elif status.job_state == JobState.RUNNING:
            await self._recorder.record_event(allocation, "JobStarted", f"job {status.job_id} runs on {status.node}")

    async def _remove(self, allocation: Allocation) -> None:
        failpoint("before-allocation-removal")
        await asyncio.to_thread(self._workspace.remove, allocation)
        self._forget(allocation.metadata.uid)
        kept = [f for f in allocation.metadata.finalizers if f != FINALIZER]
        meta = evolve(allocation.metadata, finalizers=kept)
        await self._store.update(evolve(allocation, metadata=meta), "spec")


def _is_requeued(status: AllocationStatus) -> bool:
    """Whether Slurm requeued the job after a process of an earlier run had been bound to the allocation."""
    return status.binding is not None and status.restart_count > status.binding.restart_count


def _status_from_job(job: Job) -> dict[str, Any]:
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
