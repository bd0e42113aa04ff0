"""Histories that callers send back changed, over each API: one trajectory if the change has no meaning, else branches that
are marked. Each sampled token is trained on once."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from rollyard.gateway.session.session import GatewaySession
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.trajectory import Segment
from tests.support.tools import TOOLS

CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
FUNCTION = TOOLS[0]["function"]
Body = dict[str, Any]


class ChatCaller:
    """A caller of one API that keeps the conversation in this API's form."""

    path, key = "/v1/chat/completions", "messages"

    def __init__(self, question: str = "What is 3 * 4?", system: str = "Solve it.") -> None:
        self.question, self.system = question, system
        self.items: list[Any] = [self.user(question)]

    @staticmethod
    def user(text: str) -> Body:
        return {"role": "user", "content": text}

    def body(self, items: list[Any]) -> Body:
        return {"messages": [{"role": "system", "content": self.system}, *items], "tools": TOOLS}

    def take(self, answer: Body) -> None:
        """Append the answer and the results of its calls."""
        message = answer["choices"][0]["message"]
        self.items.append(message)
        self.items += [
            {"role": "tool", "tool_call_id": call["id"], "content": "12"} for call in message.get("tool_calls", ())
        ]


class MessagesCaller(ChatCaller):
    path = "/v1/messages"

    def body(self, items: list[Any]) -> Body:
        tool = {"name": "bash", "description": FUNCTION["description"], "input_schema": FUNCTION["parameters"]}
        return {"system": self.system, "messages": items, "tools": [tool], "max_tokens": 100}

    def take(self, answer: Body) -> None:
        uses = [block for block in answer["content"] if block["type"] == "tool_use"]
        self.items.append({"role": "assistant", "content": answer["content"]})
        results = [{"type": "tool_result", "tool_use_id": use["id"], "content": "12"} for use in uses]
        self.items += [{"role": "user", "content": results}] if results else []


class ResponsesCaller(ChatCaller):
    path, key = "/v1/responses", "input"

    def body(self, items: list[Any]) -> Body:
        return {"instructions": self.system, "input": items, "tools": [{"type": "function", **FUNCTION}]}

    def take(self, answer: Body) -> None:
        self.items += answer["output"]
        self.items += [
            {"type": "function_call_output", "call_id": item["call_id"], "output": "12"}
            for item in answer["output"]
            if item["type"] == "function_call"
        ]


CALLERS = (ChatCaller, MessagesCaller, ResponsesCaller)
Change = Callable[[Body], Body]


async def ask(gateway: Any, caller: ChatCaller, change: Change = lambda body: body) -> None:
    """Make the caller's next call with a changed body."""
    given = {"model": "m", **change(json.loads(json.dumps(caller.body(caller.items))))}
    headers = {"X-Rollyard-Session": "s"}
    async with (
        aiohttp.ClientSession() as http,
        http.post(gateway.url + caller.path, json=given, headers=headers) as answer,
    ):
        assert answer.status == 200, await answer.text()
        caller.take(await answer.json())


def trained(session: GatewaySession) -> list[int]:
    """Number of tokens that are trained on in each segment."""
    return [sum(segment.loss_mask) for segment in session.segments()]


def why(segment: Segment) -> str:
    return str(segment.extras["opened_by"]["why"])


def parts(value: Any) -> Any:
    """Each text as a list of its words as parts."""
    if not isinstance(value, str):
        return value
    return [{"type": "text", "text": word} for word in value.replace(" ", " \0").split("\0")]


def in_parts(body: Body) -> Body:
    """Every text as a list of parts, as some clients send back what they got as a string."""
    for item in [*body.get("messages", ()), *(body["input"] if isinstance(body.get("input"), list) else ())]:
        for key in ("content", "output"):
            if key in item:
                item[key] = parts(item[key])
        for block in item.get("content") or ():
            if block.get("type") == "tool_result":
                block["content"] = parts(block["content"])
    return {**body, "system": parts(body["system"])} if "system" in body else body


def with_moving_marker(body: Body) -> Body:
    """Anthropic's cache marker on the system text and on the last part, so it is another one in each call."""
    body = in_parts(body)
    for block in (body["system"][-1], body["messages"][-1]["content"][-1], body["tools"][-1]):
        block["cache_control"] = {"type": "ephemeral"}
    return body


def with_hash_line(body: Body) -> Body:
    """Claude Code's line about billing, whose hash is another one in each call."""
    line = f"x-anthropic-billing-header: cc_version=2.1; cch={hash(str(body)):x};"
    return {**body, "system": [{"type": "text", "text": line}, {"type": "text", "text": body["system"]}]}


