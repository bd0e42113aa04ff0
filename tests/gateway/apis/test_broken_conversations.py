"""Conversations that no correct agent has. They are refused, and nothing of them is sampled or recorded; or they go on with
a prompt that shows what was sent."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

from tests.support.tools import TOOLS

USER = {"role": "user", "content": "Hi"}


def called(*ids: str) -> dict[str, Any]:
    calls = [{"id": id, "type": "function", "function": {"name": "bash", "arguments": "{}"}} for id in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": "out"}


def used(id: str) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "tool_use", "id": id, "name": "bash", "input": {}}]}


def results(*ids: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": "out"} for id in ids]}


def output(id: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": id, "output": "out"}


FUNCTION = {"type": "function_call", "call_id": "a", "name": "bash", "arguments": "{}"}
LONE, TWICE, LATE = "in no earlier message", "has a result already", "comes too late"
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"


TEXT = {"type": "text", "text": "Hi"}
NO_CALL_ID = {"type": "function_call", "name": "bash", "arguments": "{}"}
NO_USE_ID = {"role": "assistant", "content": [{"type": "tool_use", "name": "bash", "input": {}}]}
NO_USE_NAME = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "input": {}}]}
NO_RESULT_ID = {"role": "user", "content": [{"type": "tool_result", "content": "out"}]}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "messages", "words"),
    [
        (CHAT, [], "at least one message"),
        (MESSAGES, [], "at least one message"),
        (RESPONSES, [], "must not be empty"),
        (MESSAGES, [USER, NO_USE_ID, results("None")], "the id of a tool_use must be text"),
        (MESSAGES, [USER, NO_USE_NAME, results("a")], "the name of a tool_use must be text"),
        (MESSAGES, [USER, used("a"), NO_RESULT_ID], "the tool_use_id of a tool_result must be text"),
        (MESSAGES, [USER, used("a")], "has a tool_use that no tool_result follows"),
        (RESPONSES, [USER, NO_CALL_ID, output("None")], "the call_id of a function_call must be text"),
        (RESPONSES, [USER, {"type": "function_call", "call_id": "a"}, output("a")], "the name of a function_call must be text"),
        (RESPONSES, [USER, FUNCTION, {"type": "function_call_output", "output": "out"}],
         "the call_id of a function_call_output must be text"),
        (CHAT, [USER, result("x")], LONE),
        (CHAT, [result("x"), called("x")], LONE),
        (CHAT, [USER, called("a"), result("z")], LONE),
        (CHAT, [USER, called("a"), result("a"), result("a")], TWICE),
        (MESSAGES, [results("x")], LONE),
        (MESSAGES, [USER, used("a"), results("a", "a")], TWICE),
        (CHAT, [USER, called("a"), USER, result("a")], LATE),
        (CHAT, [USER, called("a", "b"), result("a"), USER, result("b")], LATE),
        (CHAT, [USER, called("a"), {"role": "assistant", "content": "So"}, result("a"), USER], LATE),
        (MESSAGES, [USER, used("a"), USER, results("a")], LATE),
        (MESSAGES, [USER, used("a"), {"role": "user", "content": [TEXT, *results("a")["content"]]}],
         "send the results first, then the text"),
        (RESPONSES, [output("x")], LONE),
        (RESPONSES, [USER, FUNCTION, output("a"), output("a")], TWICE),
    ],
)  # fmt: skip
async def test_what_has_no_place_in_a_conversation_is_refused(
    scripted: Any, path: str, messages: list[Any], words: str, stream: bool
) -> None:
    async with scripted(["Hi."]) as (gateway, upstream), aiohttp.ClientSession() as http:
        given = {"input" if path == RESPONSES else "messages": messages, "model": "m", "stream": stream}
        given |= {"max_tokens": 9} if path == MESSAGES else {}
        async with http.post(gateway.url + path, json=given, headers={"X-Rollyard-Session": "s"}) as answer:
            assert answer.status == 400
            assert words in (await answer.json())["error"]["message"]
        assert (upstream.prompts, gateway.sessions["s"].turns(), gateway.sessions["s"].truncated) == ([], [], False)


async def test_results_in_any_order_and_calls_without_one_go_on(scripted: Any) -> None:
    cases = [
        (CHAT, [USER, called("a", "b"), result("b"), result("a")]),
        (CHAT, [USER, called("a", "b"), result("b"), USER]),
        (CHAT, [USER, called("a"), USER]),
        (CHAT, [USER, called("a"), result("a"), called("a"), result("a")]),
        (MESSAGES, [USER, used("a"), used("b"), results("a"), results("b")]),
        (MESSAGES, [USER, used("a"), {"role": "user", "content": [*results("a")["content"], TEXT]}]),
        (RESPONSES, [USER, FUNCTION, USER, output("a")]),  # OpenAI accepts it there
    ]
    async with scripted(["Hi."]) as (gateway, _), aiohttp.ClientSession() as http:
        for number, (path, messages) in enumerate(cases):
            name = {"X-Rollyard-Session": f"s{number}"}
            given = {"input" if path == RESPONSES else "messages": messages, "model": "m"}
            given |= {CHAT: {"tools": TOOLS}, MESSAGES: {"max_tokens": 9}}.get(path, {})
            async with http.post(f"{gateway.url}{path}", json=given, headers=name) as answer:
                assert answer.status == 200, await answer.text()
            assert len(gateway.sessions[f"s{number}"].turns()) == 1


async def test_a_late_result_that_the_session_has_recorded_is_not_refused_later(scripted: Any) -> None:
    name = {"X-Rollyard-Session": "s"}
    recorded = [USER, called("a"), USER, result("a"), {"role": "assistant", "content": "Hi."}]
    async with scripted(["Hi.", "Yes."]) as (gateway, _), aiohttp.ClientSession() as http:
        given = {"model": "m", "input": [USER, FUNCTION, USER, output("a")]}
        async with http.post(f"{gateway.url}{RESPONSES}", json=given, headers=name) as answer:
            assert answer.status == 200, await answer.text()
        for messages, status in (([*recorded, USER], 200), ([*recorded, USER, result("a")], 400)):
            given = {"model": "m", "messages": messages}
            async with http.post(f"{gateway.url}{CHAT}", json=given, headers=name) as answer:
                assert answer.status == status, await answer.text()
        assert len(gateway.sessions["s"].segments()) == 1


async def test_a_message_without_content_is_an_empty_message_in_each_api(scripted: Any) -> None:
    """If a user's message vanished, Anthropic's API would take the answer before it for the beginning of the next turn."""
    said = {"role": "assistant", "content": "The answer"}
    async with scripted(["Hi."]) as (gateway, upstream), aiohttp.ClientSession() as http:
        for number, (path, empty) in enumerate(
            (path, empty)
            for path in (CHAT, MESSAGES, RESPONSES)
            for empty in ({"role": "user"}, *({"role": "user", "content": content} for content in (None, "", [])))
        ):
            given = {"input" if path == RESPONSES else "messages": [USER, said, empty], "model": "m"}
            given |= {"max_tokens": 9} if path == MESSAGES else {}
            name = {"X-Rollyard-Session": f"s{number}"}
            async with http.post(f"{gateway.url}{path}", json=given, headers=name) as answer:
                assert answer.status == 200, await answer.text()
        assert len(upstream.prompts) == 12
        assert {gateway.template.decode(prompt) for prompt in upstream.prompts} == {
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nThe answer<|im_end|>\n<|im_start|>user\n<|im_end|>\n"
            "<|im_start|>assistant\n"
        }
