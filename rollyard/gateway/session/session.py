"""One agent's session: its calls become turns and segments of a trajectory.

The session is one class in one file, because each step of a call checks or changes the same limits and counters.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar

from rollyard.core.byte_budget import ByteBudget
from rollyard.core.errors import (
    AnswerRefused,
    ContextExceeded,
    EndpointRefused,
    ResumeFailed,
    RollyardError,
    TaskError,
    TemplateUnusable,
)
from rollyard.core.failpoints import failpoint
from rollyard.gateway.requests.call_errors import (
    GatewayError,
    bad_request,
    prompt_too_long,
    session_gone,
    template_unusable,
    token_limit,
    too_long,
    too_many,
    tool_calls_unreadable,
    turn_limit,
    unavailable,
)
from rollyard.gateway.requests.chat_request import ChatRequest, ChatResponse, Piece, SendPiece
from rollyard.gateway.requests.sampling_overrides import SamplingOverrides, merge_sampling
from rollyard.gateway.requests.tool_results import check_tool_results
from rollyard.gateway.session.answered_calls import AnsweredCalls, CallJournal, identity_of
from rollyard.gateway.session.chat_to_ids import PreparedChat
from rollyard.gateway.session.parallel_sampling import ParallelSampling, SessionSampler, TimedSample
from rollyard.gateway.session.prompt_history import PreparedPrompt
from rollyard.gateway.session.recorded_turns import RecordedTurn, RecordedTurns
from rollyard.gateway.session.saved_calls import SavedCalls
from rollyard.gateway.session.serial_executor import SerialExecutor
from rollyard.gateway.session.session_config import SessionConfig, max_body
from rollyard.gateway.session.stored_call import StoredCall, StoredChat, StoredPrompt
from rollyard.gateway.session.streaming_text import StreamingText
from rollyard.gateway.session.turn_constraint import turn_constraint
from rollyard.kinds.base import evolve
from rollyard.kinds.rollout import Sampling
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.constraint import STRUCTURED, is_constrained
from rollyard.tokens.sampled_tokens import Sampled, TurnSampling
from rollyard.tokens.tool_calls import ToolCallParser, marks_of, parser_for

log = logging.getLogger(__name__)

T = TypeVar("T")
Prepared = TypeVar("Prepared", PreparedChat, PreparedPrompt)
LEAST_HELD, LARGEST_HELD = 64 << 20, 4
"""The requests of one session may use `LEAST_HELD` bytes of memory, or `LARGEST_HELD` times the largest allowed request
if that is more."""
CHARACTERS_A_TOKEN = 4
MAX_LOGPROBS = 1 << 17
"""Greatest number of logprobs in the answers of a session's calls at the same time. One takes about 500 bytes until its
answer is sent. To format four times as many holds up all other sessions of the process for seconds, even from a thread."""


class TurnHistory(Protocol[Prepared]):
    def siblings(self, prepared: Prepared, count: int) -> list[Prepared]: ...

    def describe(self, prepared: Prepared) -> StoredChat | StoredPrompt: ...

    def release(self, prepared: Prepared) -> None: ...


class GatewaySession:
    """A session that accepts parallel calls. An error after which the sampler cannot go on (see `SessionSampler`) ends
    the session, and is kept in `failure`."""

    def __init__(
        self,
        id: str,
        template: ChatTemplate,
        policy: SessionSampler,
        config: SessionConfig,
        executor: SerialExecutor | None = None,
        shared_budget: ByteBudget | None = None,
        journal: CallJournal | None = None,
    ) -> None:
        """`executor`: renders and tokenises for this session only. `shared_budget`: the memory budget of all sessions
        of this process. `journal`: stores each call before the caller gets the end of the answer; by default no call is
        stored."""
        self.id = id
        self.config = config
        self.failure: asyncio.Future[RollyardError] = asyncio.get_running_loop().create_future()
        self.refused: EndpointRefused | None = None
        """The endpoint's last refusal of a request."""
        self.exceeded: ContextExceeded | None = None
        """The last error about a prompt that did not fit into the context."""
        self.tools_refused = False
        """True: a call was refused because it offered tools."""
        self.truncated = False
        """True: a limit of calls, of tokens or of the context was reached."""
        self.reached_limit = ""
        """Sentence about the first of these limits that this process saw."""
        self.opened_at = int(time.time())
        """Unix seconds."""
        self.last_used = time.monotonic()
        self._policy = policy
        self.byte_budget = ByteBudget(max(LEAST_HELD, LARGEST_HELD * self.max_body), shared_budget)
        """Memory for the session's calls. Each call holds its bytes until it ends."""
        self._logprob_room = ByteBudget(MAX_LOGPROBS)
        self._template = template
        constraint = STRUCTURED if is_constrained(config.sampling) else None
        self._recorded = RecordedTurns(template, self._parser_for, constraint)
        self._answered = AnsweredCalls(journal)
        self._saved: SavedCalls | None = None
        self.segments = self._recorded.segments
        self.turns = self._recorded.turns
        self.breaks = self._recorded.breaks
        self.responses = self._recorded.responses
        """Responses to which later calls may refer."""
        self.delivered = self._answered.delivered
        self.not_delivered = self._answered.not_delivered
        self._executor = executor or SerialExecutor()
        self._merged: tuple[SamplingOverrides, Sampling] | None = None
        """Overrides of the last call, and the sampling that resulted from them."""
        self._calls_begun = 0
        self.in_flight = 0
        """Number of admitted model calls that have not ended."""
        self._calls_admitted = 0
        """Number of calls that were answered or may still be answered."""
        self._sampling = ParallelSampling(template, policy)

    def answer_again(self, saved: SavedCalls) -> None:
        """Give these answers to the same requests, before anything is sampled."""
        self._saved = saved

    def restore(self, calls: Iterable[tuple[StoredCall, bool]]) -> None:
        """Add stored calls to a new session, each with whether its answer was delivered. Run this in a thread: it renders
        every prompt. Raises TaskError or TemplateUnusable, as `RecordedTurns.restore` does."""
        for call, delivered in calls:
            turns = self._recorded.restore(call)
            self._answered.restore(call.identity, turns, delivered=delivered)
            self._calls_begun = max(self._calls_begun, call.begun + len(turns))
        self._calls_admitted = self.calls

    # parts of a trajectory

    @property
    def calls(self) -> int:
        """Number of answered model calls."""
        return self._recorded.count

    @property
    def tokens(self) -> int:
        """Tokens of all segments together, prompts included."""
        return self._recorded.tokens

    @property
    def context(self) -> int | None:
        """Number of tokens that prompt and answer of a call may have together; None if it is not known."""
        return min((one for one in (self.config.context, self._policy.context) if one is not None), default=None)

    @property
    def max_body(self) -> int:
        """Greatest length of a request in bytes."""
        return max_body(self.context)

    async def run_for_body(self, read: Callable[[], T], size: int) -> T:
        """Call `read`, which parses a request of `size` bytes; use a thread if the request is long."""
        return await self._executor.run(read, size)

    async def run_serialized(self, read: Callable[[], T]) -> T:
        """Call `read`, which reads segments, turns or breaks; return its result. No model call changes these while
        `read` runs."""
        return await self._executor.run(read, CHARACTERS_A_TOKEN * self.tokens)

    @property
    def unread_calls(self) -> int:
        """Number of turns with a tool call that could not be read."""
        return self._recorded.unread

    def close(self, why: GatewayError | None = None) -> None:
        """Refuse further calls; cancel those in flight. `why`: the error for their callers."""
        self._sampling.close(why or session_gone("this session is closed"))
        if not self.failure.done():
            self.failure.cancel()

    # calls

    def check_limits(self, *, counts: bool = True, calls: int = 1, tokens: int = 0, may_repeat: bool = False) -> None:
        """Check the limits of calls and tokens. Raises GatewayError if the session cannot take `calls` calls now.

        `counts`: whether a reached limit of calls or tokens marks the session as truncated. `tokens`: tokens that
        further segments of the calls need at least. `may_repeat`: whether the call may be the repetition of one whose
        answer was not delivered. Such a call samples nothing.
        """
        self.last_used = time.monotonic()
        self._sampling.check_open()
        if self.failure.done():
            raise unavailable("this session has failed, not because of its caller; its rollout restarts")
        if may_repeat and self._answered.any_to_repeat:
            return
        limit = self.config.max_calls
        if limit is not None and self._calls_admitted + calls > limit:
            if counts:
                self._truncate(f"the agent used all of its model calls; `agent.max_turns` is {limit}")
            raise turn_limit(limit, limit - self._calls_admitted)
        if self.config.max_at_once is not None and self.in_flight + calls > self.config.max_at_once:
            raise too_many(self.config.max_at_once)
        if self.tokens + tokens >= self.config.max_tokens:
            if counts:
                self._truncate(f"the segments reached {self.config.max_tokens} tokens")
            raise token_limit(self.config.max_tokens)

    def _truncate(self, why: str) -> None:
        self.truncated, self.reached_limit = True, self.reached_limit or why

    def too_large(self) -> GatewayError:
        """Return the error for a request longer than `max_body`, and mark the session as truncated."""
        message = f"a request may have at most {self.max_body} bytes; more do not fit into the context"
        self.exceeded = ContextExceeded(message)
        self._truncate(message)
        return too_long(message)

    @contextlib.asynccontextmanager
    async def room_for_logprobs(self, wanted: SamplingOverrides) -> AsyncIterator[None]:
        """Wait until there is memory for the logprobs that a call wants. Raises GatewayError if the call wants too many."""
        if wanted.top_logprobs is None:
            yield
            return
        own = self.config.sampling.max_tokens
        limit, each = min(own, wanted.fields.get("max_tokens", own)), wanted.choices * (wanted.top_logprobs + 1)
        if limit * each > MAX_LOGPROBS:
            raise bad_request(
                f"the answers may have {limit * each} logprobs, and the limit is {MAX_LOGPROBS}: with `n` and "
                f"`top_logprobs` as they are, set the limit of tokens to at most {MAX_LOGPROBS // each}",
                param="top_logprobs",
            )
        async with self._logprob_room.reserve(limit * each):
            yield

    async def chat(self, request: ChatRequest, on_piece: SendPiece | None = None) -> list[ChatResponse]:
        """Sample one or more turns of a conversation after the same messages. Raises GatewayError.

        When the call returns, its turns are durable. The caller must then call `delivered` or `not_delivered`.
        """
        parser = self._parser(request)
        request = replace(request, overrides=replace(request.overrides, constraint=turn_constraint(request, parser)))
        key = partial(self._recorded.chats.request_key, request)
        if (repeated := await self._repeat(key, request.overrides, on_piece)) is not None:
            self._recorded.link_response(request, repeated[0].turn)
            return repeated
        with self._context_errors():
            prepared = await self._prepare(request, self.context)
        check = partial(self._recorded.check_form, request.overrides.constraint, parser)
        marks = marks_of(parser) if parser is not None else ()
        speech = partial(StreamingText, marks=marks, trim=True, lead=prepared.continued_ids)
        add = partial(self._recorded.add_turn, request, parser)
        return await self._answer(self._recorded.chats, prepared, request.overrides, speech, check, add, on_piece)

    async def complete(
        self, prompt: str | Sequence[int], wanted: SamplingOverrides, on_piece: SendPiece | None = None
    ) -> list[ChatResponse]:
        """Sample one or more continuations of a prompt without messages, as `chat` does. Raises GatewayError."""
        prompts = self._recorded.prompts
        if (repeated := await self._repeat(partial(prompts.request_key, prompt), wanted, on_piece)) is not None:
            return repeated
        with self._context_errors():
            prepare = partial(prompts.prepare, prompt, self.context)
            prepared = await self._executor.run(prepare, len(prompt), prompts.release)
        speech = partial(StreamingText, marks=(), trim=False)
        check = partial(self._recorded.check_form, wanted.constraint, None)
        add = partial(self._recorded.add_continuation, wanted)
        return await self._answer(prompts, prepared, wanted, speech, check, add, on_piece)

    async def _answer(
        self,
        history: TurnHistory[Prepared],
        prepared: Prepared,
        wanted: SamplingOverrides,
        new_speech: Callable[..., StreamingText],
        check: Callable[[Sampled, Sequence[str]], None],
        add: Callable[[Prepared, Sampled, Sequence[str], float], RecordedTurn],
        on_piece: SendPiece | None,
    ) -> list[ChatResponse]:
        """Sample as many turns as the call wants, and record all of them, or none. `check` may refuse a turn."""
        try:
            with self._admit(wanted, len(prepared.prompt)) as samplings:
                begun = self._calls_begun - wanted.choices
                more, size = wanted.choices - 1, CHARACTERS_A_TOKEN * len(prepared.prompt)
                turns = [prepared]
                if more:
                    turns += await self._executor.run(partial(history.siblings, prepared, more), size * more)
                stops = samplings[0].stop or []
                speeches = [new_speech(self._template.decode, self._template.stop_ids, stops) for _ in turns]
                sampled = await self._sample(prepared.prompt, samplings, speeches, on_piece)

                def record() -> list[ChatResponse]:
                    self._sampling.check_open()
                    for one in sampled:
                        check(one.sampled, stops)
                    call = history.describe(prepared)
                    pairs = zip(turns, sampled, strict=True)
                    recorded = [add(turn, one.sampled, stops, one.seconds) for turn, one in pairs]
                    return self._answered.keep(call, prepared, wanted, begun, recorded)

                tokens = sum(len(one.sampled.token_ids) for one in sampled)
                # Raises GatewayError if the session has been closed, or by a check.
                responses = await self._executor.run(record, CHARACTERS_A_TOKEN * tokens, self._record_abandoned)
        except BaseException:
            self._executor.run_soon(partial(history.release, prepared))
            raise
        with self._answered.kept_on_error(responses):
            await self._answered.flush()
            if on_piece is not None:
                for i, (speech, response) in enumerate(zip(speeches, responses, strict=True)):
                    if rest := speech.finish(response.content):
                        await on_piece(Piece(i, rest))
        return responses

    async def _repeat(
        self, key: Callable[[], str], wanted: SamplingOverrides, on_piece: SendPiece | None
    ) -> list[ChatResponse] | None:
        """Return the recorded answers if this call repeats one whose answers were not delivered, or one of an earlier session.
        Raises GatewayError."""
        if self._saved is not None:
            await self._restore_saved(self._saved, identity_of(key(), wanted))
        responses = self._answered.repeated(key(), wanted) if self._answered.any_to_repeat else None
        if responses is None:
            return None
        log.info("session %s: a repeated call gets the answer that was recorded as turn %d", self.id, responses[0].turn)
        with self._answered.kept_on_error(responses):
            await self._answered.flush()
            if on_piece is not None:
                for i, response in enumerate(responses):
                    if response.content:
                        await on_piece(Piece(i, response.content))
        return responses

    async def _restore_saved(self, saved: SavedCalls, identity: str) -> None:
        """Add the next saved call as one whose answer was not delivered, if this request is the same. Raises GatewayError."""
        if (call := await saved.take(identity)) is None:
            return await saved.end("the command asks for something else")
        try:
            size = CHARACTERS_A_TOKEN * (call.prompt[0] + sum(len(turn.ids) for turn in call.turns))
            turns = await self._executor.run(partial(self._recorded.restore, call), size)
        except RollyardError as error:
            if not self.failure.done():
                self.failure.set_result(ResumeFailed(f"a saved call cannot be answered again: {error}"))
            raise unavailable("the saved turns cannot be used; the rollout restarts") from error
        self._calls_begun = max(self._calls_begun, call.begun + len(turns))
        self._calls_admitted += len(turns)
        self._answered.restore(identity, turns, delivered=False)
        failpoint("after-played-turn")

    async def prompt_tokens(self, request: ChatRequest) -> int:
        """Count the tokens of this call's prompt. Raises GatewayError."""
        self._parser(request)
        prepared = await self._prepare(request)
        self._executor.run_soon(partial(self._recorded.chats.release, prepared))
        return len(prepared.prompt)

    async def _prepare(self, request: ChatRequest, context: int | None = None) -> PreparedChat:
        """Prepare a call on its branch. Raises GatewayError, and ContextExceeded if it cannot fit into `context`."""
        check_tool_results(request.messages)
        chats = self._recorded.chats
        try:
            return await self._executor.run(partial(chats.prepare, request, context), request.characters, chats.release)
        except TaskError as error:
            raise bad_request(str(error), param="messages") from error
        except TemplateUnusable as error:
            raise template_unusable(str(error)) from error

    @contextlib.contextmanager
    def _admit(self, wanted: SamplingOverrides, prompt_tokens: int) -> Iterator[list[Sampling]]:
        """Admit a call right before sampling, and yield the sampling of each of its turns. There is no `await` between
        the check and the count, so parallel calls cannot exceed the limit together."""
        count = wanted.choices
        self.check_limits(calls=count, tokens=(count - 1) * prompt_tokens)
        self.in_flight, self._calls_admitted = self.in_flight + count, self._calls_admitted + count
        try:
            yield [self._parameters(wanted, i) for i in range(count)]
        except BaseException:
            self._calls_admitted -= count
            raise
        finally:
            self.in_flight -= count
            self.last_used = time.monotonic()

    def _record_abandoned(self, responses: list[ChatResponse]) -> None:
        """Count a call whose caller left while a thread recorded its turns. `_admit` has stopped counting this call, but
        the turns are recorded."""
        self._calls_admitted += len(responses)
        self.not_delivered(responses)

    def _parameters(self, wanted: SamplingOverrides, choice: int) -> Sampling:
        """Return the sampling of one turn of a call."""
        if self._merged is None or self._merged[0] != wanted:  # a harness sends the same parameters with every call
            merged = merge_sampling(wanted, self.config.sampling, fixed=self.config.fixed)
            if wanted.top_logprobs is not None:
                merged = TurnSampling(**merged.model_dump(), top_logprobs=wanted.top_logprobs)
            if wanted.constraint is not None:
                merged = wanted.constraint.applied_to(merged)
            self._merged = wanted, merged
        sampling = self._merged[1]
        number, self._calls_begun = self._calls_begun, self._calls_begun + 1
        if sampling.seed is None:
            return sampling
        if not self.config.fixed:  # the same seed would give the same turn each time
            return evolve(sampling, seed=sampling.seed ^ choice) if choice else sampling
        # each call has its own seed; the n-th call has the same seed in every attempt of the rollout
        seed = zlib.crc32(f"{sampling.seed}/{self.config.sample_index}/{number}".encode())
        return evolve(sampling, seed=seed)

    async def _sample(
        self,
        prompt: Sequence[int],
        samplings: Sequence[Sampling],
        speeches: Sequence[StreamingText],
        on_piece: SendPiece | None,
    ) -> list[TimedSample]:
        """Sample the turns at the same time, and send their text as it arrives. Raises GatewayError."""
        try:
            with self._context_errors(len(prompt)):
                return await self._sampling.sample(prompt, samplings, speeches, on_piece)
        except GatewayError:
            raise
        except RollyardError as error:
            if isinstance(error, EndpointRefused) and not isinstance(error, AnswerRefused):
                self.refused = error
                raise bad_request(str(error)) from error
            if not self.failure.done():
                self.failure.set_result(error)
            raise unavailable(f"the model cannot answer: {error}") from error

    @contextlib.contextmanager
    def _context_errors(self, tokens: int | None = None) -> Iterator[None]:
        """Turn ContextExceeded into the caller's error, and mark the session as truncated. `tokens`: length of the prompt,
        if it was tokenised."""
        try:
            yield
        except ContextExceeded as error:
            self.exceeded = error
            self._truncate(f"the conversation reached the end of the context: {error}")
            length = error.tokens if tokens is None else tokens
            if error.context is None or length is None:
                raise too_long(str(error)) from error
            raise prompt_too_long(length, error.context, exact=tokens is not None) from error

    def _parser_for(self, tools: list[dict[str, Any]]) -> ToolCallParser | None:
        return parser_for(self._template, self.config.tool_parser, tools) if tools else None

    def _parser(self, request: ChatRequest) -> ToolCallParser | None:
        """Make the parser of tool calls; None if the request offers no tools. Raises GatewayError."""
        proof = self.config.tools
        if request.tools and proof is not None and proof.refuses:
            self.tools_refused = True
            raise tool_calls_unreadable(proof.message)
        try:
            return self._parser_for(request.tools)
        except TaskError as error:
            raise bad_request(str(error), param="tools") from error
        except Exception as error:  # a parser may be a plug-in
            log.warning("session %s: the parser of tool calls does not support these tools", self.id, exc_info=True)
            raise bad_request(
                f"the parser of tool calls does not support these tools: {error!r}", param="tools"
            ) from error