def with_hash_line_in_text(body: Body) -> Body:
    return {**body, "system": "\n".join(block["text"] for block in with_hash_line(body)["system"])}


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        *((kind, in_parts) for kind in CALLERS),
        *((MessagesCaller, change) for change in (with_moving_marker, with_hash_line, with_hash_line_in_text)),
    ],
)
async def test_five_turns_in_parts_or_with_marks_that_change_are_one_segment(
    scripted: Any, template: ChatTemplate, kind: type[ChatCaller], change: Change
) -> None:
    says = [f"Look {CALL}"] * 4 + ["It is 12."]
    async with scripted(says) as (gateway, upstream):
        caller = kind()
        for _ in says:
            await ask(gateway, caller, change)
        session = gateway.sessions["s"]
        (segment,) = session.segments()
        assert session.breaks() == {}
        said = [id for text in says for id in (*template.encode(text), template.stop_ids[0])]
        assert [i for i, m in zip(segment.token_ids, segment.loss_mask, strict=True) if m] == said
        assert "x-anthropic" not in template.decode(upstream.prompts[-1])


@pytest.mark.parametrize("kind", CALLERS)
async def test_a_date_line_that_changes_in_the_system_text_opens_a_marked_branch(
    scripted: Any, kind: type[ChatCaller]
) -> None:
    async with scripted([CALL]) as (gateway, _):
        caller = kind(system="Today is Monday.")
        for day in ("Monday", "Monday", "Monday", "Tuesday", "Tuesday"):
            caller.system = f"Today is {day}."
            await ask(gateway, caller)
        session = gateway.sessions["s"]
        first, second = session.segments()
        assert session.breaks() == {"HistoryChanged": 1}
        assert "message 1 (system) has" in why(second)
        assert "Tuesday" in why(second)
        assert trained(session) == [sum(t.response_length for t in session.turns() if t.segment == n) for n in (0, 1)]
        assert all(trained(session))
        assert "opened_by" not in first.extras


@pytest.mark.parametrize("kind", CALLERS)
@pytest.mark.parametrize("kept", [True, False], ids=["the question stays", "all of it"])
async def test_a_summary_in_place_of_turns_opens_a_branch_that_is_marked_if_it_goes_on_from_them(
    scripted: Any, kind: type[ChatCaller], kept: bool
) -> None:
    async with scripted([CALL]) as (gateway, _):
        caller = kind()
        for _ in range(3):
            await ask(gateway, caller)
        caller.items = [*([caller.items[0]] if kept else []), caller.user("Summary: it is 12.")]
        for _ in range(2):
            await ask(gateway, caller)
        session = gateway.sessions["s"]
        assert session.breaks() == ({"HistoryChanged": 1} if kept else {})
        assert [len([t for t in session.turns() if t.segment == n]) for n in (0, 1)] == [3, 2]
        assert sum(trained(session)) == sum(turn.response_length for turn in session.turns())
        assert all(trained(session))


@pytest.mark.parametrize("kind", CALLERS)
async def test_a_summary_before_the_last_turn_keeps_the_turns_ids_and_trains_it_once(
    scripted: Any, template: ChatTemplate, kind: type[ChatCaller]
) -> None:
    async with scripted([CALL]) as (gateway, upstream):
        caller = kind()
        for _ in range(4):
            await ask(gateway, caller)
        last = caller.items[-2:]
        caller.items = [caller.user("Summary: it is 12."), *last]
        await ask(gateway, caller)
        session = gateway.sessions["s"]
        assert session.breaks() == {"HistoryChanged": 1}
        assert len(session.segments()) == 2
        assert sum(trained(session)) == sum(turn.response_length for turn in session.turns())
        last_turn = [*template.encode(CALL), template.stop_ids[0]]
        assert str(last_turn)[1:-1] in str(upstream.prompts[-1])


@pytest.mark.parametrize("kind", CALLERS)
async def test_two_sub_agents_that_take_turns_in_one_session_are_a_segment_each(
    scripted: Any, template: ChatTemplate, kind: type[ChatCaller]
) -> None:
    async with scripted([CALL]) as (gateway, _):
        main, one, other = kind(), kind("Find a.", "You search."), kind("Find b.", "You search.")
        for caller in (main, one, other, one, other, main, other, one, one, main):
            await ask(gateway, caller)
        session = gateway.sessions["s"]
        assert session.breaks() == {}
        counts = [len([t for t in session.turns() if t.segment == n]) for n in range(3)]
        assert counts == [3, 4, 3]
        assert sum(trained(session)) == sum(turn.response_length for turn in session.turns())
        texts = [template.decode(segment.token_ids) for segment in session.segments()]
        assert [[word in text for word in ("3 * 4", "Find a", "Find b")] for text in texts] == [
            [True, False, False],
            [False, True, False],
            [False, False, True],
        ]
