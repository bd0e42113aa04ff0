"""Submits allocations: first writes the intents, then submits the allocations of the same pool and template in one call
to Slurm, as a job array.

An intent is an entry in the allocation's status: the time of a submit that is about to follow. An intent is written only
if the allocation has not changed (optimistic concurrency), so two decisions cannot both submit. If the server crashes
between the intent and the record of the job's id, the next complete listings show whether the submit made a job.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rollyard.controller.event_recorder import EventRecorder
from rollyard.core.clock import Clock, as_datetime, as_text
from rollyard.core.errors import Conflict, Invalid, NotFound, Refusal, RollyardError, SlurmUnreachable, SubmitRefused
from rollyard.core.failpoints import failpoint
from rollyard.kinds.allocation import SUBMIT_REFUSED, SUBMITTED, Allocation
from rollyard.kinds.base import Condition, ConditionUpdate, ObjectKey, Reason, evolve, get_condition, set_conditions
from rollyard.kinds.registry import POOL_KINDS, Pool
from rollyard.kinds.values.job_state import JobState
from rollyard.reconcilers.allocation_folder import AllocationFolders
from rollyard.reconcilers.job_endings import SHORT_CHARS, one_line
from rollyard.reconcilers.job_listings import ListingFeed
from rollyard.reconcilers.submit_cap import WINDOW_SECONDS, SubmitCap
from rollyard.slurm.base import BatchScript, Driver, JobIds
from rollyard.store.object_store import ObjectStore

log = logging.getLogger(__name__)

GATHER_SECONDS = 0.03
"""Seconds to wait for other allocations of the same plan."""
MAX_TASKS = 500
"""Greatest number of tasks in one array. Slurm's default limit is 1,000 (MaxArraySize)."""
OVERDUE_SECONDS = 3.0
"""Seconds after which a submit without an answer is reported in the allocation's condition."""


