"""`AsyncBatch`: an async iterator over the groups of one batch. Iteration continues after restarts of the server."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from rollyard.client.batch_client import BatchClient
from rollyard.client.batch_progress import BatchProgress
from rollyard.client.step_log import StepLog, complete_steps, step_values
from rollyard.core.backoff import until_done
from rollyard.core.errors import RollyardError
from rollyard.kinds.base import evolve
from rollyard.kinds.batch import BatchRequest, BatchView

if TYPE_CHECKING:
    from rollyard.trajectory.group import Group

log = logging.getLogger(__name__)
WAIT_SECONDS = 30.0
RECENT_STEPS = 100
"""Training steps that are read for the log at once."""


class AsyncBatch:
    """Iterator over delivered groups. `AsyncClient.batch` makes it.

    Iteration ends when the batch has ended and all its groups were returned. `view.status` tells how the batch ended.
    """

    def __init__(
        self,
        client: BatchClient,
        request: BatchRequest | str,
        namespace: str | None,
        *,
        after: int = 0,
        progress: bool = False,
        log: StepLog | None = None,
        warn: Callable[[str], None] = log.warning,
    ) -> None:
        """`log` gets the metrics of each training step, at the step's acknowledgement or at the batch's end. `warn` gets
        the reason why no group comes for WAIT_SECONDS, each reason once, and the first error of `log`."""
        self._client = client
        self._warn, self._warned = warn, set[str]()
        self._namespace = namespace
        self._request: BatchRequest | None = None
        if isinstance(request, str):
            self.id = request
        else:
            self.id = request.id or f"b-{secrets.token_hex(6)}"
            self._request = evolve(request, id=self.id)
        self.after = after
        """Delivery number of the last group that the iterator returned; before the first group, the given `after`.
        Another process can continue with this number."""
        self.view: BatchView | None = None
        """State of the batch in the server's last answer."""
        self._created = False
        self._ready: deque[Group] = deque()
        self._last = False
        self._progress = BatchProgress() if progress else None
        self._log, self._logged = log, -1

    def __aiter__(self) -> AsyncBatch:
        return self

    async def __anext__(self) -> Group:
        """Wait for the next group without a time limit, even while the server is unreachable.

        Raises the errors of `create_batch` and `groups` except Unavailable.
        """
        while not self._ready:
            if self._last:
                await self._log_steps()
                self._close()
                raise StopAsyncIteration
            await until_done(self._read, f"waiting for groups of batch {self.id}")
        group = self._ready.popleft()
        self.after = group.delivery
        return group

    async def _read(self) -> None:
        if self._request is not None and not self._created:
            self._see(await self._client.create_batch(self._request, self._namespace))
            self._created = True
        page = await self._client.groups(self.id, self._namespace, after=self.after, wait=WAIT_SECONDS)
        self._ready.extend(page.groups)
        self._last = page.last
        self._see(page.batch)
        if not page.groups and page.batch.waiting is not None:
            reason = re.sub(r"\d+", "", page.batch.waiting)
            self._warn_once(reason, f"batch {self.id} waits: {page.batch.waiting}")

    def _warn_once(self, reason: str, text: str) -> None:
        if reason not in self._warned:
            self._warned.add(reason)
            self._warn(text)

    async def acknowledge(self, upto: int | None = None) -> BatchView:
        """Acknowledge all groups up to delivery `upto`; by default all groups that the iterator returned."""
        view = await self._client.acknowledge(self.id, self.after if upto is None else upto, self._namespace)
        self._see(view)
        await self._log_steps()
        return view

    async def _log_steps(self) -> None:
        """Pass the training steps that are complete and new to the log. A log that fails ends no training: `warn` gets
        its first error, and the failed step is not passed again."""
        if self._log is None or self.view is None:
            return
        try:
            history = await self._client.batch_history(self.id, self._namespace, limit=RECENT_STEPS)
        except RollyardError as error:
            self._warn_once("no history", f"batch {self.id}: the steps are logged later: {error}")
            return
        groups = self._request.step_groups if self._request is not None else None
        steps = complete_steps(history.steps, step_groups=groups, ended=self.view.status.terminal)
        for step in steps:
            if step.step > self._logged:
                self._logged = step.step
                try:
                    await asyncio.to_thread(self._log.log, step.step, step_values(step))
                except Exception as error:
                    log.debug("logger", exc_info=True)
                    words = (
                        f"the logger failed at step {step.step}, and the batch goes on: {type(error).__name__}: {error}"
                    )
                    self._warn_once("logger", f"batch {self.id}: {words}. Its later errors are not shown")

    async def cancel(self, rollouts: Literal["keep", "cancel"] = "keep") -> BatchView:
        """End the batch. The unfinished groups are kept if `rollouts` and the request's `carry_over` are "keep", and the
        request names a series or a dataset. The series' next batch that has the same pool and `n` takes these groups
        over. Otherwise these groups are cancelled."""
        return self._see(await self._client.cancel_batch(self.id, self._namespace, rollouts=rollouts))

    def _see(self, view: BatchView) -> BatchView:
        self.view = view
        if self._progress is not None:
            self._progress.show(view)
        return view

    def _close(self) -> None:
        if self._progress is not None:
            self._progress.close()
