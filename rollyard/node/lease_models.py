"""Models by role, such as a judge, as task handlers call them.

A fault of such a model never becomes a reward. Each fault is kept in `fault` until the module that calls handlers has read it,
so a handler cannot swallow it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pydantic import BaseModel, ValidationError

from rollyard.core.errors import (
    ContextExceeded,
    EndpointError,
    EndpointRefused,
    NoEndpoint,
    RoleBudgetUsed,
    RoleModelAttacked,
    RoleModelFailed,
    RollyardError,
    TaskError,
    TemplateUnusable,
)
from rollyard.kinds.base import evolve
from rollyard.kinds.rollout import Sampling, Stage
from rollyard.kinds.rollout_pool import RoleLimits
from rollyard.tasks.base import Message
from rollyard.tasks.json_schema import Schema, first_fault, read_json, schema_of
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.constraint import Constraint
from rollyard.tokens.conversation import Conversation
from rollyard.tokens.failover import FailoverPolicy
from rollyard.tokens.sampled_tokens import Sampled
from rollyard.tokens.sampled_turn import THINK_ENDS
from rollyard.trajectory.role_call import MAX_TEXT_CHARS, MAX_TOKENS, RoleCall

RETRY_TEMPERATURE = 0.5
"""Least temperature of a question that is asked again. With temperature 0 the answer would be the same."""
CONTROLS = 8
"""Number of times that the control question is asked. A judge that answers a question badly with chance p, whatever the agent
writes, fails 5 times and then answers 8 times well with a chance of at most 0.02 % (at p = 5/13)."""


class RoleSampling(Protocol):
    """The part of a lease's sampler that a role needs."""

    @property
    def failover(self) -> FailoverPolicy: ...

    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling) -> Sampled: ...


@dataclass(frozen=True)
class RoleSampler:
    """Sampler of a role's answers, and the chat template of its model."""

    sampler: RoleSampling
    template: ChatTemplate


class _Malformed(Exception):
    """The answer does not have the form that was asked for."""


@dataclass(frozen=True)
class Question:
    messages: Sequence[Message]
    schema: Schema | type[BaseModel] | None
    sampling: Sampling
    purpose: Any = "question"

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(list(self.messages), sort_keys=True).encode()).hexdigest()

    def read(self, text: str, finish_reason: str) -> Any:
        """Return the answer. Raises _Malformed."""
        answer = text.rpartition(THINK_ENDS)[2].strip()
        if self.schema is None:
            if not answer:
                raise _Malformed("the answer is empty")
            return answer
        if finish_reason == "length":
            raise _Malformed(f"the answer was cut off after {self.sampling.max_tokens} tokens, by `max_tokens`")
        try:
            return read_json(answer, self.schema)
        except ValueError as error:
            raise _Malformed(str(error)) from None


class LeaseModels:
    """The models of one attempt. `models.judge` and `models["judge"]` are the model of the role `judge`."""

    def __init__(
        self, limits: Mapping[str, RoleLimits], connect: Callable[[str], Awaitable[RoleSampler]], stage: Stage
    ) -> None:
        """`connect`: makes the sampler of a role, at its first call."""
        self.stage = stage
        """Stage in which the calls are made now."""
        self.calls: list[RoleCall] = []
        self._limits = limits
        self._connect = connect
        self._made: dict[str, LeaseModel] = {}
        self._fault: RollyardError | None = None

    def __getitem__(self, role: str) -> LeaseModel:
        if role not in self._limits:
            known = f"it has {', '.join(self._limits)}" if self._limits else "it has none beside `policy`"
            raise self.faulty(
                TaskError(
                    f"the pool has no InferencePool for the role {role!r}; add `inference: {{{role}: NAME}}` ({known})"
                )
            )
        return self._made.setdefault(role, LeaseModel(role, self._limits[role], self._connect, self))

    def __getattr__(self, role: str) -> LeaseModel:
        if role.startswith("_"):
            raise AttributeError(role)
        return self[role]

    def faulty(self, error: RollyardError) -> RollyardError:
        """Keep the first fault, and return this one."""
        self._fault = self._fault or error
        return error

    def take_fault(self) -> RollyardError | None:
        """Return the first fault since the last call of this method."""
        fault, self._fault = self._fault, None
        return fault

    @property
    def seconds(self) -> float:
        """Time of all calls together."""
        return sum(call.seconds for call in self.calls)

    def go_on_after(self, calls: Sequence[RoleCall]) -> None:
        """Count calls of earlier leases, whose turns are kept."""
        self.calls.extend(calls)
        for call in calls:
            if call.role in self._limits:
                self[call.role].count(call)

    def record(self, call: RoleCall) -> None:
        kept = sum(len(one.prompt_ids) + len(one.token_ids) for one in self.calls)
        if kept + call.prompt_tokens + call.completion_tokens > MAX_TOKENS:
            call = evolve(call, prompt_ids=[], token_ids=[], logprobs=[])
        self.calls.append(call)


