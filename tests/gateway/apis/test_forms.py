"""Answers in a given form and forced tool calls, with the real clients: the embedded engine masks its tokens."""

from __future__ import annotations

import json
import re
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import aiohttp
import openai
import pytest
from pydantic import BaseModel

from rollyard.gateway.requests.call_errors import GatewayError
from rollyard.gateway.requests.schema_check import check_schema
from rollyard.gateway.session.session import GatewaySession
from rollyard.gateway.session.session_config import SessionConfig
from rollyard.kinds.rollout import Sampling
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.token_client import TokenClient
from rollyard.tokens.tool_calls import ParsedTurn, parser_choice
from rollyard.trajectory.session import SessionTrajectory
from simulation.endpoint_sampler import EndpointSampler
from tests.gateway.conftest import Gateway
from tests.support import make, recompute
from tests.support.lazy_module import LazyModule

if TYPE_CHECKING:
    import anthropic
else:
    anthropic = LazyModule("anthropic")

QUESTION: Any = [{"role": "user", "content": "What is 3 * 4?"}]
LIMIT = 400


class Mood(StrEnum):
    GOOD = "good"
    BAD = "bad"


class Verdict(BaseModel, extra="forbid"):
    mood: Mood
    points: Literal[1, 2, 3]
    sure: bool


class Nested(BaseModel, extra="forbid"):
    first: Verdict
    second: Verdict | None


def tool(name: str, model: type[BaseModel]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": model.model_json_schema()}}


JUDGES: Any = [tool("judge", Verdict), tool("compare", Nested)]


def claude(gateway: Any) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=gateway.url, api_key="session-s1", max_retries=0, timeout=600)


def openai_client(gateway: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="session-s1", max_retries=0, timeout=600)


def check_recorded(session: GatewaySession, template: ChatTemplate, model_dir: Path, *constraints: str) -> None:
    """The trajectory names the constraints, and has the model's own logprobs, also where a mask chose the token."""
    turns, segments = session.turns(), session.segments()
    assert [turn.constraint for turn in turns] == list(constraints)
    for turn in turns:
        ids = segments[turn.segment].token_ids[turn.prompt_length : turn.prompt_length + turn.response_length]
        assert template.decode(ids).removesuffix(template.ends[ids[-1]]) == turn.text
    trajectory = SessionTrajectory(segments=segments, turns=turns, breaks=session.breaks())
    assert max(recompute.differences([trajectory], model_dir)) < 2e-3


async def test_every_api_answers_by_a_schema(tiny: Any, template: ChatTemplate, model_dir: Path) -> None:
    async with openai_client(tiny) as ai, claude(tiny) as other:
        said = await ai.chat.completions.parse(
            model="m", messages=QUESTION, response_format=Nested, max_tokens=LIMIT, temperature=1.0
        )
        assert isinstance(said.choices[0].message.parsed, Nested)
        assert said.choices[0].finish_reason == "stop"
        answered = await ai.responses.parse(model="m", input="What?", text_format=Verdict, max_output_tokens=LIMIT)
        assert isinstance(answered.output_parsed, Verdict)
        parsed = await other.messages.parse(model="m", max_tokens=LIMIT, messages=QUESTION, output_format=Verdict)
        assert isinstance(parsed.parsed_output, Verdict)
        wanted = {"type": "json_schema", "json_schema": {"name": "v", "schema": Verdict.model_json_schema()}}
        text = await ai.completions.create(
            model="m", prompt="Verdict:", max_tokens=LIMIT, extra_body={"response_format": wanted}
        )
        Verdict.model_validate_json(text.choices[0].text)
    check_recorded(tiny.sessions["s1"], template, model_dir, *["json_schema"] * 4)


