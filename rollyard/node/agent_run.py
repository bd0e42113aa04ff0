"""The agent's part of RUN: the built-in loop, or a command in the sandbox."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from rollyard.core.aio import wait_or_timeout
from rollyard.core.errors import AllocationEnds, Invalid, ResumeFailed, SandboxLost, StageTimeout, TaskError
from rollyard.core.failpoints import failpoint
from rollyard.gateway.session.saved_calls import SavedCalls
from rollyard.gateway.session.session import GatewaySession
from rollyard.gateway.session.session_config import SessionConfig
from rollyard.gateway.session.stored_call import StoredCall
from rollyard.kinds.resumption import Resumption
from rollyard.kinds.rollout import ForkPoint, Status
from rollyard.kinds.rollout_pool import POLICY_ROLE
from rollyard.node.agent_loop import AgentProgress, run_agent
from rollyard.node.allocation_end import AllocationEnd
from rollyard.node.call_saver import CallSaver
from rollyard.node.fork import go_on_from
from rollyard.node.harness import Harness
from rollyard.node.lease_models import LeaseModels
from rollyard.node.lease_sampler import LeaseSampler
from rollyard.node.own_tools import OwnTool
from rollyard.node.replay import Replay, play_again
from rollyard.node.resume_snapshots import ResumeSnapshots
from rollyard.node.tool_execution import Tools
from rollyard.node.turn_saver import TurnSaver
from rollyard.sandbox.sandbox import Sandbox
from rollyard.tasks.base import Message, Reply
from rollyard.tasks.guarded_handler import GuardedEnvironment, GuardedHandler
from rollyard.tasks.tool_schemas import SCHEMAS
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.conversation import Conversation
from rollyard.tokens.tool_calls import parser_for
from rollyard.trajectory import Outcome, SavedTurn, Segment, Turn
from rollyard.wire.node import Lease
from rollyard.wire.tool_proof import ToolProof

ReportReplay = Callable[[Replay, int], Awaitable[None]]
"""Function that reports where a lease goes on, with the number of saved turns that stay on the server as they are."""
TurnEnded = Callable[[int], Awaitable[None]]
"""Function that is called after a turn, with its number."""
LEAST_TURNS_LEFT = 1.5
"""A rollout leaves its node agent if the time to the allocation's end is shorter than this many of its longest turn."""
REPLY_SECONDS = 30.0
"""Time that an environment's reply may take beyond RUN's budget. So a rollout that reaches the budget during a reply ends
Truncated with the reward of its last turn, and not without that reward."""


@dataclass(frozen=True)
class AgentResult:
    status: Status
    segments: list[Segment]
    turns: list[Turn]
    breaks: dict[str, int]
    metrics: dict[str, float] = field(default_factory=dict)
    overdue: bool = False
    """True if RUN's budget ended the work."""
    cut_short: str | None = None
    """Sentence that says which limit ended the work."""


@dataclass(frozen=True)
class LoopParts:
    """Parts that all conversations of one rollout share."""

    lease: Lease
    sandbox: Sandbox
    template: ChatTemplate
    offered: Sequence[str | OwnTool]
    """Tools of the task."""

    def begin(
        self, messages: Sequence[Message], offered: Sequence[str | OwnTool], *, reads_calls: bool
    ) -> tuple[AgentProgress, Tools]:
        """Begin a conversation with these tools. `reads_calls`: whether something in a turn counts as a call."""
        schemas = [SCHEMAS[tool] if isinstance(tool, str) else tool.schema for tool in offered]
        parser = parser_for(self.template, _parser_name(self.lease), schemas)
        conversation = Conversation(self.template, messages, schemas, parser=parser if reads_calls else None)
        tools = Tools(offered, self.sandbox, self.lease.agent.tool_timeout_seconds, parser.form)
        return AgentProgress(conversation), tools


