"""The built-in agent loop: sample a turn, run the turn's tool calls or let the task's environment reply, and so on. A task
handler's own loop (`own_loop.py`) is made of the same turns and calls.

The loop ends when a turn has no call and gets no reply, when a reply or a tool's result is the last one, or when a limit is
reached.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from rollyard.core.errors import ContextExceeded, RoleBudgetUsed
from rollyard.kinds.base import evolve
from rollyard.kinds.rollout import AgentSpec, Sampling, Status
from rollyard.node.tool_execution import Tools
from rollyard.tasks import tool_results
from rollyard.tasks.base import Environment, Reply
from rollyard.tasks.own_tools import ToolResult
from rollyard.tokens.constraint import STRUCTURED, is_constrained
from rollyard.tokens.conversation import Conversation
from rollyard.tokens.sampled_tokens import Sampled
from rollyard.tokens.tool_calls import ParsedTurn
from rollyard.trajectory import Turn
from rollyard.trajectory.role_call import RoleCall


class Policy(Protocol):
    @property
    def context(self) -> int | None:
        """Number of tokens that prompt and answer may have together; None if it is not known."""

    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling) -> Sampled:
        """Sample one turn. Raises ContextExceeded if no further token fits, EndpointError or NoEndpoint if no server can
        be used, and Fenced if the lease is void."""


@dataclass
class AgentProgress:
    """The agent's work so far. The object stays valid if the loop is cancelled."""

    conversation: Conversation
    turns: list[Turn] = field(default_factory=list)
    unread: int = 0
    """Number of turns with a tool call that could not be read."""
    status: Status = Status.TRUNCATED
    """`TRUNCATED` until a turn has no tool call and so ends the conversation."""
    cut_short: str | None = None
    """Sentence that says which limit ended the conversation."""
    reply_role: Literal["user", "tool"] = "user"
    """Role of the message with the environment's reply to the last turn."""
    environment: str | None = None
    """State of the environment after the last turn, where it can be saved."""
    role_calls: Sequence[RoleCall] = ()
    """Calls of models by role since the turn before."""
    number: int = 0
    """Number of the conversation, if a task kind's own loop has several."""
    max_tokens: int | None = None
    """Greatest length of the last turn that a task kind's own loop asked for."""