class Submitter:
    """The background task that submits. It keeps no intents and no jobs in memory; these are in the store."""

    def __init__(
        self,
        store: ObjectStore,
        driver: Driver,
        feed: ListingFeed,
        workspace: AllocationFolders,
        recorder: EventRecorder,
        answered: dict[str, float],
        clock: Clock,
    ) -> None:
        """`answered`: uid of an allocation -> Unix seconds at which its last submit was answered or failed. This class
        writes the times. A listing that began before the time of an allocation may lack the job of this allocation."""
        self._store = store
        self._driver = driver
        self._feed = feed
        self._workspace = workspace
        self._recorder = recorder
        self._clock = clock
        self._cap = SubmitCap()
        self._waiting: dict[str, ObjectKey] = {}
        self._wake = asyncio.Event()
        self.submitting: set[str] = set()
        """Uids of allocations that wait for their submit, or are being submitted."""
        self.answered = answered

    def add(self, allocation: Allocation) -> None:
        """Submit an allocation soon. A second call before the end of the submit has no effect."""
        uid = allocation.metadata.uid
        if uid not in self.submitting:
            self._waiting[uid] = allocation.key
            self.submitting.add(uid)
            self._wake.set()

    def forget(self, uid: str) -> None:
        self.answered.pop(uid, None)

    async def run(self) -> None:
        """Submit waiting allocations for ever."""
        while True:
            await self._wake.wait()
            await asyncio.sleep(GATHER_SECONDS)
            self._wake.clear()
            keys, self._waiting = self._waiting, {}
            try:
                await self._submit_all(keys)
            except (RollyardError, OSError) as error:
                log.warning("not submitted this time: %s", error)
            finally:
                self.submitting -= keys.keys()

    async def _submit_all(self, keys: Mapping[str, ObjectKey]) -> None:
        pools: dict[str, Pool] = {}
        alike: dict[tuple[Any, ...], list[Allocation]] = {}
        for uid, key in keys.items():
            with contextlib.suppress(NotFound):
                allocation = await self._store.get(key, Allocation)
                meta, owner = allocation.metadata, allocation.spec.pool
                if meta.uid != uid or meta.deletion_timestamp is not None or allocation.status.is_ended:
                    continue  # changed since the decision
                if owner.uid not in pools:
                    pools[owner.uid] = await self._store.get(allocation.owner, POOL_KINDS)
                # A step of a user's job cannot be submitted in an array.
                step = meta.uid if allocation.spec.template.within is not None else None
                avoided = tuple(allocation.spec.template.exclude)  # may have nodes that the pool's template has not
                kin = (owner.uid, allocation.spec.template_hash, avoided, allocation.spec.after_job, step)
                alike.setdefault(kin, []).append(allocation)
        for (owner_uid, *_), allocations in alike.items():
            for burst in _bursts(sorted(allocations, key=lambda a: a.spec.index)):
                pool = pools[owner_uid]
                if await self._waits_for_cap(pool, burst):
                    continue
                try:
                    await self._submit(pool, burst)
                except SlurmUnreachable as error:  # the conditions say it
                    log.warning("pool %s: not submitted this time: %s", pool.metadata.name, error)
                except (RollyardError, OSError) as error:
                    log.warning("pool %s: not submitted this time: %s", pool.metadata.name, error)
                    await self._tell_our_fault(burst, error)

    async def _waits_for_cap(self, pool: Pool, burst: Sequence[Allocation]) -> bool:
        """Return True if these submits exceed the pool's cap, and say so in the allocations' conditions."""
        now = self._clock.monotonic()
        wait = self._cap.take(pool.metadata.uid, len(burst), size=_size(pool), now=now)
        if not wait:
            return False
        at = as_text(self._clock.time() + wait)
        why = (
            f"the pool has submitted {self._cap.count(pool.metadata.uid, now)} jobs within {WINDOW_SECONDS:g} s, which its "
            f"size does not explain; the next submit follows at {at}"
        )
        for allocation in burst:
            if get_condition(allocation.status.conditions, SUBMITTED) is None:
                await self._recorder.record_event(allocation, "SubmitsCapped", why, "Warning")
        await asyncio.gather(*(self._write_condition(a, False, "SubmitsCapped", why) for a in burst))
        return True

    async def _tell_our_fault(self, burst: Sequence[Allocation], error: Exception) -> None:
        """Say in the conditions that the submit failed before Slurm was asked. A full disk may prevent this too."""
        why = f"{error}; Slurm has not been asked, and the submit is tried again"
        with contextlib.suppress(RollyardError, OSError):
            for allocation in burst:
                known = get_condition(allocation.status.conditions, SUBMITTED)
                if known is None or known.message != why:
                    await self._recorder.record_event(allocation, "SubmitFailed", why, "Warning")
            await asyncio.gather(*(self._write_condition(a, False, "SubmitFailed", why) for a in burst))

    async def _submit(self, pool: Pool, allocations: Sequence[Allocation]) -> bool:
        """Submit allocations as one job or array. Return False if Slurm refused the submit, or if a script cannot
        contain a value of the template. A burst that is too large for Slurm is tried in halves. In this case, False
        means that the first half was refused. Raises SlurmUnreachable, errors of the store, and OSError if a file
        cannot be written."""
        try:
            script, burst = await asyncio.to_thread(self._prepare, pool, allocations)
        except Invalid as error:  # a value of the template that a script cannot contain
            for allocation in allocations:
                await self.refuse(allocation, str(error))
            return False
        failpoint("after-prepare")
        intended = await asyncio.gather(*(self._record_intent(a, burst, task) for task, a in enumerate(allocations)))
        failpoint("after-intent")
        if any(a is None for a in intended):  # an allocation changed meanwhile; the next reconcile reads the change
            return True
        ours = [a for a in intended if a is not None]
        began = self._clock.time()
        try:
            ids = await self._call(script, ours)
        except SubmitRefused as error:
            if len(ours) > 1 and error.kind is not Refusal.FINAL:
                half = len(ours) // 2
                if await self._submit(pool, ours[:half]):
                    await self._submit(pool, ours[half:])
                    return True
                ours = ours[half:]  # the first half was refused, and so would be the second
            for allocation in ours:
                await self._recorder.record_event(allocation, SUBMIT_REFUSED, str(error), "Warning")
                await self.refuse(allocation, str(Reason(SUBMIT_REFUSED, str(error))), error.kind)
            return False
        except SlurmUnreachable as error:
            log.warning(
                "it is not known whether %d allocations were submitted; a later look at the queue decides", len(ours)
            )
            why = f"{error}; a later look at the queue decides whether the submit of {as_text(began)} made a job"
            await asyncio.gather(*(self._write_condition(a, None, "AnswerLost", why) for a in ours))
            raise
        finally:
            self.answered.update({a.metadata.uid: self._clock.time() for a in ours})
        failpoint("after-submit")
        submitted = list(zip(ours, ids, strict=True))
        # If a job's id cannot be recorded, the job is found in the next listing by its owner key.
        await _gather(self._record(allocation, id) for allocation, id in submitted)
        failpoint("after-record")
        self._feed.refresh()
        await _gather(
            self._recorder.record_event(allocation, "Submitted", f"submitted as job {id}")
            for allocation, id in submitted
        )
        if isinstance(ids, JobIds) and ids.complaint:
            await _gather(
                self._recorder.record_event(
                    allocation,
                    "SubmitComplained",
                    f"job {id} was submitted, with a complaint: {ids.complaint}",
                    "Warning",
                )
                for allocation, id in submitted
            )
        return True

    async def _call(self, script: BatchScript, ours: list[Allocation]) -> list[str]:
        """Submit once. A slow submit is reported in the allocations' conditions. For this, the function replaces the
        allocations in the list `ours` with the updated ones."""
        began, call = self._clock.time(), asyncio.create_task(self._driver.submit(script))
        try:
            await asyncio.wait({call}, timeout=OVERDUE_SECONDS)
            if not call.done():
                why = f"sbatch has not answered since {as_text(began)}"
                ours[:] = await asyncio.gather(*(self._write_condition(a, False, "Submitting", why) for a in ours))
            return await call
        finally:
            call.cancel()

    async def _write_condition(
        self, allocation: Allocation, status: bool | None, reason: str, message: str
    ) -> Allocation:
        """Write a condition about a submit. If the allocation has changed meanwhile, nothing is written."""
        try:
            return await self.update_status(
                allocation, {"conditions": self._with_submitted_condition(allocation, status, reason, message)}
            )
        except (Conflict, NotFound):
            return allocation

    async def _record(self, allocation: Allocation, id: str) -> None:
        update: dict[str, Any] = {"job_id": id}
        if get_condition(allocation.status.conditions, SUBMITTED) is not None:
            update["conditions"] = self._with_submitted_condition(allocation, True, "Submitted", f"as job {id}")
        await self.update_status(allocation, update)

    def _with_submitted_condition(
        self, allocation: Allocation, status: bool | None, reason: str, message: str
    ) -> list[Condition]:
        return self._with_conditions(allocation, ConditionUpdate(SUBMITTED, status, reason, message))

    def _with_conditions(self, allocation: Allocation, *updates: ConditionUpdate) -> list[Condition]:
        generation, now = allocation.metadata.generation, as_datetime(self._clock.time())
        return set_conditions(allocation.status.conditions, updates, generation=generation, now=now)

    def _prepare(self, pool: Pool, allocations: Sequence[Allocation]) -> tuple[BatchScript, str | None]:
        """Write folders and script. Return the script, and the burst's id if there are several allocations. Blocks."""
        burst = secrets.token_hex(8) if len(allocations) > 1 else None
        alone = self._workspace.script
        script = alone(allocations[0]) if burst is None else self._workspace.burst_script(burst, allocations)
        for allocation in allocations:
            self._workspace.prepare(allocation, pool)
        if burst is not None:
            self._workspace.write_burst(burst, allocations)
        self._workspace.write_script(script)
        return script, burst

    async def _record_intent(self, allocation: Allocation, burst: str | None, task: int) -> Allocation | None:
        intent = {
            "intended_at": as_datetime(self._clock.time()),
            "intents": allocation.status.intents + 1,
            "burst": burst,
            "task": task if burst is not None else None,
        }
        try:
            return await self.update_status(allocation, intent)
        except (Conflict, NotFound):
            return None

    async def refuse(self, allocation: Allocation, why: str, kind: Refusal | None = None) -> None:
        """End an allocation that cannot be submitted. `kind`: kind of Slurm's refusal; None if Slurm was not asked. The
        pool's reconciler copies both from the allocation's status into the pool's condition."""
        updates = [ConditionUpdate("Ready", False, "Ended", why)]
        if get_condition(allocation.status.conditions, SUBMITTED) is not None:
            updates.insert(0, ConditionUpdate(SUBMITTED, False, "Refused", why))
        update = {
            "job_state": JobState.FAILED.value,
            "reason": one_line(why, SHORT_CHARS),
            "refusal": kind,
            "end_time": as_datetime(self._clock.time()),
            "conditions": self._with_conditions(allocation, *updates),
        }
        await self.update_status(allocation, update)

    async def update_status(self, allocation: Allocation, update: dict[str, Any]) -> Allocation:
        changed = evolve(allocation, status=evolve(allocation.status, **update))
        return await self._store.update(changed, "status")


def _size(pool: Pool) -> int:
    """Return the greatest number of allocations that the pool may have at once."""
    scaling, fixed = pool.spec.autoscaling, pool.spec.replicas
    return (scaling.max_replicas if scaling is not None else fixed or 0) + pool.spec.renewal.max_surge


def _bursts(allocations: Sequence[Allocation]) -> Iterator[Sequence[Allocation]]:
    return (allocations[start : start + MAX_TASKS] for start in range(0, len(allocations), MAX_TASKS))


async def _gather(work: Iterable[Awaitable[Any]]) -> None:
    """Run all work concurrently, so that the store writes the results together. Raise the first error after all have ended."""
    for done in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(done, BaseException):
            raise done