class LoopRun:
    """The built-in loop."""

    def __init__(
        self,
        handler: GuardedHandler,
        parts: LoopParts,
        environment: GuardedEnvironment | None,
        policy: LeaseSampler,
        models: LeaseModels,
        turn_ended: TurnEnded,
    ) -> None:
        """`models`: models by role, which the environment may call."""
        self._turn_ended = turn_ended
        self._lease = parts.lease
        self._policy = policy
        self._environment = environment
        self._models = models
        opening = environment.opening if environment is not None else ()
        messages = [*handler.prompt(parts.lease.task), *opening]
        reads_calls = bool(parts.offered) or environment is None
        self._run, self._tools = parts.begin(messages, parts.offered, reads_calls=reads_calls)
        self._overdue = False
        self._sandbox = parts.sandbox
        self._saver: TurnSaver | None = None
        self._snapshots: ResumeSnapshots | None = None
        self._end: AllocationEnd | None = None
        self._budget = self._used = 0.0
        """Seconds of RUN, and those that earlier leases have used."""
        self._settled = 0
        """Number of turns after which the conversation went on."""
        self._calls_saved = 0
        """Number of calls of models by role that are saved with turns, or were made before the first one."""
        self._leaving = self.ended = False
        self._paused = asyncio.Event()
        """Set when the loop stands between two turns for good, or has ended."""

    async def go_on_from(self, ancestors: Sequence[tuple[ForkPoint, Outcome]]) -> None:
        """Begin with the turns of other rollouts. Raises as `fork.go_on_from`."""
        await asyncio.to_thread(go_on_from, self._run, ancestors)

    async def play_again(self, saved: Sequence[SavedTurn], begun_with: int) -> Replay:
        """Begin with the saved turns of an earlier lease. The environment has the state after all of them. Raises as
        `replay.play_again`."""
        spec = self._sandbox.spec
        has_network = spec.host_network or bool(spec.allowed_hosts)
        replay = await play_again(self._run, saved, self._tools, begun_with, has_network, self._turn_ended)
        self._settled = replay.kept
        if replay.kept:
            last = saved[replay.kept - 1]
            self._used, self._run.environment, self._run.role_calls = (
                last.run_seconds,
                last.environment,
                last.role_calls,
            )
        if self._environment is not None:
            if replay.kept < len(saved):
                await restore(self._environment, saved[: replay.kept])
            self._models.go_on_after([call for one in saved[: replay.kept] for call in one.role_calls])
        return replay

    def report(self, saver: TurnSaver, resumption: Resumption, *, changed: bool) -> None:
        """`changed`: the last turn is another than the saved one."""
        saver.resume(resumption, resumption.turn)
        if changed:
            saver.replace_last(self._run, self._used)

    def save_with(self, saver: TurnSaver, snapshots: ResumeSnapshots, end: AllocationEnd) -> None:
        """Save the turns from now on, and snapshots when they are due. The loop ends with AllocationEnds before `end`."""
        saver.begin(self._tools)
        self._saver, self._snapshots, self._end = saver, snapshots, end
        self._calls_saved = len(self._models.calls)

    async def suspend(self, grace: float, longest: float) -> None:
        """Stop the work, and save what another node agent needs to go on. A turn that is under way is finished first, if it
        takes no longer than `grace` seconds, or than `longest` seconds if no snapshot is needed."""
        if self._saver is None or self._snapshots is None:
            return
        if self._leaving:
            await self._paused.wait()
            return
        self._leaving = True
        ended = await wait_or_timeout(self._paused, grace)
        if not ended and not self._snapshots.needed(self._run.turns[: self._settled]):
            ended = await wait_or_timeout(self._paused, longest - grace)
        if not ended:
            if self._settled < len(self._run.turns):  # a call runs, so the files are those of no turn
                await self._saver.flush()
                return
            self._tools.hold()
        if not self.ended:
            await self._save_all(self._saver, self._snapshots)

    async def _save_all(self, saver: TurnSaver, snapshots: ResumeSnapshots) -> None:
        await snapshots.finish(self._run.turns[: self._settled])
        await saver.flush()

    async def _goes_on(self) -> None:
        if self._saver is not None and not self._saver.stopped and self._environment is not None:
            await self._save_environment(self._environment, self._saver)
        self._settled = len(self._run.turns)
        if self._saver is not None and self._snapshots is not None:
            self._saver.goes_on(self._run, self._spent())
            await self._snapshots.turn_saved(self._run)
            if not self._leaving and self._end is not None and self._leaves(self._end, self._saver):
                self._leaving = True
                await self._save_all(self._saver, self._snapshots)
                raise AllocationEnds(self._end.reason)
        if self._leaving:
            self._paused.set()
            await asyncio.Event().wait()  # until this task is cancelled

    def _leaves(self, end: AllocationEnd, saver: TurnSaver) -> bool:
        """Whether the next turn may not end here in time. What cannot be saved stays: it may end in time."""
        longest = max(sum(turn.timings.values()) for turn in self._run.turns)
        return not saver.stopped and end.is_near(LEAST_TURNS_LEFT * longest)

    async def _save_environment(self, environment: GuardedEnvironment, saver: TurnSaver) -> None:
        calls = self._models.calls
        self._run.role_calls, self._calls_saved = calls[self._calls_saved :], len(calls)
        try:
            self._run.environment = await environment.state()
        except (TaskError, Invalid) as error:  # the game goes on
            saver.stop(f"the environment cannot be saved: {error}")

    def _spent(self) -> float:
        """Return the seconds of the budget so far, with those of earlier leases."""
        ends = self._policy.failover.limit.when() if self._policy.failover.limit is not None else None
        return self._budget - (ends - asyncio.get_running_loop().time()) if ends is not None else self._used

    def _under_way(self) -> str:
        number, calling = len(self._run.turns), self._settled < len(self._run.turns)
        if not calling:
            return f"turn {number + 1} was being sampled, so no call was under way"
        names = " and ".join(sorted({str(call["name"]) for call in self._run.turns[-1].tool_calls}))
        return f"a call of {names or 'no tool'} in turn {number} was under way, which may be the cause"

    async def turns(self) -> list[Turn]:
        """Return the turns so far."""
        return list(self._run.turns)

    async def result(self) -> AgentResult:
        """Return the work so far."""
        run = self._run
        breaks: Counter[str] = Counter(one.cause for one in run.conversation.breaks)
        return AgentResult(
            run.status,
            run.conversation.segments(),
            run.turns,
            dict(breaks),
            unread(run.unread),
            overdue=self._overdue,
            cut_short=run.cut_short,
        )

    async def run(self, budget: float) -> AgentResult:
        """Run the loop to its end, or for `budget` seconds, in which the turns of earlier leases count. Raises as
        `run_agent`."""
        lease, policy = self._lease, self._policy
        self._budget = budget
        try:
            async with asyncio.timeout(max(0.0, budget - self._used)) as limit:
                policy.failover.limit = limit
                environment, replies = self._environment, None
                if environment is not None:
                    replies = _UncutReplies(environment, limit, budget, self._models, self._tools)
                work, tools = self._run, self._tools
                of_lease = (lease.agent, lease.sampling, lease.sample_index)
                await run_agent(work, policy, tools, *of_lease, replies, self._turn_ended, self._goes_on)
        except SandboxLost as error:
            raise type(error)(f"{error}; {self._under_way()}") from error
        except TimeoutError:
            self._run.status, self._overdue, self._run.cut_short = Status.TRUNCATED, True, budget_ended(budget)
        finally:
            self.ended = True
            self._paused.set()
        return await self.result()