async def test_a_stream_has_the_form_too(tiny: Any) -> None:
    async with openai_client(tiny) as ai:
        async with ai.chat.completions.stream(
            model="m", messages=QUESTION, response_format=Verdict, max_tokens=LIMIT
        ) as stream:
            final = await stream.get_final_completion()
        assert isinstance(final.choices[0].message.parsed, Verdict)


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ({"structured_outputs": {"regex": r"[a-f]{3}-\d\d"}}, "regex"),
        ({"guided_choice": ["yes, it is", "no"]}, "choice"),
        ({"guided_grammar": 'root ::= "<" [0-9] [0-9] ">"'}, "grammar"),
        ({"guided_json": json.dumps(Verdict.model_json_schema())}, "json_schema"),
    ],
)
async def test_vllms_own_fields_work(tiny: Any, asked: dict[str, Any], name: str) -> None:
    patterns = {
        "regex": r"[a-f]{3}-\d\d",
        "choice": "yes, it is|no",
        "grammar": "<[0-9]{2}>",
        "json_schema": r"(?s)\{.*\}",
    }
    async with openai_client(tiny) as ai:
        said = await ai.chat.completions.create(model="m", messages=QUESTION, max_tokens=LIMIT, extra_body=asked)
        assert re.fullmatch(patterns[name], str(said.choices[0].message.content)), said
        assert [turn.constraint for turn in tiny.sessions["s1"].turns()] == [name]


async def test_a_forced_call_follows_the_tools_schema(tiny: Any, template: ChatTemplate, model_dir: Path) -> None:
    named: Any = {"type": "function", "function": {"name": "compare"}}
    async with openai_client(tiny) as ai, claude(tiny) as other:
        said = await ai.chat.completions.create(
            model="m", messages=QUESTION, tools=JUDGES, tool_choice=named, max_tokens=LIMIT
        )
        (call,) = said.choices[0].message.tool_calls
        assert (call.function.name, said.choices[0].finish_reason) == ("compare", "tool_calls")
        Nested.model_validate_json(call.function.arguments)
        result = {"role": "tool", "tool_call_id": call.id, "content": "done"}
        again = await ai.chat.completions.create(
            model="m", messages=[*QUESTION, said.choices[0].message, result], tools=JUDGES, tool_choice="required",
            parallel_tool_calls=False, max_tokens=LIMIT,
        )  # fmt: skip
        assert len(again.choices[0].message.tool_calls) == 1
        flat = [{"type": "function", **one["function"]} for one in JUDGES]
        third: Any = await ai.responses.create(
            model="m", input="x", tools=flat, tool_choice={"type": "function", "name": "judge"}, max_output_tokens=LIMIT
        )
        assert [(item.type, item.name) for item in third.output] == [("function_call", "judge")]
        Verdict.model_validate_json(third.output[0].arguments)
        tools: Any = [{"name": t["name"], "input_schema": t["parameters"]} for t in flat]
        fourth = await other.messages.create(
            model="m", max_tokens=LIMIT, messages=QUESTION, tools=tools,
            tool_choice={"type": "any", "disable_parallel_tool_use": True},
        )  # fmt: skip
        assert [block.type for block in fourth.content] == ["tool_use"]
    session = tiny.sessions["s1"]
    assert session.breaks() == {}
    check_recorded(session, template, model_dir, *["tool_calls"] * 4)


async def test_with_tools_and_a_schema_the_turn_is_a_call_or_the_answer(tiny: Any) -> None:
    kinds = set()
    async with openai_client(tiny) as ai:
        for seed in range(12):
            said = await ai.chat.completions.parse(
                model="m", messages=QUESTION, tools=[], response_format=Verdict, max_tokens=LIMIT, seed=seed,
                extra_body={"tools": JUDGES, "parallel_tool_calls": False}, temperature=30.0,
            )  # fmt: skip
            message = said.choices[0].message
            kinds.add("call" if message.tool_calls else type(message.parsed).__name__)
    assert kinds == {"call", "Verdict"}
    assert {turn.constraint for turn in tiny.sessions["s1"].turns()} == {"json_schema_or_tool_calls"}


