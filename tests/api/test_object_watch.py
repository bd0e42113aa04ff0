"""Watches through selectors, with bookmarks and initial events."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest

from rollyard.api import object_watch
from rollyard.api.object_watch import seen_through
from rollyard.api.selectors import selector
from rollyard.core.aio import running
from rollyard.kinds.base import KindObject
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.store.watch import WatchEvent
from tests.support.outside_api import Api, Serve

POOLS = "/apis/rollyard.dev/v1alpha1/namespaces/default/rolloutpools"
IN, OUT = {"team": "a"}, {"team": "b"}


def pool(labels: dict[str, str] | None, version: str = "5") -> KindObject | None:
    if labels is None:
        return None
    meta = {"name": "p", "labels": labels, "resourceVersion": version}
    return RolloutPool.model_validate({"metadata": meta, "spec": {"replicas": 1}})


@pytest.mark.parametrize(
    ("type", "before", "after", "seen", "labels"),
    [
        ("ADDED", None, IN, "ADDED", IN),
        ("ADDED", None, OUT, None, None),
        ("MODIFIED", IN, IN, "MODIFIED", IN),
        ("MODIFIED", IN, OUT, "DELETED", IN),
        ("MODIFIED", OUT, IN, "ADDED", IN),
        ("MODIFIED", OUT, OUT, None, None),
        ("DELETED", IN, IN, "DELETED", IN),
        ("DELETED", OUT, OUT, None, None),
        ("DELETED", IN, OUT, "DELETED", OUT),
        # the change was read from the log, so what was before is not known: no DELETED may be lost
        ("MODIFIED", None, IN, "MODIFIED", IN),
        ("MODIFIED", None, OUT, "DELETED", OUT),
        ("DELETED", None, IN, "DELETED", IN),
        ("DELETED", None, OUT, None, None),
    ],
)
def test_an_object_that_leaves_a_selector_is_deleted_and_one_that_enters_is_added(
    type: Any, before: dict[str, str] | None, after: dict[str, str], seen: str | None, labels: dict[str, str] | None
) -> None:
    obj = pool(after, "9")
    assert obj is not None
    found = seen_through(WatchEvent(type, obj, pool(before)), selector("team=a", ""))
    assert (found and found.type, found and found.object.metadata.labels) == (seen, labels)
    assert found is None or found.object.metadata.resource_version == "9"


def body(name: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}, "spec": {"replicas": 0, "inference": {"policy": "policy"}}}


async def watched(api: Api, query: str, path: str = POOLS) -> list[dict[str, Any]]:
    """Return the events of a watch that ends by itself after a second."""
    async with api.http.get(f"{api.url}{path}?watch=1&timeoutSeconds=1&{query}") as stream:
        assert stream.status == 200, await stream.text()
        return [json.loads(line) for line in (await stream.text()).splitlines()]


def short(events: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(e["type"], e["object"]["metadata"].get("name", "")) for e in events]


async def test_a_streaming_list_ends_its_initial_events_with_a_bookmark(serving: Serve) -> None:
    async with serving() as api:
        await api.ask("POST", POOLS, body("one"))
        query = "allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
        events = await watched(api, query)
        assert short(events) == [("ADDED", "one"), ("BOOKMARK", ""), ("BOOKMARK", "")]
        first, last = (e["object"]["metadata"] for e in events[1:])
        assert first["annotations"] == {"k8s.io/initial-events-end": "true"}
        assert "annotations" not in last
        again = await watched(api, f"resourceVersion={last['resourceVersion']}")
        assert again == [], "from a bookmark on nothing comes twice"
        for refused in ("sendInitialEvents=true", "resourceVersionMatch=NotOlderThan"):
            assert (await api.ask("GET", f"{POOLS}?watch=1&{refused}"))[0] == 422


async def test_a_watch_ends_regularly_when_the_server_stops(serving: Serve) -> None:
    """A stream that breaks off is an exception in Python's client, and an operator's handlers stop."""
    async with AsyncExitStack() as stack, aiohttp.ClientSession() as http:
        api = await stack.enter_async_context(serving())
        headers = {"Authorization": f"Bearer {api.admin}"}
        async with http.get(f"{api.url}{POOLS}?watch=1", headers=headers) as stream:
            await api.ask("POST", POOLS, body("one"))
            assert short([json.loads(await stream.content.readline())]) == [("ADDED", "one")]
            async with running(stack.aclose()) as stopped:
                assert await stream.content.read() == b""
                await stopped


async def test_bookmarks_move_on_while_other_kinds_change(serving: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_watch, "BOOKMARK_SECONDS", 0.05)
    async with serving() as api:
        _, listed = await api.ask("GET", POOLS)
        since = listed["metadata"]["resourceVersion"]
        watching = asyncio.create_task(watched(api, f"allowWatchBookmarks=true&resourceVersion={since}"))
        await api.ask("POST", POOLS.replace("rolloutpools", "inferencepools"), body("other"))
        patch = {"metadata": {"labels": {"x": "y"}}}
        headers = {"Content-Type": "application/merge-patch+json"}
        other = f"{api.url}{POOLS.replace('rolloutpools', 'inferencepools')}/policy"
        async with api.http.patch(other, json=patch, headers=headers) as done:
            assert done.status == 200
            changed = (await done.json())["metadata"]["resourceVersion"]
        events = await watching
        assert {e["type"] for e in events} == {"BOOKMARK"}
        assert events[-1]["object"]["metadata"]["resourceVersion"] == changed


async def test_a_watch_from_the_future_or_the_far_past_says_to_list_again(serving: Serve) -> None:
    async with serving() as api:
        (event,) = await watched(api, "resourceVersion=999999")
        assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")


async def test_a_namespace_comes_with_its_first_pool_and_goes_with_its_last(serving: Serve) -> None:
    async with serving() as api:
        _, listed = await api.ask("GET", "/api/v1/namespaces")
        since = f"resourceVersion={listed['metadata']['resourceVersion']}"
        there = POOLS.replace("default", "lab")
        async with api.http.post(api.url + there, json=body("one")) as made:
            assert any('namespace \\"lab\\" had no objects before' in text for text in made.headers.getall("Warning"))
        async with api.http.post(api.url + there, json=body("two")) as made:
            assert not any("namespace" in text for text in made.headers.getall("Warning", []))
        assert short(await watched(api, "", "/api/v1/namespaces")) == [("ADDED", "default"), ("ADDED", "lab")]
        watching = asyncio.create_task(watched(api, since, "/api/v1/namespaces"))
        for name in ("one", "two"):
            await api.ask("DELETE", f"{there}/{name}")
        assert short(await watching)[-1] == ("DELETED", "lab")
        assert (await api.ask("GET", "/api/v1/namespaces/lab"))[0] == 404
