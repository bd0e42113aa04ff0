"""Manager of controllers: keys of objects wait in queues, workers take the keys, one function handles all outcomes.

A reconcile request is only a key. The reconciler reads everything, plans, acts, and writes the status. After a
failure that may be temporary, the key is queued again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rollyard.controller.informer import Informer
from rollyard.controller.work_queue import WorkQueue
from rollyard.core.errors import BadRequest, Conflict, Forbidden, Invalid, RollyardError, TooLarge
from rollyard.core.telemetry import RECONCILES
from rollyard.kinds.base import ObjectKey

log = logging.getLogger(__name__)

WORKERS = 4
RESYNC_SECONDS = 30.0
RECONCILE_TIMEOUT_SECONDS = 120.0
TERMINAL = (BadRequest, Forbidden, Invalid, TooLarge)
"""Errors of the object itself. Every attempt would fail in the same way until the object changes."""


@dataclass(frozen=True, slots=True)
class Done:
    """There is nothing to do until something changes."""


@dataclass(frozen=True, slots=True)
class RequeueAfter:
    """The attempt succeeded. The key must be reconciled again after this time."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Retry:
    """The attempt failed. A later attempt may succeed."""

    error: RollyardError | TimeoutError | OSError


@dataclass(frozen=True, slots=True)
class Terminal:
    """The attempt failed. Every later attempt would fail too until the object changes."""

    error: RollyardError


Outcome = Done | RequeueAfter | Retry | Terminal


class Reconciler(Protocol):
    async def reconcile(self, key: ObjectKey) -> Done | RequeueAfter:
        """Bring the state of the cluster one step closer to the object's spec. Raises any error of the attempt."""

    async def gave_up(self, key: ObjectKey, error: RollyardError) -> None:
        """Write a condition for the user, because the key is not retried before the next change or resync."""


@dataclass(frozen=True, slots=True)
class Controller:
    """The queue and the reconciler of one kind."""

    kind: str
    reconciler: Reconciler
    queue: WorkQueue[ObjectKey] = field(default_factory=WorkQueue)
    workers: int = WORKERS


class Manager:
    """Runs informers, workers, the periodic resync and other background tasks."""

    def __init__(
        self,
        informers: Sequence[Informer[Any]],
        controllers: Sequence[Controller],
        beside: Sequence[Callable[[], Coroutine[Any, Any, None]]] = (),
        resync_seconds: float = RESYNC_SECONDS,
    ) -> None:
        self._informers = informers
        self._controllers = controllers
        self._background = beside
        self._resync_seconds = resync_seconds

    def add(self, key: ObjectKey, after_seconds: float = 0.0) -> None:
        """Queue a key for reconciling. A key of a kind without a controller is ignored."""
        for controller in self._controllers:
            if controller.kind == key.kind:
                controller.queue.add_after(key, after_seconds)

    async def run(self) -> None:
        """Run until cancelled. Workers start when every informer has its first list."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for informer in self._informers:
                    tasks.create_task(informer.run())
                for informer in self._informers:
                    await informer.synced.wait()
                for run in self._background:
                    tasks.create_task(run())
                for controller in self._controllers:
                    for _ in range(controller.workers):
                        tasks.create_task(self._work(controller))
                tasks.create_task(self._resync())
        finally:
            for controller in self._controllers:
                controller.queue.close()

    async def _resync(self) -> None:
        while True:
            for informer in self._informers:
                for obj in informer.list():
                    self.add(obj.key)
            await asyncio.sleep(self._resync_seconds)

    async def _work(self, controller: Controller) -> None:
        queue = controller.queue
        while True:
            key = await queue.get()
            try:
                outcome = await _attempt(controller.reconciler, key)
                _apply_outcome(queue, key, outcome)
                if isinstance(outcome, Terminal):
                    await _report_failure(controller.reconciler, key, outcome.error)
            finally:
                queue.done(key)


def _apply_outcome(queue: WorkQueue[ObjectKey], key: ObjectKey, outcome: Outcome) -> None:
    match outcome:
        case Done():
            queue.forget(key)
        case RequeueAfter(seconds=seconds):
            queue.forget(key)
            queue.add_after(key, seconds)
        case Retry(error=Conflict() as error):
            log.debug("%s: %s; again in %.2f s", key, error, queue.retry(key))
        case Retry(error=error):
            log.warning("%s: %s: %s; again in %.2f s", key, type(error).__name__, error, queue.retry(key))
        case Terminal(error=error):
            queue.forget(key)
            log.error("%s: %s; no retry before it changes, or the next resync", key, error)
    RECONCILES.labels(key.kind, type(outcome).__name__.lower()).inc()


async def _attempt(reconciler: Reconciler, key: ObjectKey) -> Outcome:
    try:
        async with asyncio.timeout(RECONCILE_TIMEOUT_SECONDS):
            return await reconciler.reconcile(key)
    except TERMINAL as error:
        return Terminal(error)
    except (RollyardError, TimeoutError, OSError) as error:
        return Retry(error)


async def _report_failure(reconciler: Reconciler, key: ObjectKey, error: RollyardError) -> None:
    try:
        await reconciler.gave_up(key, error)
    except RollyardError as other:
        log.warning("%s: its condition was not written: %s", key, other)
