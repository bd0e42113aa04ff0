"""Shapes of Anthropic's requests and streams: what each becomes in the prompt, and the order of a stream's events."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest

from rollyard.tokens.chat_template import ChatTemplate
from tests.support.tools import TOOLS

FUNCTION = TOOLS[0]["function"]
TOOL = {"name": "bash", "description": FUNCTION["description"], "input_schema": FUNCTION["parameters"]}
CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "echo \\"é\\""}}\n</tool_call>'
ASKED = {"role": "user", "content": "Hi"}
CACHED = {"cache_control": {"type": "ephemeral"}}
Blocks = list[dict[str, Any]]


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def called(*ids: str, before: Blocks | None = None) -> dict[str, Any]:
    uses = [{"type": "tool_use", "id": id, "name": "bash", "input": {"command": "ls"}} for id in ids]
    return {"role": "assistant", "content": [*(before or []), *uses]}


def result(id: str, content: Any = "out", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": content, **more}


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def prompt(*messages: tuple[str, str]) -> str:
    shown = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in messages)
    return f"{shown}<|im_start|>assistant\n"


THOUGHTS = {"type": "thinking", "thinking": "hm", "signature": "x"}
SHOWN = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
HI = ("user", "Hi")


def results(*texts: str) -> tuple[str, str]:
    return "user", "\n".join(f"<tool_response>\n{one}\n</tool_response>" for one in texts)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"system": [text("Solve ", **CACHED), text("it.", **CACHED)], "messages": [ASKED]},
         prompt(("system", "Solve it."), HI)),
        ({"system": "Solve it.", "messages": [ASKED, {"role": "system", "content": [text("Note.", **CACHED)]}]},
         prompt(("system", "Solve it."), HI, ("system", "Note."))),
        ({"messages": [ASKED, called("a"), user(result("a")), {"role": "system", "content": "Note."}]},
         prompt(HI, ("assistant", SHOWN), results("out"), ("system", "Note."))),
        ({"messages": [ASKED, called("a"), user(result("a", [text("o"), text("ut", **CACHED)]))]},
         prompt(HI, ("assistant", SHOWN), results("out"))),
        ({"messages": [ASKED, called("a", "b"), user(result("b", "2"), result("a", "1"), text("So:"))]},
         prompt(HI, ("assistant", f"{SHOWN}\n{SHOWN}"), results("2", "1"), ("user", "So:"))),
        ({"messages": [ASKED, called("a"), user(result("a", "failed", is_error=True))]},
         prompt(HI, ("assistant", SHOWN), results("failed"))),
        ({"messages": [ASKED, called("a"), user({"type": "tool_result", "tool_use_id": "a"})]},
         prompt(HI, ("assistant", SHOWN), results(""))),
        ({"messages": [ASKED, called("a", before=[THOUGHTS]), user(result("a"))]},
         prompt(HI, ("assistant", SHOWN), results("out"))),
        ({"messages": [ASKED, called("a", before=[{"type": "redacted_thinking", "data": "x"}, text("")]), user(result("a"))]},
         prompt(HI, ("assistant", SHOWN), results("out"))),
        ({"messages": [user(text(""), text("Hi"))], "metadata": {"user_id": "u"}, "max_tokens": 1}, prompt(HI)),
        ({"messages": [ASKED, {"role": "assistant", "content": [text("The answer")]}]}, f"{prompt(HI)}The answer"),
        ({"messages": [ASKED], "tools": [TOOL], "tool_choice": {"type": "none"}}, prompt(HI)),
    ],
)  # fmt: skip
async def test_each_shape_has_its_place_in_the_prompt(
    scripted: Any, template: ChatTemplate, given: dict[str, Any], expected: str
) -> None:
    async with scripted(["It is 12."]) as (gateway, upstream), aiohttp.ClientSession() as http:
        url, headers = f"{gateway.url}/v1/messages", {"X-Api-Key": "session-s", "anthropic-version": "2023-06-01"}
        for stream in (False, True):
            body = {"model": "m", "max_tokens": 50, "stream": stream, **given}
            async with http.post(f"{url}?beta=true", json=body, headers=headers) as answer:
                assert answer.status == 200, await answer.text()
        count = {key: value for key, value in given.items() if key not in ("max_tokens", "metadata")}
        async with http.post(f"{url}/count_tokens?beta=true", json={"model": "m", **count}, headers=headers) as answer:
            assert (await answer.json())["input_tokens"] == len(upstream.prompts[0])
        assert [template.decode(ids) for ids in upstream.prompts] == [expected] * 2


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"messages": [ASKED, called("a"), user(result("a", [text("out"), IMAGE]))]}, "tool_result has a part of type 'image'"),
        ({"messages": [user({"type": "document", "source": {}})]}, "content has a part of type 'document'"),
        ({"messages": [ASKED, {"role": "assistant", "content": [{"type": "server_tool_use", "id": "s"}]}, ASKED]},
         "a part of type 'server_tool_use'"),
        ({"messages": [ASKED], "tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "runs at its provider"),
        ({"messages": [ASKED], "tool_choice": {"type": "tool", "name": "bash"}}, "a tool that is not in `tools`"),
        ({"messages": [ASKED], "max_tokens": 0}, "max_tokens"),
        ({"messages": [{"role": "system", "content": "Note."}]}, "at least one message"),
    ],
)  # fmt: skip
async def test_what_cannot_be_shown_is_refused_by_name(scripted: Any, given: dict[str, Any], words: str) -> None:
    async with scripted(["It is 12."]) as (gateway, upstream), aiohttp.ClientSession() as http:
        body = {"model": "m", "max_tokens": 50, **given}
        async with http.post(f"{gateway.url}/v1/messages", json=body, headers={"X-Api-Key": "session-s"}) as answer:
            told = await answer.json()
            assert (answer.status, told["error"]["type"]) == (400, "invalid_request_error")
            assert words in told["error"]["message"]
        assert upstream.prompts == []


@pytest.mark.parametrize("choice", ["auto", "any", "tool"])
async def test_a_streams_events_come_in_order_and_its_arguments_are_json(scripted: Any, choice: str) -> None:
    tools = [{**TOOL, "name": name} for name in ("bash", *(f"tool{n}" for n in range(39)))]
    wanted = {"type": choice, **({"name": "bash"} if choice == "tool" else {})}
    says = f"{CALL}\n{CALL}" if choice == "any" else CALL if choice == "tool" else f"Let me see.\n{CALL}\n{CALL}"
    async with scripted([says]) as (gateway, _), aiohttp.ClientSession() as http:
        body = {
            "model": "m",
            "max_tokens": 200,
            "stream": True,
            "messages": [ASKED],
            "tools": tools,
            "tool_choice": wanted,
        }
        async with http.post(f"{gateway.url}/v1/messages", json=body, headers={"X-Api-Key": "session-s"}) as answer:
            lines = (await answer.text()).split("\n\n")[:-1]
    events = [json.loads(line.partition("\ndata: ")[2]) for line in lines]
    assert [line.partition("\n")[0] for line in lines] == [f"event: {event['type']}" for event in events]
    kinds = [event["type"] for event in events]
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
    blocks: list[tuple[str, str]] = []
    for event in events[1:-2]:
        match event["type"], event["index"] - len(blocks):
            case "content_block_start", 0:
                kind, parts = event["content_block"]["type"], [""]
            case "content_block_delta", 0:
                assert event["delta"]["type"] == {"text": "text_delta", "tool_use": "input_json_delta"}[kind]
                parts.append(event["delta"].get("partial_json", "") + event["delta"].get("text", ""))
            case "content_block_stop", 0:
                blocks.append((kind, "".join(parts)))
            case other:
                raise AssertionError(other)
    uses = [json.loads(parts) for kind, parts in blocks if kind == "tool_use"]
    assert uses == [{"command": 'echo "é"'}] * says.count(CALL)
    assert [parts for kind, parts in blocks if kind == "text"] == (["Let me see."] if choice == "auto" else [])
    assert events[-2]["delta"]["stop_reason"] == "tool_use"
