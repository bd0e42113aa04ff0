"""Models by role: what a handler gets of them, and that none of their faults becomes a reward, whatever the handler does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

import aiohttp
import pytest
from aiohttp import web
from pydantic import BaseModel

from rollyard.core.errors import (
    NoEndpoint,
    RoleBudgetUsed,
    RoleModelAttacked,
    RoleModelFailed,
    RollyardError,
    TaskError,
)
from rollyard.kinds.engine_spec import Patience
from rollyard.kinds.rollout import AgentSpec, Sampling, Stage, Status
from rollyard.kinds.rollout_pool import RoleLimits
from rollyard.kinds.task import Task
from rollyard.node.agent_loop import AgentProgress, run_agent
from rollyard.node.lease_models import LeaseModels, RoleSampler
from rollyard.tasks import Evaluation, Reply, Score
from rollyard.tasks.guarded_handler import GuardedEnvironment, GuardedHandler
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.conversation import Conversation
from rollyard.tokens.failover import FailoverPolicy
from rollyard.tokens.token_client import TokenClient
from rollyard.trajectory import Turn
from rollyard.wire.endpoint import Endpoint
from simulation.serving import serve_app
from simulation.upstream import Upstream
from tests.conftest import StartEngine
from tests.node.test_environment_turns import Told
from tests.support import make

TASK = Task.model_validate({"kind": "judged"})
QUESTION = [{"role": "user", "content": "Score this: 2"}]
HARMLESS = [{"role": "user", "content": "Score this: nothing"}]
SCORE = {
    "type": "object", "properties": {"score": {"type": "integer", "enum": [0, 1]}}, "required": ["score"],
    "additionalProperties": False,
}  # fmt: skip


class Verdict(BaseModel, extra="forbid"):
    score: Literal[0, 1]


class Sampler:
    """Stand-in for the sampler of a lease, at one endpoint."""

    def __init__(self, tokens: TokenClient, endpoint: Endpoint, stop_ids: Sequence[int]) -> None:
        async def stay(current: Endpoint, failed: str, again: bool) -> Endpoint:
            return current

        self.failover = FailoverPolicy(tokens, endpoint, stop_ids, stay, wait_seconds=1.0)

    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling) -> Any:
        return await self.failover.sample(prompt_ids, sampling, sampling.max_tokens)


Judge = Callable[..., LeaseModels]


@contextlib.asynccontextmanager
async def judge_at(url: str, template: ChatTemplate, http: aiohttp.ClientSession | None = None) -> AsyncIterator[Judge]:
    """Give a function that makes models with the one role `judge`."""
    async with contextlib.AsyncExitStack() as stack:
        session = http or await stack.enter_async_context(aiohttp.ClientSession())
        quick = Patience(connect_seconds=1.0, first_token_seconds=1.0, idle_seconds=1.0)
        endpoint = make.endpoint("judge", url, model="policy", patience=quick if http is None else Patience())

        async def connect(role: str) -> RoleSampler:
            return RoleSampler(Sampler(TokenClient(session), endpoint, template.stop_ids), template)

        yield lambda **limits: LeaseModels({"judge": RoleLimits(**limits)}, connect, Stage.EVAL)


def said(template: ChatTemplate, *texts: str) -> Upstream:
    """A model server that says these texts, one after another, and the last one from then on."""
    return Upstream(lambda number, _: [*template.encode(texts[min(number, len(texts) - 1)]), template.stop_ids[0]])


class Handler:
    eval_needs_sandbox = False

    def __init__(self, score: Callable[[Any], Awaitable[Any]]) -> None:
        self._score = score

    def tools(self, task: Task) -> list[str]:
        return []

    def prompt(self, task: Task) -> list[dict[str, Any]]:
        return QUESTION

    async def init(self, task: Task, sandbox: Any) -> None: ...

    async def collect(self, task: Task, sandbox: Any) -> dict[str, str | bytes]:
        return {}

    async def evaluate(self, task: Task, evaluation: Evaluation) -> Score:
        return Score(float((await self._score(evaluation.models))["score"]))


async def scored(models: LeaseModels, score: Callable[[Any], Awaitable[Any]]) -> Score:
    return await GuardedHandler("judged", Handler(score)).evaluate(TASK, Evaluation({}, [], 60.0, models=models))


async def asks(models: Any) -> Any:
    return await models.judge(QUESTION, schema=SCORE, control=HARMLESS)


async def swallows(models: Any) -> Any:
    with contextlib.suppress(Exception):
        return await asks(models)
    return {"score": 1}


async def gives_up(models: Any) -> Any:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.2):
            return await asks(models)
    return {"score": 1}


async def asks_beside(models: Any) -> Any:
    await asyncio.gather(asks(models), asks(models), return_exceptions=True)
    return {"score": 1}


async def test_an_engine_samples_an_answer_in_its_form_and_the_call_is_recorded(
    start_engine: StartEngine, template: ChatTemplate
) -> None:
    async with start_engine().session() as http, judge_at("http://engine", template, http) as judge:
        models = judge()
        for schema in (SCORE, Verdict):
            found = await models["judge"](QUESTION, schema=schema, max_tokens=64)
            assert (found["score"] in (0, 1)) if schema is SCORE else isinstance(found, Verdict)
        text = await models.judge(QUESTION, max_tokens=4, temperature=1.0)
    assert isinstance(text, str)
    for call in models.calls:
        assert (call.role, call.stage, call.purpose, call.ending) == ("judge", Stage.EVAL, "question", "answered")
        assert template.decode(call.prompt_ids) == template.render(QUESTION, [], True)
        assert template.decode(call.token_ids).startswith(call.text)
        assert len(call.logprobs) == len(call.token_ids)
        assert all(-100 < logprob <= 0 for logprob in call.logprobs)
        assert (call.endpoint, call.digest) == ("judge", models.calls[0].digest)
    assert models.take_fault() is None


async def test_an_answer_in_a_wrong_form_is_asked_again(template: ChatTemplate) -> None:
    wrong = ["", "full marks", '{"score": "1"}', '{"score": 2}', '<think>{"score": 0}</think>\n{"score": 1}']
    async with said(template, *wrong).serving() as server, judge_at(server.url, template) as judge:
        models = judge()
        assert (await scored(models, asks)).reward == 1.0
        assert [call.ending for call in models.calls] == ["malformed"] * 4 + ["answered"]


FORMS: dict[str, tuple[Sequence[str], type[RollyardError], str]] = {
    "never": (["full marks"], RoleModelFailed, "a wrong form, also after 2 retries: expected ident at"),
    "at times": (["x", "x", "x", '{"score": 1}', "x"], RoleModelFailed, "a wrong form"),
    "cut": (['{"score": "' + "word " * 3000], RoleModelFailed, "cut off after 1024 tokens, by `max_tokens`"),
    "attacked": (
        ["x", "x", "x", '{"score": 1}'],
        RoleModelAttacked,
        "which answers the control question: its answer had",
    ),
}


@pytest.mark.parametrize("score", [asks, swallows, asks_beside])
@pytest.mark.parametrize("form", FORMS)
async def test_nonsense_is_no_reward(template: ChatTemplate, form: str, score: Callable[[Any], Awaitable[Any]]) -> None:
    texts, error, words = FORMS[form]
    if score is asks_beside:
        texts = [text for text in texts for _ in range(2)]
    async with said(template, *texts).serving() as server, judge_at(server.url, template) as judge:
        models = judge(retries=2)
        # of two that ask at the same time, one may get the answers that are meant for the other
        errors, words = (
            ((error, RoleModelFailed), "the model of the role 'judge'") if score is asks_beside else (error, words)
        )
        with pytest.raises(errors, match=words):
            await scored(models, score)
        assert models.take_fault() is None, "it was taken"


@pytest.mark.parametrize("score", [asks, swallows, gives_up, asks_beside])
@pytest.mark.parametrize("way", ["silent", "refuses", "fails", "away"])
async def test_a_judge_that_is_slow_or_down_is_no_reward(
    template: ChatTemplate, way: str, score: Callable[[Any], Awaitable[Any]]
) -> None:
    async def complete(request: web.Request) -> web.Response:
        if way == "silent":
            await asyncio.sleep(30)
        return web.Response(status=503 if way == "fails" else 404, text="nothing here")

    app = web.Application()
    app.add_routes([web.post("/v1/completions", complete)])
    async with serve_app(app) as url, judge_at("http://127.0.0.1:9" if way == "away" else url, template) as judge:
        models = judge(seconds=0.5 if way == "silent" else 20.0)
        with pytest.raises(RoleModelFailed, match="the model of the role 'judge' failed: "):
            await scored(models, score)


async def test_without_an_endpoint_an_attempt_ends_too() -> None:
    async def connect(role: str) -> RoleSampler:
        raise NoEndpoint("no endpoint of InferencePool judge is ready")

    models = LeaseModels({"judge": RoleLimits()}, connect, Stage.EVAL)
    with pytest.raises(RoleModelFailed, match="no endpoint of InferencePool judge is ready"):
        await scored(models, swallows)


async def test_a_time_that_is_up_stays_a_time_that_is_up(template: ChatTemplate) -> None:
    """EVAL's own limit, and the end of a lease, are no fault of the judge's."""
    slow = Upstream(lambda *_: [5] * 50, pace=1.0)
    async with slow.serving() as server, judge_at(server.url, template) as judge:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await scored(judge(), asks)


WRONG: dict[str, tuple[Callable[[Any], Awaitable[Any]], str]] = {
    "role": (
        lambda models: models.critic(QUESTION),
        r"for the role 'critic'; add `inference: .* \(it has judge\)",
    ),
    "keyword": (lambda models: models.judge(QUESTION, schema={"minProperties": 1}), "the keyword 'minProperties'"),
    "tokens": (
        lambda models: models.judge(QUESTION, max_tokens=0),
        "the call of the role 'judge' is wrong: .*max_tokens",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_a_wrong_question_is_the_tasks_fault(template: ChatTemplate, wrong: str) -> None:
    call, words = WRONG[wrong]

    async def score(models: Any) -> Any:
        with contextlib.suppress(Exception):
            await call(models)
        return {"score": 1}

    async with judge_at("http://127.0.0.1:9", template) as judge:
        with pytest.raises(TaskError, match=words):
            await scored(judge(), score)


async def test_an_engine_without_schemas_is_asked_without(template: ChatTemplate) -> None:
    asked: list[bool] = []
    server = said(template, '{"score": 1}')

    async def complete(request: web.Request) -> web.StreamResponse:
        asked.append("structured_outputs" in await request.json())
        if asked[-1]:
            return web.Response(status=400, text="unknown parameter structured_outputs")
        return await server._complete(request)

    app = web.Application()
    app.add_routes([web.post("/v1/completions", complete)])
    async with serve_app(app) as url, judge_at(url, template) as judge:
        models = judge()
        assert [(await scored(models, asks)).reward for _ in range(2)] == [1.0, 1.0]
    assert asked == [True, False, False]


async def test_a_prompt_that_does_not_fit_is_the_agents_doing_if_the_control_fits(template: ChatTemplate) -> None:
    async def complete(request: web.Request) -> web.StreamResponse:
        if len((await request.json())["prompt"]) > 200:
            message = "This model's maximum context length is 200 tokens. However, your prompt has more"
            return web.json_response({"error": {"message": message, "code": 400}}, status=400)
        return await server._complete(request)

    server, app = said(template, '{"score": 1}'), web.Application()
    app.add_routes([web.post("/v1/completions", complete)])
    async with serve_app(app) as url, judge_at(url, template) as judge:
        for control, error in ((HARMLESS, RoleModelAttacked), (None, TaskError)):
            with pytest.raises(error, match="does not fit"):
                await judge().judge([{"role": "user", "content": "word " * 400}], schema=SCORE, control=control)


async def test_a_limit_of_calls_ends_a_conversation_and_its_work_is_scored(
    template: ChatTemplate, model_dir: Path
) -> None:
    class User:
        opening: Sequence[Any] = ()
        every_turn = False

        async def reply(self, turn: Turn) -> Reply:
            with contextlib.suppress(Exception):
                return Reply(await models.judge(QUESTION))
            return Reply("done", reward=1.0, done=True)

        async def close(self) -> None: ...

    async with said(template, "and then?").serving() as server, judge_at(server.url, template) as judge:
        models = judge(max_calls=2)
        run = AgentProgress(Conversation(template, QUESTION))
        environment: Any = GuardedEnvironment("judged", User(), models)
        policy = Told(template, "1", "2", "3", "4")
        await run_agent(run, policy, cast(Any, None), AgentSpec(), Sampling(), 0, environment)
        assert (run.status, len(run.turns), run.turns[-1].reward) == (Status.TRUNCATED, 3, None)
        assert run.cut_short == (
            "the calls of the role 'judge' reached the limit `roles.judge.maxCalls`; raise it, or ask less"
        )
        with pytest.raises(RoleBudgetUsed):
            await scored(models, swallows)
        later = judge(max_calls=2)  # the same rollout under another lease
        later.go_on_after(models.calls[:2])
        assert later.calls == models.calls[:2]
        with pytest.raises(RoleBudgetUsed):
            await scored(later, swallows)
        models = judge(max_tokens=30)
        with pytest.raises(RoleBudgetUsed, match="maxTokens"):
            await scored(models, lambda models: _twice(models))


async def test_the_documented_judge_scores(template: ChatTemplate) -> None:
    page = (Path(__file__).parents[2] / "docs" / "judges.md").read_text()
    judge_block, user_block = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {"__name__": "documented"}
    exec(judge_block + user_block, names)
    essay, shop = GuardedHandler("essay", names["EssayHandler"]()), names["ShopHandler"]()
    task, turn = Task.model_validate({"kind": "essay", "topic": "rain"}), make_turn("It falls.")
    verdict = '{"reason": "short", "score": 0.25}'
    async with said(template, verdict, "No. Thank you.").serving() as server, judge_at(server.url, template) as judge:
        models = judge()
        score = await essay.evaluate(task, Evaluation({}, [turn], 60.0, models=models))
        assert (score.reward, score.notes) == (0.25, ["short"])
        user: Any = SimpleNamespace(user=models.judge)
        assert await (await shop.environment(task, None, user)).reply(turn) == Reply("No. Thank you.", done=True)


def make_turn(text: str) -> Turn:
    return Turn(segment=0, prompt_length=1, response_length=1, text=text, finish_reason="stop")


async def _twice(models: Any) -> Any:
    for _ in range(20):
        await models.judge(QUESTION)
    return json.loads('{"score": 1}')
