"""Answers in a form and forced calls on vLLM itself, through the gateway."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import openai
import pytest
from pydantic import BaseModel

from rollyard.engine.launch.launch_plan import LaunchPlan
from rollyard.engine.process.owned_engine import start_engine
from rollyard.gateway.session.session_config import SessionConfig
from rollyard.kinds.base import evolve
from rollyard.kinds.rollout import Sampling
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.constraint import Constraint
from rollyard.tokens.endpoint_dialects import GENERATE
from rollyard.tokens.token_client import TokenClient
from rollyard.tokens.tool_calls import parser_choice
from rollyard.tokens.tool_calls.family_parser import FamilyParser
from simulation.endpoint_sampler import EndpointSampler
from tests.engine.vllm.test_real_vllm import MODEL, answers, spec
from tests.gateway.apis.test_forms import JUDGES, LIMIT, QUESTION, Nested, Verdict, openai_client
from tests.gateway.conftest import Gateway
from tests.support import make
from tests.support.lazy_module import LazyModule
from tests.support.vllm_env import vllm_python

if TYPE_CHECKING:
    import anthropic
else:
    anthropic = LazyModule("anthropic")

__all__ = ["vllm_python"]
pytestmark = [pytest.mark.heavy, pytest.mark.long]

COMPACT = ["--structured-outputs-config", '{"backend": "xgrammar", "disable_any_whitespace": true}']
MODELS: dict[str, type[BaseModel]] = {"judge": Verdict, "compare": Nested}
CHOICES = ["yes, it is", "no", "nothing"]


def masked_logprobs(template: ChatTemplate, prompt: list[int], ids: list[int], choices: Sequence[str]) -> list[float]:
    """Return the logprobs of a turn of text among the tokens that continue one of the choices."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)(torch.tensor([prompt + ids])).logits[
            0
        ]
    texts, found = [template.decode([i]) for i in range(logits.shape[1])], []
    for n, id in enumerate(ids):
        written = template.decode(ids[:n])
        rests = [choice[len(written) :] for choice in choices if choice.startswith(written)]
        fits = [any(rest.startswith(text) for rest in rests) and not text.startswith("<|") for text in texts]
        fits = [fit or (i in template.stop_ids and "" in rests) for i, fit in enumerate(fits)]
        row = logits[len(prompt) + n - 1].masked_fill(~torch.tensor(fits), -torch.inf)
        found.append(torch.log_softmax(row, -1)[id].item())
    return found


async def test_vllm_keeps_to_forms_and_masks_its_logprobs(vllm_python: str, tmp_path: Path) -> None:
    asked = spec(MODEL, python=vllm_python, extraArgs=["--dtype", "float32", *COMPACT])
    engine = await start_engine(await LaunchPlan(asked, tmp_path / "v")())
    template = ChatTemplate.load(MODEL)
    try:
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(tmp_path / "v"), limit=0)) as http:
            await answers(http, [engine])
            endpoint = make.endpoint(url="http://engine")
            policy = EndpointSampler(TokenClient(http), endpoint, template.stop_ids)
            config = SessionConfig("policy", Sampling(max_tokens=LIMIT), fixed=False)
            async with Gateway(template, policy, config).serving() as gateway:
                await every_api_has_the_form(gateway)
                await calls_are_forced(gateway)
                await faults_are_refused(gateway)
            cannot = FamilyParser.calls_form  # refuses
            able = [n for n, one in parser_choice.BUILT_IN.items() if type(one.make(JUDGES)).calls_form is not cannot]
            assert {"harmony", "mistral", "glm", "minimax_m2", "qwen3_coder", "llama3_json", "hermes"} <= {*able}
            for parser in able:
                one = SessionConfig("policy", Sampling(max_tokens=LIMIT), fixed=False, tool_parser=parser)
                async with Gateway(template, policy, one).serving() as gateway, openai_client(gateway) as ai:
                    forced: Any = {"tools": JUDGES[:1], "tool_choice": "required", "parallel_tool_calls": False}
                    said = await ai.chat.completions.create(model="m", messages=QUESTION, **forced)
                    calls = said.choices[0].message.tool_calls
                    assert calls is not None, (parser, said)
                    ((name, arguments),) = [(call.function.name, call.function.arguments) for call in calls]
                    assert name == "judge"
                    values = {key: v.strip() if isinstance(v, str) else v for key, v in json.loads(arguments).items()}
                    Verdict.model_validate(values)
            # the same on vLLM's route for ids, which takes the parameter in `sampling_params`
            prompt = template.encode("It is")
            by_ids = evolve(endpoint, ca=False)
            for route in (endpoint, by_ids):
                sampled = await policy.tokens.complete(
                    route,
                    prompt,
                    Constraint("choice", CHOICES).applied_to(Sampling(temperature=1.0)),
                    20,
                    template.stop_ids,
                )
                assert template.decode(sampled.token_ids[:-1]) in CHOICES
                exact = masked_logprobs(template, prompt, sampled.token_ids, CHOICES)
                assert sampled.logprobs == pytest.approx(exact, abs=2e-3)
            assert (await policy.tokens._routes.of(by_ids)).dialect is GENERATE
    finally:
        await engine.end()


