"""Routes that the dashboard's page reads: all changes in one stream, and the texts of tokens."""

from __future__ import annotations

import json
from typing import Any

import aiohttp

from rollyard.tokens.chat_template import ChatTemplate
from tests.api.test_rollouts_waiting import change, pool, submit
from tests.support.outside_api import Serve
from tests.support.played_pool import Played, PlayedPool


async def _next(content: aiohttp.StreamReader) -> dict[str, Any]:
    """The next line of a stream of changes that is not empty."""
    while not (line := (await content.readline()).strip()):
        assert not content.at_eof()
    found: dict[str, Any] = json.loads(line)
    return found


async def test_one_stream_has_all_objects_and_then_their_changes(serving: Serve) -> None:
    async with serving() as api:
        await pool(api)
        async with api.http.get(f"{api.url}/v1/changes") as answer:
            there = []
            while (one := await _next(answer.content))["type"] != "LISTED":
                there.append((one["type"], one["object"]["kind"], one["object"]["metadata"]["name"]))
            assert there == [("ADDED", "InferencePool", "policy"), ("ADDED", "RolloutPool", "swe")]
            await change(api, suspend=True)
            seen = await _next(answer.content)
            assert (seen["type"], seen["object"]["spec"]["suspend"]) == ("MODIFIED", True)
            _, _ = await api.ask("DELETE", "/apis/rollyard.dev/v1alpha1/namespaces/default/inferencepools/policy")
            seen = await _next(answer.content)
            assert seen["object"]["metadata"]["name"] == "policy"


async def test_the_texts_of_a_trajectorys_tokens(serving: Serve, template: ChatTemplate) -> None:
    async with serving() as api:
        await pool(api)
        await submit(api, "a")
        assert (await api.ask("GET", "/v1/rollouts/a/tokens"))[0] == 404
        await PlayedPool(api.parts).play(lambda record: Played())
        status, found = await api.ask("GET", "/v1/rollouts/a/tokens")
        assert status == 200, found
        _, whole = await api.ask("GET", "/v1/rollouts/a")
        ids = {i for segment in whole["trajectory"]["segments"] for i in segment["token_ids"]}
        assert ids
        assert {int(i): text for i, text in found["texts"].items()} == {i: template.decode([i]) for i in ids}
