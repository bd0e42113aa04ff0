"""A task handler's own loop. The handler decides what comes next; every turn is sampled, recorded, saved and limited here.

A limit or a fault ends the loop by cancelling it. So a handler cannot go on after a limit, and cannot swallow a fault.

When a node agent is lost, the loop runs again from its start, and gets the saved turns as long as it asks for them
(`loop_replay.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, NoReturn

from rollyard.core.aio import wait_or_timeout
from rollyard.core.errors import (
    AllocationEnds,
    ContextExceeded,
    HandlerFailed,
    RoleBudgetUsed,
    RollyardError,
    SandboxLost,
    StageTimeout,
    TaskError,
)
from rollyard.core.failpoints import failpoint
from rollyard.gateway.session.session_config import SessionConfig
from rollyard.kinds.base import evolve
from rollyard.kinds.rollout import Status
from rollyard.node.agent_loop import (
    AgentProgress,
    call_tools,
    context_ended,
    prompt_ids_of,
    sample_turn,
    turns_ended,
    with_turn_seed,
)
from rollyard.node.agent_run import (
    LEAST_TURNS_LEFT,
    AgentResult,
    LoopParts,
    ReportReplay,
    TurnEnded,
    budget_ended,
    unread,
)
from rollyard.node.allocation_end import AllocationEnd
from rollyard.node.lease_models import LeaseModels
from rollyard.node.lease_sampler import LeaseSampler
from rollyard.node.loop_replay import LoopReplay
from rollyard.node.replay import add_saved, call_again
from rollyard.node.tool_execution import Tools
from rollyard.node.turn_saver import TurnSaver
from rollyard.tasks.base import Message
from rollyard.tasks.guarded_handler import MESSAGES, GuardedHandler, are_messages
from rollyard.tasks.own_tools import ToolResult
from rollyard.trajectory import SavedTurn, Turn

END_TRIES = 5
"""Number of times that a loop is cancelled, with a second between them, until it counts as one that does not end."""


class OwnLoopRun:
    """One run of the loop. The handler gets this object as its agent."""

    def __init__(
        self,
        handler: GuardedHandler,
        parts: LoopParts,
        policy: LeaseSampler,
        models: LeaseModels,
        turn_ended: TurnEnded,
    ) -> None:
        self.models = models
        self._turn_ended = turn_ended
        self._handler = handler
        self._parts = parts
        self._policy = policy
        self._chats: list[AgentProgress] = []
        self._order: list[AgentProgress] = []
        """Conversation of each turn, in the order in which the turns ended."""
        self._begun = self._noted = 0
        """Number of turns that began, and of those after which `turn_ended` was called."""
        self._active: set[asyncio.Task[Any]] = set()
        """Tasks inside of a call."""
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when no call may begin or return any more."""
        self._fault: RollyardError | None = None
        self._cut_short: str | None = None
        self._overdue = False
        self._unsettled = set[int]()
        """Numbers of the conversations whose last turn is not saved yet."""
        self._saver: TurnSaver | None = None
        self._end_of_allocation: AllocationEnd | None = None
        self._replay = LoopReplay((), has_network=False)
        self._asking = 0
        """Number of conversations that are about to take a saved turn."""
        self._report: ReportReplay | None = None
        """Function that reports where this run went on; None if it has reported, or there is nothing to report."""
        self._budget = 0.0
        self._leaving: AllocationEnds | None = None
        self._suspended = False
        """Whether `suspend` was called, whose caller ends the loop."""
        self._standing = 0
        """Number of calls that do not go on, because the rollout leaves its node."""
        self._paused = asyncio.Event()
        """Set when all calls stand, or the loop has ended."""
        self.ended = False

    # the interface for handlers (`rollyard.tasks.base.LoopAgent`)

    def conversation(self, messages: Sequence[Message], tools: Sequence[str] | None = None) -> OwnConversation:
        """Begin a conversation. Raises TaskError."""
        if not are_messages(messages) or not messages:
            raise TaskError(f"agent.conversation() takes {MESSAGES}")
        offered = self._parts.offered
        if tools is not None:
            by_name = {tool if isinstance(tool, str) else tool.name: tool for tool in offered}
            if strange := [name for name in tools if name not in by_name]:
                raise TaskError(f"agent.conversation() knows no tool {strange[0]!r}; tools() returned {[*by_name]}")
            offered = [by_name[name] for name in tools]
        chat, own_tools = self._parts.begin(messages, offered, reads_calls=bool(offered))
        chat.number = len(self._chats)
        self._chats.append(chat)
        return OwnConversation(self, chat, own_tools)

    # for the conversations

    async def sample(self, chat: AgentProgress, max_tokens: int | None) -> Turn:
        lease = self._parts.lease
        async with self._call():
            self.settle(chat)
            await self._note_turns()
            await self._stand_if_leaving()
            if self._begun >= lease.agent.max_turns:
                await self._limit(turns_ended(lease.agent))
            if sum(one.conversation.token_count for one in self._chats) >= SessionConfig.max_tokens:
                await self._limit(f"the segments reached {SessionConfig.max_tokens} tokens")
            sampling = with_turn_seed(lease.sampling, lease.sample_index, self._begun)
            if max_tokens is not None:
                sampling = evolve(sampling, max_tokens=min(sampling.max_tokens, max_tokens))
            self._begun += 1
            chat.max_tokens = max_tokens
            try:
                if not await self._give_saved(chat):
                    await sample_turn(chat, self._policy, sampling)
            except ContextExceeded as error:
                if not self._order:
                    raise
                await self._limit(context_ended(error))
            self._order.append(chat)
            self._unsettled.add(chat.number)
            if not has_calls(chat):
                self.settle(chat)
            return chat.turns[-1].model_copy(deep=True)

    async def call_tools(self, chat: AgentProgress, tools: Tools) -> list[ToolResult]:
        async with self._call():
            try:
                results = await self._call_new_or_again(chat, tools)
            except SandboxLost as error:
                names = " and ".join(sorted({str(call["name"]) for call in chat.turns[-1].tool_calls}))
                raise type(error)(
                    f"{error}; a call of {names or 'no tool'} was under way, which may be the cause"
                ) from error
            self.settle(chat)
            return results

    async def _call_new_or_again(self, chat: AgentProgress, tools: Tools) -> list[ToolResult]:
        if (saved := self._replay.taken(chat)) is None:
            return await call_tools(chat, tools)
        again = await call_again(chat, saved.turn, tools)
        if again.differs is not None:
            self._replay.differs(chat, again.differs)
        return again.results

    def settle(self, chat: AgentProgress) -> None:
        """Save the conversation's last turn, once: nothing more is added to the turn."""
        if chat.number in self._unsettled:
            self._unsettled.discard(chat.number)
            self._replay.settle(chat)
            if self._saver is not None:
                self._saver.goes_on(chat, self._spent())

    async def _give_saved(self, chat: AgentProgress) -> bool:
        """Give the conversation its saved turn, if it asks for it. Raises ResumeFailed."""
        if self._replay.over:
            return False
        self._asking += 1
        try:
            prompt = await prompt_ids_of(chat.conversation, None)
        finally:
            self._asking -= 1
        saved = self._replay.take(chat, prompt, alone=len(self._active) == 1, others_ask=self._asking > 0)
        if saved is None:
            if self._replay.over:
                await self._begin_new_turns()
            return False
        add_saved(chat, saved)
        timings = {**saved.turn.timings, "tools": 0.0}
        chat.turns.append(evolve(saved.turn, tool_results=[], failed_calls=None, timings=timings))
        failpoint("after-played-turn")
        return True

    async def _begin_new_turns(self) -> None:
        """Report where this run goes on, once. RUN's budget goes on where the given turns have ended: playing them again uses
        none of it."""
        limit, now = self._policy.failover.limit, asyncio.get_running_loop().time()
        if self._report is not None and limit is not None and not limit.expired():
            limit.reschedule(now + max(0.0, self._budget - self._replay.seconds))
        await self._report_replay()

    async def _report_replay(self) -> None:
        if (report := self._report) is not None:
            self._report = None
            failpoint("after-replay")
            await report(self._replay.replay, self._replay.stored)

    def _spent(self) -> float:
        """Return the seconds of the budget so far, with those of earlier leases."""
        ends = self._policy.failover.limit.when() if self._policy.failover.limit is not None else None
        if self._report is not None or ends is None:
            return self._replay.seconds
        return self._budget - (ends - asyncio.get_running_loop().time())

    async def _stand_if_leaving(self) -> None:
        """Wait for the cancellation if the rollout leaves its node, because the next turn may not end here in time."""
        if self._end_of_allocation is not None and self._saver is not None and not self._saver.stopped:
            spent = [sum(turn.timings.values()) for chat in self._chats for turn in chat.turns]
            if spent and self._end_of_allocation.is_near(LEAST_TURNS_LEFT * max(spent)):
                self._leaving = self._leaving or AllocationEnds(self._end_of_allocation.reason)
        if self._leaving is not None:
            self._standing += 1
            self._pause_if_all_stand()
            await _cancelled()

    def _pause_if_all_stand(self) -> None:
        if self._leaving is not None and self._standing == len(self._active):
            self._paused.set()
            if not self._suspended:
                self._end(self._leaving)

    @contextlib.asynccontextmanager
    async def _call(self) -> AsyncIterator[None]:
        """Keep a fault of a call, and end the loop. Nothing returns from a call when the loop is over."""
        task = asyncio.current_task()
        assert task is not None
        self._active.add(task)
        try:
            if self._over.done():
                await _cancelled()
            yield
            if self._replay.over and not self._replay.is_open:
                await self._begin_new_turns()
        except RollyardError as error:
            self._end(error)
            await _cancelled()
        finally:
            self._active.discard(task)
            if self._active and not self._over.done():
                self._pause_if_all_stand()

    async def _limit(self, why: str) -> NoReturn:
        self._cut_short = self._cut_short or why
        self._end(None)
        await _cancelled()

    async def _note_turns(self) -> None:
        while self._noted < len(self._order):
            self._noted += 1
            await self._turn_ended(self._noted)

    def _end(self, fault: RollyardError | None) -> None:
        """End the loop. A fault of a role's model comes first: it is older, and the handler may have caught it."""
        if not self._over.done():
            self._over.set_result(None)
            self._fault = self.models.take_fault() or fault

    # for the lease

    async def turns(self) -> list[Turn]:
        """Return the turns so far, each with the index of its segment in `result`."""
        first, so_far = {}, 0
        for chat in self._chats:
            first[id(chat)] = so_far
            so_far += chat.conversation.segment_count
        own = {id(chat): iter(chat.turns) for chat in self._chats}
        ordered = [(first[id(chat)], next(own[id(chat)])) for chat in self._order]
        return [evolve(turn, segment=begin + turn.segment) for begin, turn in ordered]

    async def result(self) -> AgentResult:
        """Return the work so far."""
        breaks = Counter[str](one.cause for chat in self._chats for one in chat.conversation.breaks)
        return AgentResult(
            Status.COMPLETED if self._cut_short is None else Status.TRUNCATED,
            [segment for chat in self._chats for segment in chat.conversation.segments()],
            await self.turns(),
            dict(breaks),
            unread(sum(chat.unread for chat in self._chats)),
            overdue=self._overdue,
            cut_short=self._cut_short,
        )

    def save_with(self, saver: TurnSaver, end: AllocationEnd) -> None:
        """Save the turns from now on. The loop ends with AllocationEnds before `end`."""
        saver.begin(Tools(self._parts.offered, self._parts.sandbox, 0.0), held=self._report is not None)
        self._saver, self._end_of_allocation = saver, end

    def play_again(self, saved: Sequence[SavedTurn], report: ReportReplay) -> None:
        """Give the saved turns of an earlier lease to the loop, as long as it asks for them. `report` is called once, when all
        are given or dropped, with the number of turns that stay on the server as they are."""
        spec = self._parts.sandbox.spec
        self._replay = LoopReplay(saved, spec.host_network or bool(spec.allowed_hosts))
        self._report = report

    async def suspend(self, grace: float) -> None:
        """Stop the work at the next turn, if that is at most `grace` seconds away, and wait until the server has the turns."""
        if self._saver is None:
            return
        self._leaving, self._suspended = self._leaving or AllocationEnds(""), True
        await wait_or_timeout(self._paused, grace)
        if not self.ended:
            await self._saver.flush()

    async def run(self, budget: float) -> AgentResult:
        """Run the loop to its end, or for `budget` seconds, in which the turns of earlier leases count. Raises the fault of a
        call, StageTimeout if playing saved turns again takes longer, and as `GuardedHandler.agent_loop`."""
        self._budget = budget
        loop = asyncio.create_task(self._loop())
        try:
            async with asyncio.timeout(budget) as self._policy.failover.limit:
                try:
                    await asyncio.wait({loop, self._over}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    self._end(None)
                    self.ended = True
                    self._paused.set()
                    await self._stop(loop)
        except TimeoutError:
            if self._report is not None and len(self._order) == self._replay.replay.kept:
                raise StageTimeout(f"playing saved turns again took more than {budget:g} s") from None
            self._overdue, self._cut_short = True, self._cut_short or budget_ended(budget)
        raised = _raised(loop)
        error = self._fault or (raised if self._cut_short is None else None)
        if isinstance(error, AllocationEnds) and self._saver is not None:
            await self._saver.flush()
        if isinstance(error, RoleBudgetUsed):
            self._cut_short = str(error)
        elif error is not None:
            raise error
        self._replay.end("the loop ended before it")
        await self._report_replay()
        return await self.result()

    async def _loop(self) -> None:
        await self._handler.agent_loop(self._parts.lease.task, self._parts.sandbox, self)
        if not self._over.done():
            async with self._call():
                await self._note_turns()

    async def _stop(self, loop: asyncio.Task[None]) -> None:
        """End the loop, with all calls. Raises HandlerFailed if it goes on."""
        left = {loop, *self._active}
        for _ in range(END_TRIES):
            for task in left:
                task.cancel()
            _, left = await asyncio.wait(left, timeout=1.0)
            if not left:
                self.models.take_fault()  # the call of a role's model that was cancelled here
                return
        raise HandlerFailed("agent_loop() goes on although it was cancelled: let asyncio.CancelledError pass")


class OwnConversation:
    """One conversation of the loop (`rollyard.tasks.base.AgentConversation`)."""

    def __init__(self, run: OwnLoopRun, chat: AgentProgress, tools: Tools) -> None:
        self._run = run
        self._chat = chat
        self._tools = tools
        self._in_call = False
        self._answered = True
        """Whether the last turn has no calls that are still to run."""

    async def sample(self, max_tokens: int | None = None) -> Turn:
        if max_tokens is not None and max_tokens < 1:
            raise TaskError(f"sample(max_tokens={max_tokens}): give at least 1")
        with self._one_at_a_time():
            turn = await self._run.sample(self._chat, max_tokens)
        self._answered = not has_calls(self._chat)
        return turn

    async def call_tools(self) -> list[ToolResult]:
        if self._answered:
            return []
        with self._one_at_a_time():
            self._answered = True
            return await self._run.call_tools(self._chat, self._tools)

    def add(self, *messages: Message) -> None:
        if not are_messages(messages):
            raise TaskError(f"add() takes messages, as {MESSAGES} has them")
        with self._one_at_a_time():
            self._run.settle(self._chat)
            self._chat.conversation.add_messages(messages)
            self._answered = True

    @contextlib.contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        if self._in_call:
            raise TaskError("a conversation does one thing at a time; begin another one with agent.conversation()")
        self._in_call = True
        try:
            yield
        finally:
            self._in_call = False


def has_calls(chat: AgentProgress) -> bool:
    """Whether the last turn has calls to run. Those of a turn that was cut off are not run."""
    parsed = chat.conversation.last.parsed
    return chat.turns[-1].finish_reason != "length" and (bool(parsed.calls) or parsed.error is not None)


def _raised(loop: asyncio.Task[None]) -> BaseException | None:
    if loop.cancelled():
        return HandlerFailed("agent_loop() cancelled itself; to end the conversation, return")
    return loop.exception()


async def _cancelled() -> NoReturn:
    """Wait for the cancellation that ends the loop."""
    while True:
        await asyncio.get_running_loop().create_future()