async def every_api_has_the_form(gateway: Any) -> None:
    other = anthropic.AsyncAnthropic(base_url=gateway.url, api_key="session-s1", max_retries=0, timeout=600)
    async with openai_client(gateway) as ai, other:
        said = await ai.chat.completions.parse(model="m", messages=QUESTION, response_format=Nested)
        assert isinstance(said.choices[0].message.parsed, Nested)
        answered = await ai.responses.parse(model="m", input="What?", text_format=Verdict)
        assert isinstance(answered.output_parsed, Verdict)
        parsed = await other.messages.parse(model="m", max_tokens=LIMIT, messages=QUESTION, output_format=Verdict)
        assert isinstance(parsed.parsed_output, Verdict)
        for asked, pattern in [
            ({"guided_regex": "[a-f]{3}-[0-9]{2}"}, "[a-f]{3}-[0-9]{2}"),
            ({"structured_outputs": {"choice": CHOICES}}, "|".join(CHOICES)),
            ({"guided_grammar": 'root ::= "<" [0-9] [0-9] ">"'}, "<[0-9]{2}>"),
        ]:
            text = await ai.completions.create(model="m", prompt="It is", max_tokens=LIMIT, extra_body=asked)
            assert re.fullmatch(pattern, text.choices[0].text), text
    names = ["json_schema"] * 3 + ["regex", "choice", "grammar"]
    assert [turn.constraint for turn in gateway.sessions["s1"].turns()] == names


async def calls_are_forced(gateway: Any) -> None:
    kinds = set()
    async with openai_client(gateway) as ai:
        for choice in ("required", {"type": "function", "function": {"name": "compare"}}):
            forced: Any = {"tools": JUDGES, "tool_choice": choice, "parallel_tool_calls": False}
            said = await ai.chat.completions.create(model="m", messages=QUESTION, **forced)
            (call,) = said.choices[0].message.tool_calls
            MODELS[call.function.name].model_validate_json(call.function.arguments)
        for seed in range(12):
            free = await ai.chat.completions.parse(
                model="m", messages=QUESTION, response_format=Verdict, seed=seed, temperature=2.0,
                extra_body={"tools": JUDGES, "parallel_tool_calls": False, "top_k": 1000},
            )  # fmt: skip
            message = free.choices[0].message
            kinds.add("call" if message.tool_calls else type(message.parsed).__name__)
    assert kinds <= {"call", "Verdict"}
    names = {turn.constraint for turn in gateway.sessions["s1"].turns()[6:]}
    assert names == {"tool_calls", "json_schema_or_tool_calls"}


async def faults_are_refused(gateway: Any) -> None:
    async with openai_client(gateway) as ai:
        for asked in (
            {"guided_regex": "("},
            {"guided_json": {"type": "array", "uniqueItems": True}},
            {"guided_grammar": "root ::= nothing"},
        ):
            with pytest.raises(openai.BadRequestError) as refused:
                await ai.chat.completions.create(model="m", messages=QUESTION, extra_body=asked)
            print(asked, refused.value)