async def run_agent(
    run: AgentProgress,
    policy: Policy,
    tools: Tools,
    agent: AgentSpec,
    sampling: Sampling,
    sample_index: int,
    environment: Environment | None = None,
    turn_ended: Callable[[int], Awaitable[None]] | None = None,
    goes_on: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Fill `run` turn by turn, behind the turns that it has. A limit that is reached after the first prompt ends the run as
    Truncated. `turn_ended` is called after each turn with the turn's number, counted from 1; `goes_on` after each turn that
    does not end the conversation.

    If the conversation has no parser, nothing in a turn counts as a tool call.

    Raises SandboxLost, and the errors of `policy.sample`, of `environment.reply` and of a handler's own tools; ContextExceeded
    only if the first prompt leaves no room for a token. Raises TaskError or TemplateUnusable if the chat template fails.
    """
    for number in range(len(run.turns), agent.max_turns):
        try:
            parsed = await sample_turn(run, policy, with_turn_seed(sampling, sample_index, number))
        except ContextExceeded as error:
            if not run.turns:
                raise
            run.cut_short = context_ended(error)
            return
        turn, submitted = run.turns[-1], False
        cut, answers = turn.finish_reason == "length", not parsed.calls and parsed.error is None
        if not cut and not answers:
            submitted = any(result.done for result in await call_tools(run, tools))
        reply = None
        if environment is not None and (answers or environment.every_turn):
            try:
                reply = await _record_reply(run, environment)
            except RoleBudgetUsed as error:
                run.cut_short = str(error)
                return
        if turn_ended is not None:
            await turn_ended(number + 1)
        if cut:
            length = turn.response_length
            limit = "`sampling.max_tokens`" if length >= sampling.max_tokens else "the end of the context"
            run.cut_short = f"turn {len(run.turns)} was cut off after {length} tokens, by {limit}"
            return
        observation = reply.text if reply is not None else None
        if submitted or (reply is not None and reply.done) or (observation is None and answers):
            run.status = Status.COMPLETED
            return
        if reply is not None and observation is not None:
            run.conversation.add_reply(reply.role, observation)
            run.reply_role = reply.role
        if goes_on is not None:
            await goes_on()
    run.cut_short = turns_ended(agent)


async def sample_turn(run: AgentProgress, policy: Policy, sampling: Sampling) -> ParsedTurn:
    """Sample the next turn, add it to the conversation and to the turns, and return what it says. Raises as `run_agent`, and
    ContextExceeded if no further token fits."""
    started = time.monotonic()
    prompt: list[int] = []
    try:
        prompt = await prompt_ids_of(run.conversation, policy.context)
        sample = await policy.sample(prompt, sampling)
    except ContextExceeded as error:
        if run.turns:
            raise
        count = len(prompt) if error.tokens is None else f"at least {error.tokens}"
        message = f"the prompt has {count} tokens and leaves no room for an answer: {error}"
        raise ContextExceeded(message, context=error.context) from error
    text = run.conversation.add_sampled(
        sample.token_ids, sample.logprobs, sample.weights_versions, sample.finish_reason
    )
    parsed = run.conversation.last.parsed
    run.turns.append(
        Turn(
            constraint=STRUCTURED if is_constrained(sampling) else None,
            segment=run.conversation.segment_count - 1,
            prompt_length=len(prompt),
            response_length=len(sample.token_ids),
            text=text,
            finish_reason=sample.finish_reason,
            tool_calls=calls_of(parsed),
            timings={"model": round(time.monotonic() - started, 6), "tools": 0.0},
        )
    )
    run.unread += parsed.error is not None
    return parsed


async def call_tools(run: AgentProgress, tools: Tools) -> list[ToolResult]:
    """Run the calls of the last turn, and append their results, and a message about an unreadable call. Return what the model
    reads. Raises as `Tools.call`."""
    parsed, began = run.conversation.last.parsed, time.monotonic()
    done = [await tools.call(c.name, c.arguments) for c in parsed.calls]
    found = result_texts(run, parsed, [result.text for result in done])
    append_results(run, found)
    turn = run.turns[-1]
    timings = {**turn.timings, "tools": round(time.monotonic() - began, 6)}
    run.turns[-1] = evolve(turn, tool_results=found.all, failed_calls=failed_calls(done, found), timings=timings)
    return results_of(found, done)


def turns_ended(agent: AgentSpec) -> str:
    return f"the agent used all of its turns; `agent.max_turns` is {agent.max_turns}"


def context_ended(error: ContextExceeded) -> str:
    return f"the conversation reached the end of the context: {error}"


async def _record_reply(run: AgentProgress, environment: Environment) -> Reply | None:
    """Let the environment reply to the last turn, and add the reply to the turn."""
    turn, began = run.turns[-1], time.monotonic()
    reply = await environment.reply(turn)
    timings = {**turn.timings, "environment": round(time.monotonic() - began, 6)}
    if reply is None:
        run.turns[-1] = evolve(turn, timings=timings)
    else:
        run.turns[-1] = evolve(turn, observation=reply.text, reward=reply.reward, timings=timings)
    return reply


async def prompt_ids_of(conversation: Conversation, context: int | None) -> list[int]:
    """Tokenise the prompt in a thread. A prompt of a million characters takes seconds, and the event loop must renew
    leases meanwhile.

    A thread cannot be stopped. A cancelled call waits for the end of the thread, because the thread changes the
    conversation, and the caller reads the conversation next.
    """
    making = asyncio.ensure_future(asyncio.to_thread(conversation.prompt_ids, context))
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        await asyncio.gather(making, return_exceptions=True)
        raise


def calls_of(parsed: ParsedTurn) -> list[dict[str, Any]]:
    """Return the calls of a turn as they are in the trajectory."""
    return [{"name": c.name, "arguments": c.arguments} for c in parsed.calls]


@dataclass(frozen=True, slots=True)
class ResultTexts:
    """Texts that the model reads after a turn with calls."""

    results: list[str]
    """One text for each call."""
    wrong: str | None = None
    """Message about an unreadable call."""

    @property
    def all(self) -> list[str]:
        return self.results if self.wrong is None else [*self.results, self.wrong]


def result_texts(run: AgentProgress, parsed: ParsedTurn, results: list[str]) -> ResultTexts:
    """Return the results of the turn's calls, with a message about an unreadable call."""
    parser, wrong = run.conversation.parser, None
    if parser is not None and parsed.error is not None:
        wrong = tool_results.malformed_call_result(parsed.error, parser.form)
    if wrong is not None and results and run.conversation.error_role == "user":
        # Mistral's template refuses a user message directly after tool results. So for every error role `user` the
        # message is appended to the last result.
        results, wrong = [*results[:-1], f"{results[-1]}\n{wrong}"], None
    return ResultTexts(results, wrong)


def failed_calls(done: Sequence[ToolResult], texts: ResultTexts) -> list[int]:
    """Return the places of the results of failed calls. An unreadable call is one."""
    failed = [place for place, result in enumerate(done) if result.failed]
    return failed if texts.wrong is None else [*failed, len(texts.results)]


def results_of(texts: ResultTexts, done: Sequence[ToolResult]) -> list[ToolResult]:
    """Return what the model reads, with the results that end the conversation."""
    ends = [result.done for result in done] + [False] * (len(texts.all) - len(done))
    return [ToolResult(text, done) for text, done in zip(texts.all, ends, strict=True)]


def append_results(run: AgentProgress, texts: ResultTexts) -> None:
    run.conversation.add_results(texts.results)
    if texts.wrong is not None:
        run.conversation.add_messages([{"role": run.conversation.error_role, "content": texts.wrong}])


def with_turn_seed(sampling: Sampling, sample_index: int, turn: int) -> Sampling:
    """Replace the seed, if there is one, by a seed for this turn and sample index. The new seed is the same in every
    attempt."""
    if sampling.seed is None:
        return sampling
    return evolve(sampling, seed=zlib.crc32(f"{sampling.seed}/{sample_index}/{turn}".encode()))