class CommandRun:
    """A command in the sandbox, whose model calls a gateway answers."""

    def __init__(
        self,
        lease: Lease,
        handler: GuardedHandler,
        sandbox: Sandbox,
        template: ChatTemplate,
        tools: ToolProof,
        policy: LeaseSampler,
        saver: TurnSaver,
        end: AllocationEnd,
    ) -> None:
        """`tools`: whether calls under this template are read. `saver`, `end`: as of `save`."""
        self._lease = lease
        self._policy = policy
        self._prompt = handler.prompt(lease.task)
        agent = lease.agent
        # an unknown parser is a fault of the request, so it is reported here and not in a model call
        parser_for(template, _parser_name(lease))
        config = SessionConfig(
            model=lease.endpoints[POLICY_ROLE].model,
            sampling=lease.sampling,
            fixed=agent.sampling == "rollout",
            max_calls=agent.max_turns,
            tool_parser=_parser_name(lease),
            tools=tools,
            sample_index=lease.sample_index,
            context=lease.budgets.context_tokens,
        )
        self._saver = saver
        self._calls = CallSaver(saver, end, self._spent, self._leave)
        self._session = GatewaySession(secrets.token_hex(16), template, policy, config, journal=self._calls)
        self._saved: SavedCalls | None = None
        self._budget = self._used = 0.0
        self.harness = Harness(sandbox, self._session)
        self._status = Status.TRUNCATED
        self._metrics: dict[str, float] = {}
        self._overdue = True
        self.ended = False
        self._cut_short: str | None = None

    @property
    def tools_refused(self) -> bool:
        """Whether a model call was refused because it offered tools."""
        return self._session.tools_refused

    async def turns(self) -> list[Turn]:
        """Return the turns so far."""
        return await self._session.run_serialized(self._session.turns)

    async def result(self) -> AgentResult:
        """Return the work so far, after the thread of a cancelled model call has ended."""
        one = self._session
        return await one.run_serialized(
            lambda: AgentResult(
                self._status,
                one.segments(),
                one.turns(),
                one.breaks(),
                {**self._metrics, **unread(one.unread_calls)},
                overdue=self._overdue,
                cut_short=self._cut_short,
            )
        )

    def play_again(self, saved: Sequence[SavedTurn], report: ReportReplay) -> None:
        """Answer the command's requests with the saved calls of an earlier lease, as long as they are the same. `report`: as of
        `OwnLoopRun.play_again`."""

        async def report_calls(given: int, why: str | None) -> None:
            limit, now = self._policy.failover.limit, asyncio.get_running_loop().time()
            self._used = saved[given - 1].run_seconds if given else 0.0
            if limit is not None and not limit.expired():
                limit.reschedule(now + max(0.0, self._budget - self._used))
            failpoint("after-replay")
            await report(Replay(given, given, why), given)

        calls = [StoredCall.from_json(one.call) for one in saved if one.call is not None]
        self._saved = SavedCalls(calls, report_calls)
        self._session.answer_again(self._saved)

    def save(self) -> None:
        """Save the calls from now on. The command ends with AllocationEnds before the end of the allocation."""
        self._saver.begin(None, held=self._saved is not None)

    async def suspend(self, grace: float) -> None:
        """Wait until the server has the calls. One that is under way is finished first, if it takes no longer than `grace`
        seconds; the command gets no more answers."""
        self._calls.leaving = True
        if self._session.in_flight:
            await wait_or_timeout(self._calls.paused, grace)
        if not self.ended:
            await self._saver.flush()

    def _leave(self, reason: str) -> None:
        if not self._session.failure.done():
            self._session.failure.set_result(AllocationEnds(reason))

    def _spent(self) -> float:
        """Return the seconds of the budget so far, with those of earlier leases."""
        ends = self._policy.failover.limit.when() if self._policy.failover.limit is not None else None
        return self._budget - (ends - asyncio.get_running_loop().time()) if ends is not None else self._used

    async def run(self, budget: float) -> AgentResult:
        """Run the command to its end, or for `budget` seconds, in which the calls of earlier leases count. Then it is stopped,
        and the tokens sampled so far are kept. Raises as `Harness.run`, and StageTimeout if saved calls are left then."""
        self._cut_short, self._budget = budget_ended(budget), budget
        try:
            async with asyncio.timeout(budget) as self._policy.failover.limit:
                self._status, code = await self.harness.run(self._lease.agent, self._prompt)
                self._metrics = {"harness_exit_code": float(code)} if code is not None else {}
                self._overdue, self._cut_short = False, self.harness.cut_short
                if self._saved is not None:
                    await self._saved.end("the command ended before it")
        except TimeoutError:
            if self._saved is not None and not self._saved.ended:
                raise StageTimeout(f"answering saved calls again took more than {budget:g} s") from None
        finally:
            self.ended = True
            self._calls.paused.set()
        return await self.result()


