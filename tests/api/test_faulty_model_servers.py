"""Model servers whose answers are broken: each API tells the error in its own form, and no part of a turn is recorded."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from rollyard.tokens import failover
from rollyard.tokens.chat_template import ChatTemplate
from simulation.serving import serve_app
from tests.support.outside_api import Serve

Events = Callable[[list[int], list[int]], list[Any]]
"""Function of (prompt, ids of a whole turn) that returns the events of an answer."""
DONE = "data: [DONE]\n\n"


def chunk(ids: Sequence[int], finish: str | None = None, **more: Any) -> dict[str, Any]:
    logprobs = {"token_logprobs": [-0.5] * len(ids)}
    return {"index": 0, "token_ids": list(ids), "logprobs": logprobs, "finish_reason": finish, "text": "", **more}


def chunks(*choices: dict[str, Any]) -> dict[str, Any]:
    return {"choices": list(choices)}


def begun(prompt: list[int], ids: list[int]) -> dict[str, Any]:
    """Half of a turn, with the echo of the prompt."""
    return chunks(chunk(ids[:2], prompt_token_ids=prompt))


FAULTS: dict[str, tuple[Events, str]] = {
    "200 without a body": (lambda prompt, ids: [], "the stream ended early"),
    "200 with a page": (lambda prompt, ids: ["<html>Welcome</html>"], "the stream ended early"),
    "cut off without DONE": (lambda prompt, ids: [begun(prompt, ids)], "the stream ended early"),
    "DONE after half of a turn": (lambda prompt, ids: [begun(prompt, ids), DONE], "the stream ended early"),
    "finish_reason null": (lambda prompt, ids: [begun(prompt, ids), chunks(chunk([])), DONE], "the stream ended early"),
    "an unknown finish_reason": (lambda prompt, ids: [begun(prompt, ids), chunks(chunk([], "odd")), DONE], "odd"),
    "an error in the stream": (lambda prompt, ids: [begun(prompt, ids), {"error": {"message": "boom", "code": 500}}], "boom"),
    "an error as a word": (lambda prompt, ids: [begun(prompt, ids), {"error": "boom"}, DONE], "boom"),
    "an error with a name": (lambda prompt, ids: [begun(prompt, ids), {"error": {"message": "boom", "code": "odd"}}], "boom"),
    "half of an event": (lambda prompt, ids: [begun(prompt, ids), 'data: {"choices'], "the stream ended early"),
    "no JSON": (lambda prompt, ids: [begun(prompt, ids), "data: {choices\n\n"], "ValueError"),
    "no choices": (lambda prompt, ids: [{"choices": []}, {"choices": None}, {}, DONE], "the stream ended early"),
    "three choices": (
        lambda prompt, ids: [chunks(*(chunk(ids, "stop", index=i, prompt_token_ids=prompt) for i in range(3)))],
        "several answers",
    ),
    "three choices one by one": (
        lambda prompt, ids: [chunks(chunk(ids, "stop", index=i, prompt_token_ids=prompt)) for i in (2, 1, 0)],
        "several answers",
    ),
    "tokens after the end": (
        lambda prompt, ids: [chunks(chunk(ids, "stop", prompt_token_ids=prompt)), chunks(chunk(ids[:2])), DONE],
        "does not end a turn",
    ),
}  # fmt: skip
ASKED: dict[str, tuple[dict[str, Any], bytes]] = {
    "chat/completions": ({"messages": [{"role": "user", "content": "Hi"}]}, b"data: [DONE]"),
    "completions": ({"prompt": "Hi"}, b"data: [DONE]"),
    "responses": ({"input": "Hi"}, b"response.completed"),
    "messages": ({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 50}, b"message_stop"),
}
"""API -> (body of a call, what ends a whole stream)."""


@pytest.mark.parametrize("fault", FAULTS)
async def test_half_of_a_turn_is_an_error_and_no_turn(
    serving: Serve, template: ChatTemplate, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(failover, "RETRY_SECONDS", 0.01)
    events, words = FAULTS[fault]
    ids = [*template.encode("It is 12."), template.stop_ids[0]]
    whole: Events = lambda prompt, ids: [chunks(chunk(ids, "stop", prompt_token_ids=prompt)), DONE]  # noqa: E731
    script = events

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in script((await request.json())["prompt"], ids):
            text = event if isinstance(event, str) else f"data: {json.dumps(event)}\n\n"
            await response.write(text.encode())
        return response

    app = web.Application()
    app.router.add_post("/v1/completions", answer)
    async with serving() as api, serve_app(app) as url, aiohttp.ClientSession() as http:
        api.serve("e", url)
        opened = await api.open()
        session = api.gateway_session(opened["id"])

        async def ask(path: str, *, stream: bool) -> tuple[int, bytes]:
            api.endpoints.probed("e", None)  # what a probe says of it counts for some seconds
            body = {"model": "m", "stream": stream, **ASKED[path][0]}
            key = {"Authorization": f"Bearer {opened['key']}"}
            async with http.post(f"{opened['base_url']}/{path}", json=body, headers=key) as got:
                return got.status, await got.read()

        for path, (_, end) in ASKED.items():
            for stream in (False, True):
                status, told = await ask(path, stream=stream)
                assert words in told.decode(), told
                assert status in (500, 503) or (stream and status == 200)
                assert end not in told, "a stream with half of a turn has no regular end"
                if status == 200:
                    assert b"response.failed" in told if path == "responses" else b'"error"' in told
                assert (session.calls, session.in_flight, session.segments()) == (0, 0, [])
        script = whole
        for number, (path, (_, end)) in enumerate(ASKED.items(), 1):
            status, told = await ask(path, stream=True)
            assert (status, end in told, session.calls) == (200, True, number)