async def test_a_form_that_does_not_fit_ends_at_the_limit(tiny: Any) -> None:
    async with openai_client(tiny) as ai:
        said = await ai.chat.completions.create(
            model="m", messages=QUESTION, max_tokens=3, response_format={"type": "json_object"}
        )
        assert said.choices[0].finish_reason == "length"
        cut = await ai.chat.completions.create(
            model="m", messages=QUESTION, max_tokens=5, tools=JUDGES, tool_choice="required"
        )
        assert (cut.choices[0].finish_reason, cut.choices[0].message.tool_calls) == ("length", None)


def schema(**inner: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": inner}}}


AT = "response_format.json_schema.schema"
DEEP: dict[str, Any] = {"type": "string"}
for _ in range(60):
    DEEP = {"properties": {"a": DEEP}}


@pytest.mark.parametrize(
    ("asked", "where", "words"),
    [
        (schema(properties={"age": {"type": "int"}}), f"{AT}.properties.age.type", "must be one of object, array"),
        (schema(properties={"a": {"anyOf": []}}), f"{AT}.properties.a.anyOf", "at least one schema"),
        (schema(items={"$ref": "#/$defs/no"}), f"{AT}.items.$ref", "which the schema does not have"),
        (schema(**{"$ref": "https://elsewhere/s.json"}), f"{AT}.$ref", "in the same schema"),
        (schema(prefixItems=[{}, 7]), f"{AT}.prefixItems[1]", "must be a schema"),
        (schema(properties={"a": {"pattern": "(a"}}), f"{AT}.properties.a.pattern", "not a regular expression"),
        (schema(required="a"), f"{AT}.required", "list of names"),
        (schema(minItems=-1), f"{AT}.minItems", "at least 0"),
        (schema(enum=[]), f"{AT}.enum", "at least one value"),
        (schema(**DEEP), "…", "32 levels"),
        (schema(description="x" * 70_000), AT, "at most 65536"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "must have a `schema`"),
        ({"guided_regex": "(" * 3000}, "guided_regex", "at most 2000"),
        ({"guided_choice": []}, "guided_choice", "1 to 1000"),
        ({"guided_json": "{"}, "guided_json", "not valid JSON"),
        ({"guided_grammar": ""}, "guided_grammar", "must be a grammar"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs", "cannot apply"),
        ({"guided_regex": "a", **schema(type="string")}, "guided_regex", "two forms of the same answer"),
        ({"tool_choice": {"type": "function", "function": {"name": "no"}}}, "tool_choice", "not in `tools`"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice", "not supported"),
        ({"guided_regex": "a", "continue_final_message": True}, "messages", "the caller begins the turn"),
    ],
)
async def test_a_wrong_form_is_refused_with_its_place(
    scripted: Any, asked: dict[str, Any], where: str, words: str
) -> None:
    async with scripted(["No."]) as (gateway, upstream), openai_client(gateway) as ai:
        begun = [*QUESTION, {"role": "assistant", "content": "It"}] if "continue_final_message" in asked else QUESTION
        with pytest.raises(openai.BadRequestError, match=words) as refused:
            await ai.chat.completions.create(model="m", messages=begun, tools=JUDGES, extra_body=asked)
        assert where in str(refused.value.param)
        assert upstream.prompts == []


def test_the_check_of_patterns_does_not_depend_on_the_length_of_their_ranges() -> None:
    began = time.process_time()
    for begin in ("", "(?i)"):
        for last in ("\uffff", "\\uffff", "\\U0010ffff", "~"):
            pattern = begin + f"[ -{last}]" * 100
            check_schema({"anyOf": [{"pattern": pattern}] * 20}, "schema")
    assert time.process_time() - began < 5, "with the ranges as they are it takes more than a minute"
    for pattern in ("[é-\uffff", "(\\u00e9", "[\uffff-a]"):
        with pytest.raises(GatewayError, match="not a regular expression"):
            check_schema({"pattern": pattern}, "schema")


async def test_an_engine_that_ignores_the_form_is_found_out(scripted: Any) -> None:
    async with scripted(["It is 12."]) as (gateway, upstream), openai_client(gateway) as ai:
        for asked in (schema(type="object"), {"guided_choice": ["yes"]}, {"tools": JUDGES, "tool_choice": "required"}):
            with pytest.raises(openai.BadRequestError, match="ignored the form") as refused:
                await ai.chat.completions.create(model="m", messages=QUESTION, extra_body=asked)
            assert refused.value.code == "constraint_ignored"
        assert (len(upstream.prompts), gateway.sessions["s1"].turns()) == (3, [])


async def test_what_the_engine_cannot_apply_is_a_400_with_its_words(tiny: Any) -> None:
    async with openai_client(tiny) as ai:
        with pytest.raises(openai.BadRequestError, match="Unknown format: colour"):
            await ai.chat.completions.create(
                model="m", messages=QUESTION, extra_body=schema(type="string", format="colour")
            )
        with pytest.raises(openai.BadRequestError, match="cannot be followed: lexer error"):  # found out on the way
            await ai.chat.completions.create(
                model="m", messages=QUESTION, extra_body={"guided_regex": "(a?){500}a{500}"}
            )


async def test_a_parser_without_a_form_cannot_force_calls(scripted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Shouting:
        form, error_role = "SHOUT.", "tool"

        def __init__(self, tools: Any) -> None: ...

        def parse(self, text: str) -> ParsedTurn:
            return ParsedTurn(text)

    monkeypatch.setitem(parser_choice.BUILT_IN, "shouting", parser_choice.Family(Shouting, ()))
    config = SessionConfig("policy", Sampling(), tool_parser="shouting")
    async with scripted(["Hi."], config) as (gateway, _), openai_client(gateway) as ai:
        with pytest.raises(openai.BadRequestError, match="Shouting cannot force calls: it has no method `calls_form`"):
            await ai.chat.completions.create(model="m", messages=QUESTION, tools=JUDGES, tool_choice="required")
        odd: Any = [tool("say it", Verdict)]
        config = SessionConfig("policy", Sampling())
    async with scripted(["Hi."], config) as (gateway, _), openai_client(gateway) as ai:
        with pytest.raises(openai.BadRequestError, match="'say it' cannot be forced: its name may have letters"):
            await ai.chat.completions.create(model="m", messages=QUESTION, tools=odd, tool_choice="required")


async def test_thoughts_before_the_form_are_kept_from_the_caller_only(scripted: Any) -> None:
    """An engine with a reasoning parser masks from the end of the thoughts on."""
    answer = '{"mood": "good", "points": 2, "sure": true}'
    async with scripted([f"<think>Hm.</think>\n\n{answer}", "Yes."]) as (gateway, _), openai_client(gateway) as ai:
        said = await ai.chat.completions.parse(model="m", messages=QUESTION, response_format=Verdict)
        assert said.choices[0].message.content == answer
        then = [*QUESTION, {"role": "assistant", "content": answer}, {"role": "user", "content": "Sure?"}]
        await ai.chat.completions.create(model="m", messages=then)
        session = gateway.sessions["s1"]
        assert session.turns()[0].text == f"<think>Hm.</think>\n\n{answer}"
        assert (len(session.segments()), session.breaks()) == (1, {})


async def test_the_sessions_own_form_applies_to_calls_without_one(engine: Any, template: ChatTemplate) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(engine.socket), limit=0)) as http:
        policy = EndpointSampler(TokenClient(http), make.endpoint(url="http://engine"), template.stop_ids)
        config = SessionConfig("policy", Sampling(extra={"structured_outputs": {"regex": "ab{3}"}}))
        async with Gateway(template, policy, config).serving() as gateway, openai_client(gateway) as ai:
            async with ai.chat.completions.stream(model="m", messages=QUESTION) as stream:
                final = await stream.get_final_completion()
            assert final.choices[0].message.content == "abbb"
            said = await ai.chat.completions.create(
                model="m", messages=QUESTION, extra_body={"guided_choice": ["yes", "no"]}
            )
            assert said.choices[0].message.content in ("yes", "no")
            names = [turn.constraint for turn in gateway.sessions["s1"].turns()]
    assert names == ["structured_outputs", "choice"]