async def restore(environment: GuardedEnvironment, saved: Sequence[SavedTurn]) -> None:
    """Put the environment into the state after the last of these turns. Raises ResumeFailed."""
    state = saved[-1].environment if saved else None
    if state is None:
        raise ResumeFailed("no saved state of the environment fits the turns that are kept")
    try:
        await environment.restore(state)
        failpoint("after-environment-restore")
    except (TaskError, Invalid) as error:
        raise ResumeFailed(f"the environment cannot be restored: {error}") from None


def _parser_name(lease: Lease) -> str | None:
    """Return the name of the parser of calls; None: the parser that fits the template."""
    return lease.agent.tool_parser or lease.endpoints[POLICY_ROLE].tool_parser


def unread(count: int) -> dict[str, float]:
    """Return the metric for turns with a tool call that could not be read."""
    return {"unread_tool_calls": float(count)} if count else {}


def budget_ended(budget: float) -> str:
    return f"RUN's budget of {budget:g} s ended"


class _UncutReplies:
    """An environment whose reply RUN's budget does not cut off. The budget ends the run after the reply. The time of role
    models is not part of the budget, because the agent did not cause it."""

    def __init__(
        self,
        environment: GuardedEnvironment,
        limit: asyncio.Timeout,
        budget: float,
        models: LeaseModels,
        tools: Tools,
    ) -> None:
        self.opening = environment.opening
        self.every_turn = environment.every_turn
        self.close = environment.close
        self._environment = environment
        self._limit = limit
        self._budget = budget
        self._models = models
        self._tools = tools

    async def reply(self, turn: Turn) -> Reply | None:
        """Raises StageTimeout if the reply takes REPLY_SECONDS longer than the budget."""
        await self._tools.free()
        ends, loop = self._limit.when(), asyncio.get_running_loop()
        assert ends is not None
        began, waited = loop.time(), self._models.seconds
        self._limit.reschedule(None)
        try:
            async with asyncio.timeout_at(max(ends, loop.time()) + REPLY_SECONDS):
                return await self._environment.reply(turn)
        except TimeoutError:
            raise StageTimeout(
                f"the environment did not reply within RUN's budget of {self._budget:g} s and {REPLY_SECONDS:g} s more"
            ) from None
        finally:
            self._limit.reschedule(ends + min(self._models.seconds - waited, loop.time() - began))