class LeaseModel:
    """The model of one role."""

    def __init__(
        self, role: str, limits: RoleLimits, connect: Callable[[str], Awaitable[RoleSampler]], models: LeaseModels
    ) -> None:
        self._role = role
        self._limits = limits
        self._connect = connect
        self._models = models
        self._connecting = asyncio.Lock()
        self._found: RoleSampler | None = None
        self._used = Counter[str]()
        self._constrains = True
        """False once an endpoint has refused a request with the form of its answer."""

    async def __call__(
        self,
        messages: Sequence[Message],
        *,
        schema: Schema | type[BaseModel] | None = None,
        max_tokens: int = 1024,
        temperature: float = 0.0,
        control: Sequence[Message] | None = None,
    ) -> Any:
        """Ask the model, and return the text of its answer, or with `schema` the JSON value: with a pydantic model an object of
        it.

        `control`: the same question with a harmless text in place of the agent's. If the model answers it well, and never the
        question itself, then the agent's text is the cause, and the reward is 0.

        Raises RoleModelFailed, RoleModelAttacked, RoleBudgetUsed, and TaskError for a wrong question.
        """
        began = asyncio.get_running_loop().time()
        try:
            form = schema_of(schema) if schema is not None else None
            sampling = Sampling(temperature=temperature, max_tokens=max_tokens)
        except ValueError as error:
            why = first_fault(error) if isinstance(error, ValidationError) else str(error)
            raise self._models.faulty(TaskError(f"the call of the role {self._role!r} is wrong: {why}")) from None
        question = Question(
            messages, schema, Constraint("json_schema", form).applied_to(sampling) if form else sampling
        )
        try:
            async with asyncio.timeout(max(0.0, self._limits.seconds - self._seconds())):
                return await self._answer(question, control)
        except RollyardError as error:
            raise self._models.faulty(error) from None
        except TimeoutError:
            limit = f"`roles.{self._role}.seconds` ({self._limits.seconds:g} s)"
            raise self._models.faulty(self._failed(f"its calls took longer than {limit}")) from None
        except asyncio.CancelledError:
            spent = asyncio.get_running_loop().time() - began
            self._models.faulty(self._failed(f"its call was given up after {spent:.1f} s"))
            raise

    async def _answer(self, question: Question, control: Sequence[Message] | None) -> Any:
        wrong = ""
        for number in range(1 + self._limits.retries):
            try:
                return await self._ask(question if number == 0 else _hotter(question))
            except _Malformed as error:
                wrong = f"its answer had a wrong form, also after {number} retries: {error}"
            except ContextExceeded as error:
                if control is None or not await self._answers(
                    replace(question, messages=control, purpose="control"), 1
                ):
                    raise TaskError(
                        f"the prompt for the role {self._role!r} does not fit: {error}; show its model less of the agent's work"
                    ) from None
                raise self._attacked(f"the prompt does not fit: {error}") from None
        if control is not None:
            asked = _hotter(replace(question, messages=control, purpose="control"))
            if await self._answers(asked, CONTROLS):
                raise self._attacked(wrong)
        raise self._failed(wrong)

    async def _answers(self, control: Question, times: int) -> bool:
        """Return whether the model answers the control question well each time."""
        for _ in range(times):
            try:
                await self._ask(control)
            except (_Malformed, ContextExceeded):
                return False
        return True

    def count(self, call: RoleCall) -> None:
        """Count a call of an earlier lease for the limits of this one."""
        self._used["calls"] += 1
        self._used["tokens"] += call.prompt_tokens + call.completion_tokens

    async def _ask(self, question: Question) -> Any:
        """Ask once. Raises _Malformed, and ContextExceeded."""
        if self._used["calls"] >= self._limits.max_calls or self._used["tokens"] >= self._limits.max_tokens:
            field = "maxCalls" if self._used["calls"] >= self._limits.max_calls else "maxTokens"
            raise RoleBudgetUsed(
                f"the calls of the role {self._role!r} reached the limit `roles.{self._role}.{field}`; raise it, or ask less"
            )
        self._used["calls"] += 1
        began = time.monotonic()
        call = RoleCall(
            role=self._role, stage=self._models.stage, purpose=question.purpose, ending="failed", digest=question.digest
        )
        try:
            found, call = await self._sampled(question, call)
        except (EndpointError, NoEndpoint, TemplateUnusable) as error:
            call = evolve(call, text=str(error)[:MAX_TEXT_CHARS])
            raise self._failed(str(error)) from None
        except ContextExceeded as error:
            call = evolve(call, text=str(error)[:MAX_TEXT_CHARS])
            raise
        finally:
            self._models.record(evolve(call, seconds=round(time.monotonic() - began, 6)))
        if isinstance(found, _Malformed):
            raise found
        return found

    async def _sampled(self, question: Question, call: RoleCall) -> tuple[Any, RoleCall]:
        """Return the answer, or the _Malformed, and the record of the call."""
        found = await self._sampler()
        conversation = Conversation(found.template, [dict(message) for message in question.messages])
        # a prompt may be long, and the event loop must renew leases meanwhile
        prompt = await asyncio.to_thread(conversation.prompt_ids, found.sampler.failover.context)
        sample = await self._sample(found.sampler, prompt, question.sampling)
        self._used["tokens"] += len(prompt) + len(sample.token_ids)
        text = conversation.add_sampled(
            sample.token_ids, sample.logprobs, sample.weights_versions, sample.finish_reason
        )
        answer: Any
        try:
            answer, ending = question.read(text, sample.finish_reason), "answered"
        except _Malformed as error:
            answer, ending = error, "malformed"
        return answer, evolve(
            call,
            ending=ending,
            prompt_tokens=len(prompt),
            completion_tokens=len(sample.token_ids),
            prompt_ids=prompt,
            token_ids=list(sample.token_ids),
            logprobs=list(sample.logprobs),
            text=text[:MAX_TEXT_CHARS],
            weights_versions=sorted(set(sample.weights_versions)),
            endpoint=found.sampler.failover.endpoint.id,
        )

    async def _sample(self, sampler: RoleSampling, prompt: Sequence[int], sampling: Sampling) -> Sampled:
        sampling = evolve(sampling, logprobs=sampler.failover.endpoint.logprobs)
        if not self._constrains:
            sampling = evolve(sampling, extra={})
        try:
            return await sampler.sample(prompt, sampling)
        except EndpointRefused:
            if not sampling.extra:
                raise
        self._constrains = False  # this engine samples no JSON by a schema; the answer is checked anyway
        return await sampler.sample(prompt, evolve(sampling, extra={}))

    async def _sampler(self) -> RoleSampler:
        async with self._connecting:
            if self._found is None:
                self._found = await self._connect(self._role)
            return self._found

    def _seconds(self) -> float:
        return sum(call.seconds for call in self._models.calls if call.role == self._role)

    def _failed(self, why: str) -> RoleModelFailed:
        return RoleModelFailed(f"the model of the role {self._role!r} failed: {why}")

    def _attacked(self, why: str) -> RoleModelAttacked:
        return RoleModelAttacked(
            f"the agent's text made the model of the role {self._role!r} unusable, which answers the control question: {why}"
        )


def _hotter(question: Question) -> Question:
    temperature = max(question.sampling.temperature, RETRY_TEMPERATURE)
    return replace(question, sampling=evolve(question.sampling, temperature=temperature))
