"""No turn loses a call in silence: its calls are read, or the model is told. The text around it is the template's own."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import pytest

from rollyard.tasks.tool_results import malformed_call_result
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.conversation import Conversation
from rollyard.tokens.tool_calls import ParsedTurn, ToolCall, parser_for
from rollyard.tokens.tool_calls.parser_choice import BUILT_IN
from tests.support.template_corpus import corpus, installed
from tests.support.template_oracle import Message, Noon, Oracle
from tests.tokens.tool_calls.written_turns import FAMILIES, TOOLS, Must, Written, WrittenFamily

EACH = pytest.mark.parametrize("family", FAMILIES.values(), ids=list(FAMILIES))
QUESTION: list[Message] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Do it."}]


def wrong(written: Written, turn: ParsedTurn) -> str:
    """Return what is wrong with the reading of a turn; empty if nothing is."""
    meant = tuple(ToolCall(name, arguments) for name, arguments in written.calls)
    if turn.error is not None:
        right = written.must is not Must.READ and _typed(turn.calls) == _typed(meant[: len(turn.calls)])
        return "" if right else f"told {turn.error!r}, with {turn.calls}"
    return "" if written.must is not Must.TOLD and _typed(turn.calls) == _typed(meant) else f"read as {turn.calls}"


def _typed(calls: Sequence[ToolCall]) -> list[str]:
    """Return texts in which 1, 1.0 and True differ."""
    return [repr((call.name, call.arguments)) for call in calls]


@EACH
def test_each_turn_is_read_or_told(family: WrittenFamily) -> None:
    parser = BUILT_IN[family.parser].make(TOOLS)
    found = {name: wrong(written, parser.parse(written.text)) for name, written in family.turns.items()}
    assert not {name: why for name, why in found.items() if why}


@dataclass
class Talk:
    """One conversation, and beside it the messages from which the template alone makes the same prompt."""

    family: WrittenFamily
    oracle: Oracle
    template: ChatTemplate
    sampled: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.parser = parser_for(self.template, None, TOOLS)
        self.conversation = Conversation(self.template, QUESTION, TOOLS, parser=self.parser)
        self.messages = [*QUESTION]

    def say(self, written: Written, number: int) -> None:
        prompt, breaks = self.conversation.prompt_ids(), len(self.conversation.breaks)
        ids = self.template.encode_behind(self.template.stop_ids[0], written.text)
        ids += self._stop(written) if written.ends else []
        self.sampled += ids
        text = self.conversation.add_sampled(ids, [-1.0] * len(ids), "v1", "stop" if written.ends else "length")
        assert text == written.text
        parsed = self.conversation.last.parsed
        assert wrong(written, parsed) == ""
        self._answer(parsed, number)
        after = self.conversation.prompt_ids()
        assert self._outside(self.template.decode(after)) == self._outside(self.oracle.render(self.messages, TOOLS))
        if len(self.conversation.breaks) == breaks:
            assert after[: len(prompt) + len(ids)] == prompt + ids
        runs = [t for s in self.conversation.segments() for t, m in zip(s.token_ids, s.loss_mask, strict=True) if m]
        assert runs == self.sampled

    def _stop(self, written: Written) -> list[int]:
        stop = self.family.call_stop if written.calls or written.must is not Must.READ else None
        return [self.oracle.tokenizer.convert_tokens_to_ids(stop) if stop else self.template.stop_ids[0]]

    def _answer(self, parsed: ParsedTurn, number: int) -> None:
        """Answer a turn as the node agent does."""
        conversation, after = self.conversation, list[Message]()
        calls = conversation.last_calls()
        results = [f"Result {number}.{k}" for k in range(len(calls))]
        if parsed.error is not None:
            why = malformed_call_result(parsed.error, self.parser.form)
            if results and conversation.error_role == "user":
                results[-1] += f"\n{why}"
            else:
                after = [{"role": conversation.error_role, "content": why}]
        elif not calls:
            after = [{"role": "user", "content": f"Question {number}."}]
        conversation.add_results(results)
        conversation.add_messages(after)
        fields = [
            {"id": id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call, id in calls
        ]
        given = [
            {"role": "tool", "name": call.name, "tool_call_id": id, "content": result}
            for (call, id), result in zip(calls, results, strict=True)
        ]
        content = parsed.content
        if self.family.parser == "harmony":  # its template refuses markers, and a preamble behind thoughts
            content = "" if calls else content.replace("<|channel|>", "")
        self.messages += [self.oracle.said(content, fields, parsed.thoughts or ""), *given, *after]

    def _outside(self, text: str) -> str:
        """Return a prompt without its sampled turns, whose spelling is the model's."""
        return re.sub(r"\s*§", "§", re.sub(self.family.turn, "§", text, flags=re.DOTALL))


def talks(family: WrittenFamily, count: int) -> list[Talk]:
    found = installed() if family.template.startswith("trl/") else corpus()
    source = next(template.text for template in found if template.name == family.template)
    oracle = Oracle(source)
    return [Talk(family, oracle, ChatTemplate(oracle.tokenizer, oracle.stop_ids)) for _ in range(count)]


@pytest.fixture(autouse=True)
def noon() -> Any:
    with mock.patch("transformers.utils.chat_template_utils.datetime", Noon):
        yield


@pytest.mark.parametrize("name", ["Qwen3", "Gemma 4"])
def test_a_conversation_of_twenty_such_turns_keeps_its_ids_and_the_templates_text(name: str) -> None:
    family = FAMILIES[name]
    (talk,) = talks(family, 1)
    for number, written in enumerate(random.Random(name).sample([*family.turns.values()], 20)):
        talk.say(written, number)


@pytest.mark.long
@EACH
def test_conversations_of_all_turns_keep_their_ids_and_the_templates_text(family: WrittenFamily) -> None:
    turns = [*family.turns.values()]
    *alone, talk, other = talks(family, len(turns) + 2)
    for one, written in zip(alone, turns, strict=True):
        one.say(written, 0)
    for long, seed in ((talk, 1), (other, 2)):
        for number, written in enumerate(random.Random(seed).sample(turns, 20)):
            long.say(written, number)
