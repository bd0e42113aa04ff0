"""One agent's session: its calls become turns and segments, on the endpoint that the session keeps."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Protocol, TypeVar

from rollyard.core.byte_budget import ByteBudget
from rollyard.core.errors import (
    AnswerRefused,
    ContextExceeded,
    EndpointRefused,
    RollyardError,
    TaskError,
    TemplateUnusable,
)
from rollyard.gateway.requests.call_errors import (
    GatewayError,
    bad_request,
    prompt_too_long,
    session_gone,
    template_unusable,
    token_limit,
    too_long,
    too_many,
    turn_limit,
    unavailable,
)
from rollyard.gateway.requests.chat_request import ChatRequest, ChatResponse, ChatToolCall, assistant_message
from rollyard.gateway.requests.sampling_overrides import SamplingOverrides, merge_sampling
from rollyard.gateway.session.chat_history import ChatBranch, ChatHistory, PreparedChat
from rollyard.gateway.session.prompt_history import PreparedPrompt, PromptBranch, PromptHistory
from rollyard.gateway.session.serial_executor import SerialExecutor
from rollyard.gateway.session.session_config import SessionConfig
from rollyard.gateway.session.streaming_text import StreamingText
from rollyard.kinds.base import evolve
from rollyard.kinds.rollout import Sampling, Segment, Turn
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.sampled_tokens import Sampled
from rollyard.tokens.tool_calls import ParsedTurn, ToolCallParser, parse_safely, parser_for

log = logging.getLogger(__name__)

T = TypeVar("T")
SendText = Callable[[str], Awaitable[None]]
"""Function that is called with each piece of text as it arrives."""
LEAST_HELD, LARGEST_HELD = 64 << 20, 4
"""Limits for the requests of one session in memory: at least this many bytes, and at least this multiple of the longest one."""
CHARACTERS_A_TOKEN = 4


class SessionSampler(Protocol):
    async def sample(
        self, prompt_ids: Sequence[int], sampling: Sampling, on_progress: Callable[[Sequence[int]], None] | None = None
    ) -> Sampled:
        """Sample one turn, also if endpoints fail meanwhile. Raises ContextExceeded, EndpointRefused, and errors that
        end the session."""
        ...


class GatewaySession:
    """Accepts parallel calls. A fault that the callers did not cause ends the session and is kept in `failure`."""

    def __init__(
        self,
        id: str,
        template: ChatTemplate,
        policy: SessionSampler,
        config: SessionConfig,
        executor: SerialExecutor | None = None,
        shared_budget: ByteBudget | None = None,
    ) -> None:
        """`executor`: renders and tokenises for this session only. `shared_budget`: the memory budget of all sessions
        of this process."""
        self.id = id
        self.config = config
        self.failure: asyncio.Future[RollyardError] = asyncio.get_running_loop().create_future()
        self.refused: EndpointRefused | None = None
        """The endpoint's last refusal of a request."""
        self.exceeded: ContextExceeded | None = None
        """The last error of a prompt that did not fit the context."""
        self.truncated = False
        """True: a limit of calls, of tokens or of the context was reached."""
        self.tokens = 0
        """Tokens of all segments together, prompts included."""
        self.opened_at = int(time.time())
        """Unix seconds."""
        self.last_used = time.monotonic()
        self.byte_budget = ByteBudget(max(LEAST_HELD, LARGEST_HELD * config.max_body), shared_budget)
        """Memory budget of the session's calls, held until they end."""
        self._template = template
        self._policy = policy
        self._chats = ChatHistory(template)
        self._prompts = PromptHistory(template)
        self._turns: list[tuple[ChatBranch | PromptBranch, Turn]] = []
        self._executor = executor or SerialExecutor()
        self._merged: tuple[SamplingOverrides, Sampling] | None = None
        """Overrides of the last call, and the sampling that resulted."""
        self._calls_begun = 0
        self._calls_in_progress = 0
        self._calls_admitted = 0
        """Number of calls that were answered or may still be answered."""
        self._in_flight: set[asyncio.Task[Sampled]] = set()
        self._closed = False

    # parts of a trajectory

    @property
    def calls(self) -> int:
        """Number of answered model calls."""
        return len(self._turns)

    @property
    def in_flight(self) -> int:
        """Number of admitted model calls that have not ended."""
        return self._calls_in_progress

    async def run_for_body(self, read: Callable[[], T], size: int) -> T:
        """Parse a request of `size` bytes, in a thread if it would block others."""
        return await self._executor.run(read, size)

    async def run_serialized(self, read: Callable[[], T]) -> T:
        """Return `read()` of the segments, turns and breaks; meanwhile no call changes them."""
        return await self._executor.run(read, CHARACTERS_A_TOKEN * self.tokens)

    def segments(self) -> list[Segment]:
        return [segment for branch in self._branches() for segment in branch.segments()]

    def turns(self) -> list[Turn]:
        """Turns in the order of their ends, each with the number of its segment."""
        first, so_far = {}, 0
        for branch in self._branches():
            first[id(branch)] = so_far
            so_far += branch.segment_count
        own = {id(branch): iter(branch.turns) for branch in self._branches()}
        ordered = [(branch, next(own[id(branch)])) for branch, _ in self._turns]
        return [evolve(turn, segment=first[id(b)] + turn.segment) for b, turn in ordered]

    def breaks(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for broken in (broken for branch in self._branches() for broken in branch.breaks):
            counts[broken.cause.value] = counts.get(broken.cause.value, 0) + 1
        return counts

    def close(self) -> None:
        """Refuse further calls; cancel those in flight."""
        self._closed = True
        for task in self._in_flight:
            task.cancel()
        if not self.failure.done():
            self.failure.cancel()

    # calls

    def check_limits(self, *, counts: bool = True) -> None:
        """Check the limits before a request is read. Raises GatewayError if no call can be answered any more.

        `counts`: the refusal marks the session as truncated.
        """
        self.last_used = time.monotonic()
        self._check_open()
        if self.failure.done():
            raise unavailable("this session has failed, not because of its caller; its rollout restarts")
        limit = self.config.max_calls
        if limit is not None and self._calls_admitted >= limit:
            self.truncated |= counts
            raise turn_limit(limit)
        if self.config.max_at_once is not None and self._calls_in_progress >= self.config.max_at_once:
            raise too_many(self.config.max_at_once)
        if self.tokens >= self.config.max_tokens:
            self.truncated |= counts
            raise token_limit(self.config.max_tokens)

    def _check_open(self) -> None:
        """Raise GatewayError once the session is closed: its reported trajectory must not change when a turn ends later."""
        if self._closed:
            raise session_gone("this session is closed")

    def too_large(self) -> GatewayError:
        """Return the error for a request longer than `config.max_body`."""
        message = f"a request may have at most {self.config.max_body} bytes; more do not fit into the context"
        self.exceeded, self.truncated = ContextExceeded(message), True
        return too_long(message)

    async def chat(self, asked: ChatRequest, on_text: SendText | None = None) -> ChatResponse:
        """Sample one turn of a conversation. Raises GatewayError."""
        parser = self._parser(asked)
        prepared = await self._prepare(asked)
        try:
            with self._admit(asked.overrides) as sampling:
                stops = sampling.stop or []
                decode, stop_ids = self._template.decode, self._template.stop_ids
                speech = StreamingText(
                    decode, stop_ids, stops, calls=bool(asked.tools), trim=True, lead=prepared.continued_ids
                )
                sampled, seconds = await self._sample(prepared.prompt, sampling, speech, on_text)
                answer = partial(self._record_turn, asked, parser, prepared, sampled, stops, seconds)
                said = await self._executor.run(answer, _characters(sampled), self._record_abandoned)
        except BaseException:
            self._executor.run_soon(partial(self._chats.release, prepared))
            raise
        if on_text is not None and (rest := speech.finish(said.content)):
            await on_text(rest)
        return said

    async def complete(
        self, prompt: str | Sequence[int], wanted: SamplingOverrides, on_text: SendText | None = None
    ) -> ChatResponse:
        """Sample one continuation of a prompt without messages. Raises GatewayError."""
        prepared = await self._executor.run(partial(self._prompts.prepare, prompt), len(prompt), self._prompts.release)
        try:
            with self._admit(wanted) as sampling:
                stops = sampling.stop or []
                speech = StreamingText(self._template.decode, self._template.stop_ids, stops, calls=False, trim=False)
                sampled, seconds = await self._sample(prepared.prompt, sampling, speech, on_text)
                continued = partial(self._record_continuation, prepared, sampled, stops, seconds)
                said = await self._executor.run(continued, _characters(sampled), self._record_abandoned)
        except BaseException:
            self._executor.run_soon(partial(self._prompts.release, prepared))
            raise
        if on_text is not None and (rest := speech.finish(said.content)):
            await on_text(rest)
        return said

    async def prompt_tokens(self, asked: ChatRequest) -> int:
        """Count the tokens of this call's prompt. Raises GatewayError."""
        prepared = await self._prepare(asked)
        self._executor.run_soon(partial(self._chats.release, prepared))
        return len(prepared.prompt)

    async def _prepare(self, asked: ChatRequest) -> PreparedChat:
        """Prepare a call on its branch. Raises GatewayError."""
        try:
            return await self._executor.run(partial(self._chats.prepare, asked), asked.characters, self._chats.release)
        except TaskError as error:
            raise bad_request(str(error), param="messages") from error
        except TemplateUnusable as error:
            raise template_unusable(str(error)) from error

    @contextlib.contextmanager
    def _admit(self, wanted: SamplingOverrides) -> Iterator[Sampling]:
        """Admit a call right before sampling. Nothing is awaited here, so parallel calls cannot exceed the limit together."""
        self.check_limits()
        self._calls_in_progress, self._calls_admitted = self._calls_in_progress + 1, self._calls_admitted + 1
        try:
            yield self._parameters(wanted)
        except BaseException:
            self._calls_admitted -= 1
            raise
        finally:
            self._calls_in_progress -= 1
            self.last_used = time.monotonic()

    def _record_abandoned(self, said: ChatResponse) -> None:
        """Record a turn whose caller left while a thread processed it."""
        self._calls_admitted += 1

    def _parameters(self, wanted: SamplingOverrides) -> Sampling:
        if self._merged is None or self._merged[0] != wanted:  # a harness sends the same parameters with every call
            self._merged = wanted, merge_sampling(wanted, self.config.sampling, fixed=self.config.fixed)
        sampling = self._merged[1]
        number, self._calls_begun = self._calls_begun, self._calls_begun + 1
        if sampling.seed is None or not self.config.fixed:
            return sampling
        # each call has its own seed, which is the same in every attempt
        seed = zlib.crc32(f"{sampling.seed}/{self.config.sample_index}/{number}".encode())
        return evolve(sampling, seed=seed)

    async def _sample(
        self, prompt: Sequence[int], sampling: Sampling, speech: StreamingText, on_text: SendText | None
    ) -> tuple[Sampled, float]:
        """Sample the turn, send its text as it arrives, and return it with its duration in seconds. Raises GatewayError."""
        started = time.monotonic()
        try:
            async with self._sampling(prompt, sampling, speech if on_text is not None else None) as (task, pieces):
                while on_text is not None and (piece := await pieces.get()) is not None:
                    await on_text(piece)
                return await task, time.monotonic() - started
        except ContextExceeded as error:
            self.exceeded, self.truncated = error, True
            refusal = too_long(str(error)) if error.context is None else prompt_too_long(len(prompt), error.context)
            raise refusal from error
        except GatewayError:
            raise
        except RollyardError as error:
            if isinstance(error, EndpointRefused) and not isinstance(error, AnswerRefused):
                self.refused = error
                raise bad_request(str(error)) from error
            if not self.failure.done():
                self.failure.set_result(error)
            raise unavailable(f"the model cannot answer: {error}") from error

    @contextlib.asynccontextmanager
    async def _sampling(
        self, prompt: Sequence[int], sampling: Sampling, speech: StreamingText | None
    ) -> AsyncIterator[tuple[asyncio.Task[Sampled], asyncio.Queue[str | None]]]:
        """Run the call inside the block. If the block ends first, the call is cancelled."""
        pieces: asyncio.Queue[str | None] = asyncio.Queue()

        def on_ids(ids: Sequence[int]) -> None:
            if speech is not None and (text := speech.feed(ids)):
                pieces.put_nowait(text)

        task = asyncio.create_task(self._policy.sample(prompt, sampling, on_ids))
        task.add_done_callback(lambda _: pieces.put_nowait(None))
        self._in_flight.add(task)
        try:
            yield task, pieces
        except asyncio.CancelledError:
            if self._closed and task.cancelled():
                raise session_gone("this session was closed") from None
            raise
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self._in_flight.discard(task)

    def _parser(self, asked: ChatRequest) -> ToolCallParser | None:
        """Make the parser before anything is sampled; None if there are no tools. Raises GatewayError."""
        try:
            return parser_for(self._template, self.config.tool_parser, asked.tools) if asked.tools else None
        except TaskError as error:
            raise bad_request(str(error), param="tools") from error
        except Exception as error:  # a parser may be a plug-in
            log.warning("session %s: the parser of tool calls does not support these tools", self.id, exc_info=True)
            raise bad_request(
                f"the parser of tool calls does not support these tools: {error!r}", param="tools"
            ) from error

    def _record_turn(
        self,
        asked: ChatRequest,
        parser: ToolCallParser | None,
        prepared: PreparedChat,
        sampled: Sampled,
        stops: Sequence[str],
        seconds: float,
    ) -> ChatResponse:
        """Record the turn as ids, and return the response for the caller. Raises GatewayError."""
        self._check_open()
        conversation = prepared.branch.conversation
        lead, none = prepared.continued_ids, [None] * len(prepared.continued_ids)
        whole = conversation.add_sampled(
            [*lead, *sampled.token_ids],
            [*none, *sampled.logprobs],
            [*none, *sampled.weights_versions],
            sampled.finish_reason,
        )
        text = whole.removeprefix(asked.continued_text)
        said, stop = _truncate_at_stop(text, stops)
        shown = asked.continued_text + said
        turn = parse_safely(parser, shown) if parser is not None else ParsedTurn(shown.strip())
        calls = turn.calls if asked.overrides.parallel_tool_calls else turn.calls[:1]
        content = shown.strip() if turn.error is not None and not calls else turn.content
        given = tuple(
            ChatToolCall(f"call_{secrets.token_hex(12)}", c.name, json.dumps(c.arguments, ensure_ascii=False))
            for c in calls
        )
        message = assistant_message(content, [(c.id, c.name, c.arguments) for c in given])
        self._chats.record(prepared, ParsedTurn(content, calls, turn.error), message, stop or "")
        content = content.removeprefix(asked.continued_text.lstrip())  # the caller has this part already
        self._append_turn(prepared.branch, prepared.prompt, sampled, text, turn, seconds, prepared.results)
        finish = "tool_calls" if given else _finish_reason(sampled, stop)
        return ChatResponse(content, given, finish, len(prepared.prompt), len(sampled.token_ids), stop)

    def _record_continuation(
        self, prepared: PreparedPrompt, sampled: Sampled, stops: Sequence[str], seconds: float
    ) -> ChatResponse:
        """Record the continuation, and return the response for the caller. Raises GatewayError."""
        self._check_open()
        text = self._template.decode(_decoded_text(sampled, self._template.stop_ids))
        self._prompts.record(prepared, sampled, self._template.decode(sampled.token_ids))
        self._append_turn(prepared.branch, prepared.prompt, sampled, text, ParsedTurn(text), seconds, [])
        content, stop = _truncate_at_stop(text, stops)
        return ChatResponse(
            content, (), _finish_reason(sampled, stop), len(prepared.prompt), len(sampled.token_ids), stop
        )

    def _append_turn(
        self,
        branch: ChatBranch | PromptBranch,
        prompt: Sequence[int],
        sampled: Sampled,
        text: str,
        parsed: ParsedTurn,
        seconds: float,
        results: Sequence[str],
    ) -> None:
        """Append a turn. `results`: the tool results for the branch's previous turn."""
        if results and branch.turns:
            branch.turns[-1] = evolve(branch.turns[-1], tool_results=list(results))
        turn = Turn(
            segment=branch.segment_count - 1,
            prompt_length=len(prompt),
            response_length=len(sampled.token_ids),
            text=text,
            finish_reason=sampled.finish_reason,
            tool_calls=[{"name": c.name, "arguments": c.arguments} for c in parsed.calls],
            timings={"model": round(seconds, 6), "tools": 0.0},
        )
        branch.turns.append(turn)
        self._turns.append((branch, turn))
        self.tokens = sum(branch.token_count for branch in self._branches())

    def _branches(self) -> list[ChatBranch | PromptBranch]:
        return [*self._chats.branches, *self._prompts.branches]


def _characters(sampled: Sampled) -> int:
    return CHARACTERS_A_TOKEN * len(sampled.token_ids)


def _decoded_text(sampled: Sampled, stop_ids: Sequence[int]) -> list[int]:
    ended = bool(sampled.token_ids) and sampled.token_ids[-1] in stop_ids
    return sampled.token_ids[:-1] if ended else sampled.token_ids


def _finish_reason(sampled: Sampled, stop: str | None) -> str:
    """Return the finish reason. If a turn continued on another endpoint, its text may go on after a stop string."""
    return "length" if sampled.finish_reason == "length" and stop is None else "stop"


def _truncate_at_stop(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """Return the text before the first stop string, and that string."""
    at, stop = min(((text.find(stop), stop) for stop in stops if stop in text), default=(len(text), None))
    return text[:at], stop
