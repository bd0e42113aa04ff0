"""A task handler's own loop. The handler decides what comes next; every turn is sampled, recorded and limited here.

A limit or a fault ends the loop by cancelling it. So a handler cannot go on after a limit, and cannot swallow a fault.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any, NoReturn

from rollyard.core.errors import ContextExceeded, HandlerFailed, RoleBudgetUsed, RollyardError, TaskError
from rollyard.gateway.session.session_config import SessionConfig
from rollyard.kinds.base import evolve
from rollyard.kinds.rollout import Status
from rollyard.node.agent_loop import (
    AgentProgress,
    call_tools,
    context_ended,
    sample_turn,
    turns_ended,
    with_turn_seed,
)
from rollyard.node.agent_run import AgentResult, LoopParts, budget_ended, unread
from rollyard.node.lease_models import LeaseModels
from rollyard.node.lease_sampler import LeaseSampler
from rollyard.node.tool_execution import Tools
from rollyard.tasks.base import Message
from rollyard.tasks.guarded_handler import MESSAGES, GuardedHandler, are_messages
from rollyard.tasks.own_tools import ToolResult
from rollyard.trajectory import Turn

END_TRIES = 5
"""Number of times that a loop is cancelled, with a second between them, until it counts as one that does not end."""


class OwnLoopRun:
    """One run of the loop. The handler gets this object as its agent."""

    def __init__(self, handler: GuardedHandler, parts: LoopParts, policy: LeaseSampler, models: LeaseModels) -> None:
        self.models = models
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
        self._chats.append(chat)
        return OwnConversation(self, chat, own_tools)

    # for the conversations

    async def sample(self, chat: AgentProgress, max_tokens: int | None) -> Turn:
        lease = self._parts.lease
        async with self._call():
            await self._note_turns()
            if self._begun >= lease.agent.max_turns:
                await self._limit(turns_ended(lease.agent))
            if sum(one.conversation.token_count for one in self._chats) >= SessionConfig.max_tokens:
                await self._limit(f"the segments reached {SessionConfig.max_tokens} tokens")
            sampling = with_turn_seed(lease.sampling, lease.sample_index, self._begun)
            if max_tokens is not None:
                sampling = evolve(sampling, max_tokens=min(sampling.max_tokens, max_tokens))
            self._begun += 1
            try:
                await sample_turn(chat, self._policy, sampling)
            except ContextExceeded as error:
                if not self._order:
                    raise
                await self._limit(context_ended(error))
            self._order.append(chat)
            return chat.turns[-1].model_copy(deep=True)

    async def call_tools(self, chat: AgentProgress, tools: Tools) -> list[ToolResult]:
        async with self._call():
            return await call_tools(chat, tools)

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
        except RollyardError as error:
            self._end(error)
            await _cancelled()
        finally:
            self._active.discard(task)

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

    async def run(self, budget: float, turn_ended: Callable[[int], Awaitable[None]]) -> AgentResult:
        """Run the loop to its end, or for `budget` seconds. Raises the fault of a call, and as `GuardedHandler.agent_loop`."""
        self._turn_ended = turn_ended
        loop = asyncio.create_task(self._loop())
        try:
            async with asyncio.timeout(budget) as self._policy.failover.limit:
                try:
                    await asyncio.wait({loop, self._over}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    self._end(None)
                    await self._stop(loop)
        except TimeoutError:
            self._overdue, self._cut_short = True, self._cut_short or budget_ended(budget)
        raised = _raised(loop)
        error = self._fault or (raised if self._cut_short is None else None)
        if isinstance(error, RoleBudgetUsed):
            self._cut_short = str(error)
        elif error is not None:
            raise error
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
        parsed = self._chat.conversation.last.parsed
        cut = turn.finish_reason == "length"  # then calls are not run
        self._answered = cut or (not parsed.calls and parsed.error is None)
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


def _raised(loop: asyncio.Task[None]) -> BaseException | None:
    if loop.cancelled():
        return HandlerFailed("agent_loop() cancelled itself; to end the conversation, return")
    return loop.exception()


async def _cancelled() -> NoReturn:
    """Wait for the cancellation that ends the loop."""
    while True:
        await asyncio.get_running_loop().create_future()
