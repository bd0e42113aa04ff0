"""Histories that another model server began: whatever form their calls have, the prompt is that of the plain form."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

from rollyard.tokens.chat_template import ChatTemplate
from tests.support.tools import TOOLS

USER: dict[str, Any] = {"role": "user", "content": "What now?"}
ABSENT: Any = object()
ARGUMENTS: dict[str, Any] = {
    '{"z":1,"a":"C:\\\\x \\u00e9"}': {"z": 1, "a": "C:\\x é"}, "{}": {}, "": {}, "  ": {}, "null": {},
    '{"command": null}': {"command": None},
}  # fmt: skip
"""Arguments as text -> as an object."""
ODD = {'{"command": ': '{"command": ', "[1]": [1], '"s"': "s", "7": 7}
"""Arguments as text that are no object -> what the prompt must show of them."""


async def prompt(scripted: Any, messages: list[Any], path: str = "/v1/chat/completions") -> list[int]:
    """Return the ids of the prompt that an engine gets for the messages."""
    async with scripted(["Yes."]) as (gateway, upstream), aiohttp.ClientSession() as http:
        responses = path == "/v1/responses"
        tools = [{"type": "function", **tool["function"]} for tool in TOOLS] if responses else TOOLS
        given = {"model": "m", "tools": tools, "input" if responses else "messages": messages}
        async with http.post(gateway.url + path, json=given, headers={"X-Rollyard-Session": "s"}) as answer:
            assert answer.status == 200, await answer.text()
        assert gateway.sessions["s"].breaks() == {}
        (asked,) = upstream.prompts
        return list(asked)


def history(arguments: Any, content: Any = "", **more: Any) -> list[Any]:
    called = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": arguments}}
    message = {"role": "assistant", "content": content, "tool_calls": [called], **more}
    if content is ABSENT:
        del message["content"]
    return [USER, message, {"role": "tool", "tool_call_id": "c1", "content": "out"}]


@pytest.mark.parametrize("arguments", ARGUMENTS)
async def test_arguments_as_text_give_the_prompt_of_the_object(
    scripted: Any, template: ChatTemplate, arguments: str
) -> None:
    meant = template.render(history(ARGUMENTS[arguments]), TOOLS, True)
    assert template.decode(await prompt(scripted, history(arguments))) == meant
    item = {"type": "function_call", "call_id": "c1", "name": "bash", "arguments": arguments}
    items = [USER, item, {"type": "function_call_output", "call_id": "c1", "output": "out"}]
    assert template.decode(await prompt(scripted, items, "/v1/responses")) == meant
    assert "\\\\\\\\" not in meant
    if "z" in ARGUMENTS[arguments]:
        assert meant.index('"z"') < meant.index('"a"'), "the order of keys is the caller's"


@pytest.mark.parametrize("arguments", ODD)
async def test_arguments_that_are_no_object_are_shown_and_refuse_no_history(
    scripted: Any, template: ChatTemplate, arguments: str
) -> None:
    text = template.decode(await prompt(scripted, history(arguments)))
    assert str(ODD[arguments]).strip('"{: ') in text.rpartition("<tool_call>")[2].partition("</tool_call>")[0]


@pytest.mark.parametrize(
    "content",
    [ABSENT, None, "", [], [{"type": "text", "text": ""}]],
    ids=["absent", "null", "empty", "no parts", "empty part"],
)
async def test_a_call_without_text_is_the_same_in_each_form(
    scripted: Any, template: ChatTemplate, content: Any
) -> None:
    meant = template.encode(template.render(history({"command": "ls"}), TOOLS, True))
    assert await prompt(scripted, history('{"command": "ls"}', content, annotations=[], extra={"cost": 0})) == meant


async def test_a_result_without_an_id_is_that_of_the_next_call(scripted: Any, template: ChatTemplate) -> None:
    meant = history({"command": "ls"})
    other = {"id": "c2", "type": "function", "function": {"name": "bash", "arguments": {"command": "pwd"}}}
    meant[1]["tool_calls"].append(other)
    meant.append({"role": "tool", "tool_call_id": "c2", "content": "/"})
    given = [*meant[:2], *({**m, "tool_call_id": id} for m, id in zip(meant[2:], ("", None), strict=True))]
    ids = template.encode(template.render(meant, TOOLS, True))
    assert await prompt(scripted, given) == ids
    assert await prompt(scripted, [*meant[:2], {"role": "tool", "content": "out"}, meant[3]]) == ids
