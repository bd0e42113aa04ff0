"""Thousands of turns of what no model should ever say, over every shape of tokenizer under every family's template.

What was sampled must come out id by id, every prompt must be what its segment says stood there, and the prefix must break
exactly where the family's rule says; the rule is written in `families.py` from the template, without our code.
"""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rollyard.core.errors import EndpointRefused
from rollyard.kinds.rollout import Sampling
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.conversation import Conversation
from rollyard.tokens.token_client import TokenClient
from rollyard.tokens.tool_calls import ToolCall, parser_for
from tests.support import make
from tests.support.small_tokenizers import LOSSLESS, SHAPES, fitted, with_shapes
from tests.support.template_families import FAMILIES, Call, Family, Said

TURNS = 28
"""Turns for each shape under each family: with five shapes and eight families 1,120 in all."""
CONVERSATION = 14
TOOLS = [
    {
        "type": "function",
        "function": {"name": "bash", "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}},
    }
]
WORDS = ["yes", "no", "3.14", "Straße", "漢字", "🎉", "</tool_call>", "\n", "  ", "fox", "{{ 1 }}", "<0x0A>", "x = 1"]

TEXTUAL = [family for family in FAMILIES if family.name not in ("Mistral", "gpt-oss")]
"""The families whose templates take calls as text."""


Sample = Callable[[list[int]], Awaitable[tuple[list[int], list[float], str]]]


@dataclass
class Sampler:
    """Says what a model might, and what it had better not."""

    family: Family
    template: ChatTemplate
    vocabulary: int
    random: random.Random
    calls: list[Call] = field(default_factory=list)
    """Calls of the last turn."""

    def turn(self) -> tuple[list[int], str]:
        """Ids, and how the turn ended."""
        self.calls = []
        ids = self.random.choice([self._noise, self._answer, self._thinking, self._calling, self._calling])()
        if ids and not self.calls and self.random.random() < 0.2:
            return ids, "length"
        stop = self.random.choice(self.template.stop_ids)
        return [*ids, stop], "stop"

    def _noise(self) -> list[int]:
        """Halves of characters, special tokens, ends of turns in the middle."""
        return [self.random.randrange(self.vocabulary) for _ in range(self.random.randint(1, 30))]

    def _words(self) -> str:
        return " ".join(self.random.choices(WORDS, k=self.random.randint(1, 6)))

    def _answer(self) -> list[int]:
        return self.template.encode(self.family.answer(self._words()))

    def _thinking(self) -> list[int]:
        thoughts = self.template.encode(self.family.thoughts(self._words()))
        noise = self._noise()[:5] if self.random.random() < 0.3 else []
        return [*thoughts, *self.template.encode(self.family.answer("So " + self._words())), *noise]

    def _calling(self) -> list[int]:
        number = self.random.randint(1, self.family.most_calls)
        self.calls = [("bash", {"command": f"echo {self.random.randint(0, 999)}"}) for _ in range(number)]
        thoughts = self.family.thoughts(self._words()) if self.random.random() < 0.5 else ""
        return self.template.encode(thoughts + self.family.calls(self.calls))


@dataclass
class Record:
    """Record of the conversation, kept apart from the code under test."""

    prompts: list[list[int]] = field(default_factory=list)
    sampled: list[list[int]] = field(default_factory=list)
    said: list[Said] = field(default_factory=list)


def thinks(family: Family, text: str) -> bool:
    if family.name == "gpt-oss":
        analysis = text.rfind("<|channel|>analysis")
        return analysis >= 0 and "<|start|>assistant" in text[analysis:]
    return "</think>" in text and "</think>" in family.template


def add(conversation: Conversation, sampler: Sampler, calls: tuple[ToolCall, ...]) -> tuple[str, list[dict[str, Any]]]:
    """Add messages that follow a turn; return their role, and the messages."""
    pick = sampler.random
    if calls:
        results = [sampler._words() for _ in calls]
        conversation.add_results(results)
        return "tool", [{"role": "tool", "content": result} for result in results]
    role = pick.choice(["user", "user", "system"]) if sampler.family.systems else "user"
    added = [{"role": role, "content": sampler._words()}]
    conversation.add_messages(added)
    return role, added


def check(conversation: Conversation, record: Record) -> None:
    segments = conversation.segments()
    runs, prompts = [], iter(record.prompts)
    for segment in segments:
        ids, mask = segment.token_ids, segment.loss_mask
        arrays = (ids, mask, segment.logprobs, segment.weights_version)
        assert len({len(array) for array in arrays}) == 1
        assert segment.prompt_length == mask.index(1)
        assert mask[-1] == 1
        start = 0
        while start < len(ids):
            first = mask.index(1, start)
            last = next((i for i in range(first, len(mask)) if not mask[i]), len(mask))
            assert next(prompts) == ids[:first]
            runs.append(ids[first:last])
            start = last
    assert runs == record.sampled
    assert len(segments) == 1 + len(conversation.breaks)
    assert all(broken.why for broken in conversation.breaks)


async def converse(family: Family, sampler: Sampler, lossless: bool, sample: Sample) -> int:
    """One conversation; gives how many turns it had."""
    template = sampler.template
    parser = parser_for(template, family.parser, TOOLS)
    assert type(parser_for(template)) is type(parser)
    start = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 3 * 4?"}]
    conversation, record = Conversation(template, start, TOOLS, parser=parser), Record()
    after, messages, shown = "user", list(start), ""
    for number in range(CONVERSATION):
        prompt = conversation.prompt_ids()
        if lossless and family in TEXTUAL:
            # what the template makes of the very texts, without our code
            whole, said, before = template.render(messages, TOOLS, True), template.decode(prompt), shown
            for turn in sorted({turn.text for turn in record.said}, key=len, reverse=True):
                whole, said, before = (text.replace(turn, family.spelling(turn)) for text in (whole, said, before))
            assert said == whole
            assert ([number] == [broken.turn for broken in conversation.breaks][-1:]) == (not whole.startswith(before))
        record.prompts.append(prompt)
        ids, logprobs, finish = await sample(prompt)
        record.sampled.append(ids)
        text = conversation.add_sampled(ids, logprobs, "v1", finish)
        parsed = conversation.last.parsed
        shown = template.decode([*prompt, *ids])
        calls = parsed.calls
        if lossless and sampler.calls:
            assert [(c.name, c.arguments) for c in calls] == sampler.calls, text
        record.said.append(Said(text, len(calls), thinks(family, text), after))
        after, added = add(conversation, sampler, calls)
        messages += [{"role": "assistant", "content": text}, *added]
    check(conversation, record)
    return len(record.said)


BY_NAME = {family.name: family for family in FAMILIES}


@pytest.mark.parametrize(("shape", "name"), with_shapes(BY_NAME))
async def test_no_token_drifts_and_the_prefix_breaks_by_the_rule(shape: str, name: str) -> None:
    family = BY_NAME[name]
    tokenizer = fitted(shape, family)
    template = ChatTemplate(tokenizer, tokenizer.convert_tokens_to_ids(family.stops))
    sampler = Sampler(family, template, len(tokenizer), random.Random(f"{shape}/{family.name}"))

    async def sample(prompt: list[int]) -> tuple[list[int], list[float], str]:
        ids, finish = sampler.turn()
        return ids, [-0.01 * i for i in range(len(ids))], finish

    turns = [await converse(family, sampler, shape in LOSSLESS, sample) for _ in range(TURNS // CONVERSATION)]
    assert sum(turns) == TURNS


REAL = list(zip(SHAPES, FAMILIES[1:], strict=False))


@pytest.mark.parametrize(("shape", "family"), REAL, ids=[shape for shape, _ in REAL])
async def test_so_it_is_with_a_model_of_random_weights(
    shape: str, family: Family, tmp_path: Path, start_engine: Any
) -> None:
    """The real engine behind the real client; what such a model says is noise of every kind."""
    tokenizer = fitted(shape, family)
    engine = start_engine(model=random_model(tmp_path, tokenizer))
    template = ChatTemplate.load(tmp_path)
    sampler = Sampler(family, template, len(tokenizer), random.Random(shape))
    endpoint = make.endpoint("engine", "http://engine")
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(engine.socket))) as http:
        client = TokenClient(http)

        async def sample(prompt: list[int]) -> tuple[list[int], list[float], str]:
            asked = Sampling(temperature=1.5, seed=len(prompt))
            answer = await client.complete(endpoint, prompt, asked, 12, template.stop_ids)
            return answer.token_ids, answer.logprobs, answer.finish_reason

        for _ in range(2):
            assert await converse(family, sampler, shape in LOSSLESS, sample) == CONVERSATION
        with pytest.raises(EndpointRefused, match="`min_p` is not supported by the embedded engine; leave it out"):
            await client.complete(endpoint, [1, 2], Sampling(min_p=0.5), 12, template.stop_ids)


def random_model(folder: Path, tokenizer: Any) -> Path:
    """As wide as the tokenizer, and no wiser than it was made."""
    import numpy as np
    from safetensors.numpy import save_file

    tokenizer.save_pretrained(folder)
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 16384}
    config = {"model_type": "qwen3", "eos_token_id": tokenizer.eos_token_id, **sizes, **heads}
    (folder / "config.json").write_text(json.dumps(config))
    layer = "model.layers.0."
    shapes = {
        "model.embed_tokens.weight": (len(tokenizer), 32),
        "lm_head.weight": (len(tokenizer), 32),
        **{layer + f"self_attn.{name}.weight": shape for name, shape in ATTENTION.items()},
        **{layer + f"mlp.{name}.weight": shape for name, shape in MLP.items()},
    }
    numbers = np.random.default_rng(0)
    weights = {name: 0.3 * numbers.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    norms = {"model.norm": 32, layer + "input_layernorm": 32, layer + "post_attention_layernorm": 32}
    norms |= {layer + "self_attn.q_norm": 16, layer + "self_attn.k_norm": 16}
    weights |= {f"{name}.weight": np.ones(size, np.float32) for name, size in norms.items()}
    save_file(weights, folder / "model.safetensors")
    return folder


ATTENTION = {"q_proj": (32, 32), "k_proj": (16, 32), "v_proj": (16, 32), "o_proj": (32, 32)}
MLP = {"gate_proj": (64, 32), "up_proj": (64, 32), "down_proj": (32, 64)}


@pytest.mark.parametrize("family", TEXTUAL, ids=lambda family: family.name)
def test_what_is_written_well_is_sent_as_the_template_writes_it(family: Family) -> None:
    """After every break too: the ids of the prompt spell what the template makes of the real messages."""
    tokenizer = fitted("byte-level BPE", family)
    template = ChatTemplate(tokenizer, tokenizer.convert_tokens_to_ids(family.stops))
    messages: list[dict[str, Any]] = [{"role": "user", "content": "What is 3 * 4?"}]
    conversation = Conversation(template, messages, TOOLS)
    plan = ["tool", "tool", "user", "tool", "user", "user"]
    record, after, breaks = [], "user", []
    for number, role in enumerate(plan):
        assert template.decode(conversation.prompt_ids()) == template.render(messages, TOOLS, True)
        said = family.calls([("bash", {"command": "ls"})]) if role == "tool" else "It is 12."
        text = family.thoughts("Well.") + said
        end = family.stops[0] if family.name != "GLM 4.5" else {"tool": "<|observation|>", "user": "<|user|>"}[role]
        ids = template.encode(text + end)
        conversation.add_sampled(ids, [-1.0] * len(ids), "v1", "stop")
        messages.append({"role": "assistant", "content": text})
        answer = {"role": role, "content": "And now?"}
        conversation.add_messages([answer])
        messages.append(answer)
        record.append(Said(text, int(role == "tool"), thinks(family, text), after))
        after = role
        if family.breaks(record, role):
            breaks.append(number + 1)
    assert template.decode(conversation.prompt_ids()) == template.render(messages, TOOLS, True)
    assert [broken.turn for broken in conversation.breaks] == breaks


@pytest.mark.parametrize("family", [f for f in FAMILIES if f not in TEXTUAL], ids=lambda family: family.name)
def test_calls_are_sent_as_a_template_writes_them_that_insists_on_calls(family: Family) -> None:
    tokenizer = fitted("byte-level BPE", family)
    template = ChatTemplate(tokenizer, tokenizer.convert_tokens_to_ids(family.stops))
    parser = parser_for(template, None, TOOLS)
    messages: list[dict[str, Any]] = [{"role": "user", "content": "What is 3 * 4?"}]
    conversation = Conversation(template, messages, TOOLS, parser=parser)
    for number, role in enumerate(["tool", "tool", "user", "tool", "user", "user"]):
        # Mistral's template puts a space before what is said that its models do not sample
        spelled, rendered = template.decode(conversation.prompt_ids()), template.render(messages, TOOLS, True)
        assert spelled.replace(" ", "") == rendered.replace(" ", "")
        id, arguments = f"call{number:05d}", {"command": "ls"}
        thoughts = {"thinking": "Well."} if family.name == "gpt-oss" else {}
        if role == "tool":
            text = family.thoughts("Well.") + family.calls([("bash", arguments)])
            if family.name == "Mistral":
                text = text.replace("}}]", f'}}, "id": "{id}"}}]')
            function = {"name": "bash", "arguments": arguments}
            messages.append({"role": "assistant", **thoughts, "tool_calls": [{"id": id, "function": function}]})
        else:
            text = family.thoughts("Well.") + family.answer("It is 12.")
            messages.append({"role": "assistant", **thoughts, "content": "It is 12."})
        ids = template.encode(text + ("<|call|>" if role == "tool" and family.name == "gpt-oss" else family.stops[0]))
        conversation.add_sampled(ids, [-1.0] * len(ids), "v1", "stop")
        if role == "tool":
            conversation.add_results(["a file"])
            messages.append({"role": "tool", "tool_call_id": id, "content": "a file"})
        else:
            conversation.add_messages([{"role": "user", "content": "And now?"}])
            messages.append({"role": "user", "content": "And now?"})
