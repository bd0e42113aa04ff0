"""Saves the turns of one RUN on the server while the agent goes on, so that another node agent can go on after them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Self

import zstandard

from rollyard.core.aio import Waker, end_tasks
from rollyard.core.errors import ApiError, Fenced
from rollyard.core.failpoints import failpoint
from rollyard.kinds.resumption import Resumption
from rollyard.node.agent_loop import AgentProgress
from rollyard.node.result_uploads import ResultUploads
from rollyard.node.tool_execution import Tools
from rollyard.trajectory import SavedTurn
from rollyard.trajectory.saved_turn import prompt_digest
from rollyard.wire.node import LeaseRef, TurnsHeader

log = logging.getLogger(__name__)

PAUSE_SECONDS = 0.5
"""Least time between two uploads of one rollout. Turns that end sooner are uploaded together."""
LEVEL = 1
_COMPRESSOR = zstandard.ZstdCompressor(LEVEL, write_checksum=True)


class TurnSaver:
    """Uploads turns in the background. Leaving the block ends the upload; what has not arrived is lost."""

    def __init__(self, uploads: ResultUploads, ref: LeaseRef, version: str | None) -> None:
        """`version`: weights version of the endpoint with which the lease begins."""
        self._uploads = uploads
        self._ref = ref
        self._version = version
        self.stored = 0
        """Number of turns that the server has."""
        self._waiting: list[bytes] = []
        self._resumed: Resumption | None = None
        self._tools: Tools | None = None
        self.stopped = "the loop has not begun"
        """Why no further turns are saved; empty while they are."""
        self._untold = ""
        """Sentence that the server does not have yet, for people."""
        self._held = False
        """Whether saved turns are played again, so that nobody knows yet which of them stay."""
        self._changed = Waker()
        self._all_stored = asyncio.Event()
        self._all_stored.set()
        self._task = asyncio.create_task(self._upload_all())

    def begin(self, tools: Tools | None, *, held: bool = False) -> None:
        """Save the turns from now on. `tools`: None if the rollout calls none of ours. `held`: upload none before `resume`."""
        self._tools, self.stopped, self._held = tools, "", held

    def resume(self, resumption: Resumption, stored: int) -> None:
        """Report where the lease went on. `stored`: number of turns that stay on the server as they are. If turns were held,
        these are the first ones."""
        self.stored, self._resumed, self._held = stored, resumption, False
        del self._waiting[:stored]
        self._wake()

    def replace_last(self, run: AgentProgress, spent: float) -> None:
        """Save the last turn in place of the stored one, which had other results. `spent`: as of `goes_on`."""
        self.stored -= 1
        self._waiting.append(packed(run, spent))
        self._wake()

    def stop(self, why: str) -> None:
        """Save no further turns."""
        if not self.stopped:
            self.stopped = why
            self.tell(f"no turns are saved after turn {self.stored + len(self._waiting)}: {why}")

    def tell(self, sentence: str) -> None:
        """Let the rollout's history say what is not saved any more."""
        self._untold = f"{self._untold}; {sentence}" if self._untold else sentence
        self._wake()

    def goes_on(self, run: AgentProgress, spent: float = 0.0) -> None:
        """Save the last turn. `spent`: seconds of RUN's budget so far."""
        if self.stopped:
            return
        assert self._tools is not None
        names = [call["name"] for call in run.turns[-1].tool_calls]
        if once := [name for name in names if not self._tools.is_repeatable(name)]:
            return self.stop(f"a call of the tool {once[0]!r} cannot be repeated")
        self.save(packed(run, spent))

    def save(self, body: bytes) -> None:
        """Save a compressed turn."""
        if not self.stopped:
            self._waiting.append(body)
            self._wake()
            failpoint("after-saved-turn")

    async def flush(self) -> None:
        """Wait until the server has all saved turns, or takes no more."""
        await self._all_stored.wait()

    def _wake(self) -> None:
        self._all_stored.clear()
        self._changed.wake()

    async def _upload_all(self) -> None:
        while True:
            await self._changed.pause(3600.0)
            while not self._held and (self._waiting or self._resumed is not None or self._untold):
                await self._upload()
            self._all_stored.set()
            await asyncio.sleep(PAUSE_SECONDS)

    async def _upload(self) -> None:
        bodies, resumed, told = list(self._waiting), self._resumed, self._untold
        header = TurnsHeader(
            lease=self._ref, kept=self.stored, resumed=resumed, weights_version=self._version, stopped=told
        )
        try:
            failpoint("before-turns-upload")
            await self._uploads.turns(header, bodies)
            failpoint("after-turns-upload")
        except ApiError as error:  # the lease is void, or the server takes no more of this rollout
            log.info("rollout %s: no further turns are saved: %s", self._ref.id, error)
            self._waiting.clear()
            self.stop(str(error))
            self._resumed = None
            if isinstance(error, Fenced) or not bodies:
                self._untold = ""
            return
        self.stored += len(bodies)
        self._untold = self._untold.removeprefix(told).removeprefix("; ")
        del self._waiting[: len(bodies)]
        if self._resumed is resumed:
            self._resumed = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await end_tasks(self._task)


def packed(run: AgentProgress, spent: float = 0.0) -> bytes:
    """Return the last turn of a conversation that goes on, compressed."""
    turn, before, conversation = run.turns[-1], run.turns[-2] if len(run.turns) > 1 else None, run.conversation
    same_segment = before is not None and before.segment == turn.segment
    begun = before.prompt_length + before.response_length if before is not None and same_segment else 0
    ids, logprobs, versions = conversation.last_sampled()
    saved = SavedTurn.model_construct(
        turn=turn,
        token_ids=ids,
        logprobs=logprobs,
        weights_versions=versions,
        prompt_digest=prompt_digest(conversation.ids_before_last(begun)),
        run_seconds=spent,
        reply_role=run.reply_role,
        environment=run.environment,
        conversation=run.number,
        max_tokens=run.max_tokens,
        role_calls=list(run.role_calls),
    )
    return _COMPRESSOR.compress(saved.model_dump_json().encode())


def unpacked(bodies: Sequence[bytes]) -> list[SavedTurn]:
    """Raises ValueError if a body is not a turn."""
    try:
        return [SavedTurn.model_validate_json(zstandard.decompress(body), extra="ignore") for body in bodies]
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from None
