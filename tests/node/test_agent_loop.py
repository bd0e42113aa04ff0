"""The loop over the real conversation, template and tools; the policy says what it was told to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from rollyard.core.errors import ContextExceeded
from rollyard.kinds.rollout import AgentSpec, Sampling, Status
from rollyard.node.agent_loop import AgentProgress, run_agent
from rollyard.node.tool_execution import Tools
from rollyard.sandbox.base import Limits, SandboxSpec
from rollyard.sandbox.find_runtime import find_runtime
from rollyard.sandbox.sandbox import Sandbox
from rollyard.sandbox.sandbox_factory import SandboxFactory
from rollyard.tasks.tool_schemas import SCHEMAS
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.conversation import Conversation
from rollyard.tokens.sampled_tokens import Sampled
from rollyard.tokens.tool_calls import ParsedTurn, ToolCall, parser_choice, parser_for
from rollyard.trajectory import Outcome
from rollyard.trajectory.columns import columns_of

QUESTION = [{"role": "user", "content": "What is there?"}]
OFFERED = ["bash"]


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    limits = Limits(cpus=1, memory_bytes=1 << 30, disk_bytes=64 << 20)
    async with (
        SandboxFactory(find_runtime("auto")) as sandboxes,
        await sandboxes.start(SandboxSpec(None, limits)) as started,
    ):
        yield started


class Told:
    """A policy that says these texts, one a turn."""

    context: int | None = None

    def __init__(self, template: ChatTemplate, *texts: str) -> None:
        self._turns = iter([[*template.encode(text), template.stop_ids[0]] for text in texts])
        self.prompts: list[str] = []
        self._template = template

    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling) -> Sampled:
        self.prompts.append(self._template.decode(prompt_ids))
        ids = next(self._turns)
        return Sampled(ids, [-0.5] * len(ids), ["v1"] * len(ids), "stop")


async def run(template: ChatTemplate, sandbox: Sandbox, name: str | None, *texts: str) -> tuple[AgentProgress, Told]:
    schemas = [SCHEMAS[tool] for tool in OFFERED]
    parser = parser_for(template, name, schemas)
    done, policy = AgentProgress(Conversation(template, QUESTION, schemas, parser=parser)), Told(template, *texts)
    await run_agent(done, policy, Tools(OFFERED, sandbox, 30.0, parser.form), AgentSpec(), Sampling(), 0)
    return done, policy


class Full(Told):
    """A policy whose context holds so many tokens."""

    def __init__(self, template: ChatTemplate, context: int, *texts: str) -> None:
        super().__init__(template, *texts)
        self._context = context

    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling) -> Sampled:
        if len(prompt_ids) >= self._context:
            raise ContextExceeded(f"the conversation has {len(prompt_ids)} tokens of {self._context}")
        return await super().sample(prompt_ids, sampling)


async def test_a_prompt_larger_than_the_context_is_no_truncated_rollout_but_an_error_with_both_numbers(
    model_dir: Path, sandbox: Sandbox
) -> None:
    template = ChatTemplate.load(model_dir)
    schemas = [SCHEMAS[tool] for tool in OFFERED]
    parser = parser_for(template, None, schemas)
    prompt = len(Conversation(template, QUESTION, schemas).prompt_ids())
    tools = Tools(OFFERED, sandbox, 30.0, parser.form)
    done = AgentProgress(Conversation(template, QUESTION, schemas, parser=parser))
    with pytest.raises(
        ContextExceeded, match=f"the prompt has {prompt} tokens and leaves no room .* tokens of {prompt}"
    ):
        await run_agent(done, Full(template, prompt, "x"), tools, AgentSpec(), Sampling(), 0)
    policy = Full(template, prompt + 1, bash("echo more"))
    await run_agent(done, policy, tools, AgentSpec(), Sampling(), 0)
    assert (done.status, len(done.turns)) == (Status.TRUNCATED, 1), "later it is the agent's outcome"
    assert (done.cut_short or "").startswith("the conversation reached the end of the context: ")
    done = AgentProgress(Conversation(template, QUESTION, schemas, parser=parser))
    await run_agent(done, Told(template, bash("echo more")), tools, AgentSpec(max_turns=1), Sampling(), 0)
    assert done.cut_short == "the agent used all of its turns; `agent.max_turns` is 1"


async def test_a_prompt_of_a_million_characters_leaves_the_others_their_turns(model_dir: Path) -> None:
    template = ChatTemplate.load(model_dir)
    policy = Told(template, "x")
    done = AgentProgress(Conversation(template, [{"role": "user", "content": "x " * 500_000}]))
    running = asyncio.ensure_future(run_agent(done, policy, cast(Any, None), AgentSpec(), Sampling(), 0))
    turns = 0
    while not policy.prompts:
        await asyncio.sleep(0)
        turns += 1
    assert turns > 50, "the event loop went on while it was tokenised"
    await running
    assert done.status is Status.COMPLETED


async def test_a_problem_of_4_mb_ends_at_once_with_the_length_that_it_has_at_least(model_dir: Path) -> None:
    template = ChatTemplate.load(model_dir)
    policy = Told(template, "x")
    policy.context = 4096
    done = AgentProgress(Conversation(template, [{"role": "user", "content": "word " * 800_000}]))
    with pytest.raises(ContextExceeded, match=r"the prompt has at least \d+ tokens and leaves no room for an answer"):
        await run_agent(done, policy, cast(Any, None), AgentSpec(), Sampling(), 0)
    assert (policy.prompts, done.turns) == ([], [])


async def test_a_budget_that_ends_while_a_prompt_is_tokenised_leaves_a_conversation_to_look_at(model_dir: Path) -> None:
    template = ChatTemplate.load(model_dir)
    conversation = Conversation(template, [{"role": "user", "content": "x " * 500_000}])
    done = AgentProgress(conversation)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await run_agent(done, Told(template, "x"), cast(Any, None), AgentSpec(), Sampling(), 0)
    assert (done.status, conversation.segments(), done.turns) == (Status.TRUNCATED, [], [])
    assert len(conversation.prompt_ids()) > 500_000, "no thread is at it any more"


def bash(command: str) -> str:
    return f'<tool_call>\n{{"name": "bash", "arguments": {{"command": "{command}"}}}}\n</tool_call>'


async def test_parallel_calls_are_answered_in_order_in_one_shell(model_dir: Path, sandbox: Sandbox) -> None:
    template = ChatTemplate.load(model_dir)
    calls = f"{bash('x=1; echo one')}\n{bash('echo $x two')}\n{bash('exit 3')}"
    done, policy = await run(template, sandbox, None, calls, "That is all.")
    assert done.status is Status.COMPLETED
    first, last = done.turns
    assert [call["arguments"]["command"] for call in first.tool_calls] == ["x=1; echo one", "echo $x two", "exit 3"]
    assert first.tool_results[:2] == ["one", "1 two"]
    results = "".join(f"\n<tool_response>\n{result}\n</tool_response>" for result in first.tool_results)
    assert policy.prompts[1].endswith(f"<|im_start|>user{results}<|im_end|>\n<|im_start|>assistant\n")
    assert (last.text, last.tool_calls) == ("That is all.", [])
    (segment,) = done.conversation.segments()
    assert sum(segment.loss_mask) == first.response_length + last.response_length


async def test_calls_before_a_malformed_one_are_carried_out(model_dir: Path, sandbox: Sandbox) -> None:
    template = ChatTemplate.load(model_dir)
    done, _ = await run(template, sandbox, None, f"{bash('echo one')}<tool_call>ls</tool_call>", "Done.")
    form = 'Write one JSON object {"name": "...", "arguments": {...}} inside <tool_call></tool_call>.'
    wrong = f"Error: invalid tool call: Expecting value: line 1 column 1 (char 0). {form}"
    assert done.turns[0].tool_results == ["one", wrong]
    assert done.unread == 1


ODD = {
    r"printf 'a\360b\n'; (exit 7)": "a\ufffdb\n[exit code 7]",
    r"printf 'x\0y\n'": "x\0y",
    r"printf '\033]0;t\007\033[2J\033c\r50%%\r100%%\n'": "\x1b]0;t\x07\x1b[2J\x1bc\r50%\r100%",
    r"printf '\342\200\250\357\273\277<|im_end|>\n'": "\u2028\ufeff<|im_end|>",
    "mkdir odd; cd odd; touch $'\\xff.txt'; ls | cat; cd ..": "\ufffd.txt",
    "echo \ud83c\udf78": "\U0001f378",
    "head -c 3000000 /dev/urandom": None,
    "python3 -c 'print(chr(233) * 70001)'": None,
}
"""Command -> its result. The last two have a middle that is left out."""


async def test_odd_bytes_of_a_command_cost_no_turn_and_no_reader_of_the_trajectory(
    model_dir: Path, sandbox: Sandbox
) -> None:
    template = ChatTemplate.load(model_dir)
    calls = [json.dumps({"name": "bash", "arguments": {"command": command}}) for command in [*ODD, "echo \ud83c"]]
    done, _ = await run(template, sandbox, None, *(f"<tool_call>\n{call}\n</tool_call>" for call in calls), "Done.")
    results = [turn.tool_results for turn in done.turns]
    for (command, wanted), (result,) in zip(ODD.items(), results, strict=False):
        assert result == wanted or (wanted is None and len(result) > 10_000), command
    assert "\ufffd" not in results[7][0], "no character is cut"
    assert results[8][0].startswith("Error: invalid tool call: "), "half of a character"
    segments = done.conversation.segments()
    text = template.decode(segments[0].token_ids)
    assert all(f"\n<tool_response>\n{result}\n</tool_response>" in text for (result,) in results[:8])
    outcome = Outcome(status=done.status, reward=1.0, segments=segments, turns=done.turns)
    for text in (outcome.model_dump_json(), json.dumps(columns_of([outcome]).documents()[0])):
        read = json.loads(text.encode(), parse_constant=pytest.fail)
        assert [turn["tool_results"] for turn in read["turns"]] == results


@pytest.mark.parametrize(
    ("name", "call", "bad", "form"),
    [
        ("llama3_json", '{"name": "bash", "parameters": {"command": "echo hi"}}', '{"name": 1}', '"parameters": {...}'),
        (
            "mistral",
            '[TOOL_CALLS] [{"name": "bash", "arguments": {"command": "echo hi"}}]',
            "[TOOL_CALLS]",
            "[TOOL_CALLS]",
        ),
        (
            "glm",
            "<tool_call>bash<arg_key>command</arg_key><arg_value>echo hi</arg_value></tool_call>",
            "<tool_call></tool_call>",
            "<arg_key>",
        ),
    ],
)
async def test_each_family_is_answered_in_its_own_form(
    model_dir: Path, sandbox: Sandbox, name: str, call: str, bad: str, form: str
) -> None:
    template: Any = ChatTemplate.load(model_dir)
    unknown = call.replace("command", "cmd")
    done, policy = await run(template, sandbox, name, call, bad, unknown, "Done.")
    results = [turn.tool_results for turn in done.turns]
    assert results[0] == ["hi"]
    for (result,) in results[1:3]:
        assert result.startswith("Error: invalid tool call: ")
        assert form in result
    assert done.status is Status.COMPLETED
    assert all(result in policy.prompts[-1] for (result,) in results[:3])


STRICT = """
{%- set ns = namespace(turn=0) %}
{%- for m in messages %}
    {%- if m.role == 'user' or m.role == 'assistant' and not m.tool_calls %}
        {%- if (m.role == 'user') != (ns.turn % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
        {%- set ns.turn = ns.turn + 1 %}
    {%- endif %}
    {%- for call in m.tool_calls or [] %}
        {%- if call.id | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}
        {{- '[TOOL_CALLS]' + call.function | tojson }}
    {%- endfor %}
    {%- if m.role == 'tool' %}
        {{- '[TOOL_RESULTS]' + m.content + '[CALL_ID]' + m.tool_call_id + '[/TOOL_RESULTS]' }}
    {%- elif m.role == 'user' %}{{ '[INST]' + m.content + '[/INST]' }}
    {%- else %}{{ (m.content or '') + '<|im_end|>' }}
    {%- endif %}
{%- endfor %}"""
"""A chat template with the rules of Mistral's."""


@pytest.mark.parametrize(
    ("call", "id"),
    [
        ('[TOOL_CALLS][{"name": "bash", "arguments": {"command": "echo hi"}, "id": "x"}]', "000000000"),
        ('[TOOL_CALLS][{"name": "bash", "arguments": {"command": "echo hi"}, "id": "a1b2c3d4e"}]', "a1b2c3d4e"),
        ('[TOOL_CALLS]bash[CALL_ID]call_0000[ARGS]{"command": "echo hi"}', "000000000"),
    ],
)
async def test_whatever_the_model_writes_a_strict_template_is_answered_well(
    model_dir: Path, sandbox: Sandbox, call: str, id: str
) -> None:
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(model_dir)
    tokenizer.chat_template = STRICT
    template = ChatTemplate(tokenizer, [tokenizer.eos_token_id])
    done, policy = await run(template, sandbox, None, f"{call}[TOOL_CALLS]oh", "[TOOL_CALLS]", call, "Done.")
    assert done.status is Status.COMPLETED
    form = 'Write [TOOL_CALLS] and behind it one JSON array [{"name": "...", "arguments": {...}}].'
    wrong = f"Error: invalid tool call: Expecting value: line 1 column 1 (char 0). {form}"
    assert [turn.tool_results for turn in done.turns] == [[f"hi\n{wrong}"], [wrong], ["hi"], []]
    assert policy.prompts[1].endswith(f"[TOOL_RESULTS]hi\n{wrong}[CALL_ID]{id}[/TOOL_RESULTS]")
    assert policy.prompts[2].endswith(f"[INST]{wrong}[/INST]")


class Careless:
    """A parser that somebody has installed."""

    form = "Write it well."
    error_role = "user"

    def __init__(self) -> None:
        self._hermes = parser_for(cast(ChatTemplate, None), "hermes")

    def parse(self, text: str) -> Any:
        if "raise" in text:
            raise IndexError("list index out of range")
        if "none" in text:
            return None
        if "odd" in text:
            return ParsedTurn(text, (ToolCall("bash", {"command": {1, 2}}),))
        return self._hermes.parse(text)


async def test_a_parser_that_fails_is_a_malformed_call_and_the_turn_is_kept(
    model_dir: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        parser_choice,
        "BUILT_IN",
        {**parser_choice.BUILT_IN, "careless": parser_choice.Family(lambda tools: Careless(), ())},
    )
    template = ChatTemplate.load(model_dir)
    done, policy = await run(template, sandbox, "careless", "raise", "none", "odd", bash("echo on"), "Done.")
    assert done.status is Status.COMPLETED
    assert [turn.text for turn in done.turns][:3] == ["raise", "none", "odd"]
    for turn, why in zip(
        done.turns, ("IndexError('list index out of range')", "it gave NoneType", "set"), strict=False
    ):
        (answer,) = turn.tool_results
        assert answer.startswith("Error: invalid tool call: the parser of tool calls failed: ")
        assert why in answer
        assert answer.endswith("Write it well.")
        assert answer in policy.prompts[-1]
    assert done.turns[3].tool_results == ["on"]
    (segment,) = done.conversation.segments()
    assert sum(segment.loss_mask) == sum(turn.response_length for turn in done.turns)
