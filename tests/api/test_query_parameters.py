"""Query parameters: known ones with values that they can have, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from yarl import URL

from rollyard.api import endpoints, logs, rollouts, sessions
from tests.support.outside_api import Api, Serve

POOLS = "/apis/rollyard.dev/v1alpha1/namespaces/default/inferencepools"


async def get(api: Api, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, Any]]:
    async with api.http.request(method, URL(api.url + path, encoded=True), headers=headers) as found:
        return found.status, await found.json()


async def test_an_unknown_parameter_is_refused_with_what_there_is(serving: Serve) -> None:
    async with serving() as api:
        status, told = await get(api, "/v1/rollouts/stream?ids=X")
        assert status == 400
        assert told["message"] == (
            "there is no query parameter 'ids' at GET /v1/rollouts/stream; "
            "it accepts namespace, pool, group, after, upto, trajectories"
        )
        status, told = await get(api, "/v1/rollouts?grup=g")
        assert (status, "did you mean `group`?" in told["message"]) == (400, True)
        for path in (
            "/v1/rollouts/r?x=1",
            "/v1/rollouts/counts?after=1",
            "/v1/sessions?pool=p",
            "/healthz?x",
            "/metrics?x=1",
        ):
            assert (await get(api, path))[0] == 400, path
        assert (await get(api, f"{POOLS}?lables=x"))[0] == 400
        assert (await get(api, f"{POOLS}/policy/endpoints?uri=x", "DELETE"))[0] == 400
        assert (await get(api, "/v1/rollouts?status=Queued&status=Failed"))[0] == 400
        assert (await get(api, "/nothing?x=1"))[0] == 404
        assert (await get(api, "/version?timeout=32s"))[0] == 200, "`kubectl version` asks so"


@pytest.mark.parametrize(
    "query",
    [
        "after=99999999999999999999",
        "after=-1",
        "after=%C2%B2",
        "limit=0",
        "limit=-1",
        "limit=1e3",
        "status=Done",
        "metadata=difficulty=hard",
        "metadata=[1]",
        'metadata={"tags":["a"]}',
        "metadata={%22a%22:%22\\ud800%22}",
        "after=",
    ],
)
async def test_a_value_that_cannot_be_is_refused(serving: Serve, query: str) -> None:
    async with serving() as api:
        status, told = await get(api, f"/v1/rollouts?{query}")
        assert (status, query.partition("=")[0] in told["message"]) == (400, True), told


async def test_a_cursor_that_is_no_number_is_refused(serving: Serve) -> None:
    async with serving() as api:
        for cursor in ("9" * 5000, "\u00b2", "x", "-1", "1.5"):
            assert (await get(api, "/v1/rollouts/stream", **{"Last-Event-ID": cursor}))[0] == 400, cursor[:9]
        # as after a backup was put back: what ends next would be behind this cursor, and never come
        status, told = await get(api, "/v1/rollouts/stream?after=500")
        assert (status, told["reason"], "stream again from 0" in told["message"]) == (410, "Expired", True)
        for wait in ("nan", "inf", "-1", "soon", "1e999"):
            assert (await get(api, f"/v1/rollouts/r?wait={wait}"))[0] == 400, wait
        assert (await get(api, "/v1/rollouts/stream?trajectories=2"))[0] == 400


async def test_what_kubernetes_clients_send_is_taken_and_checked(serving: Serve) -> None:
    async with serving() as api:
        for query in (
            "limit=500", "timeoutSeconds=5", "pretty=true", "resourceVersion=0&resourceVersionMatch=NotOlderThan", "continue=",
            "labelSelector=a%3Db", "fieldSelector=metadata.name%3Dx", "allowWatchBookmarks=true", "timeout=32s", "watch=false",
        ):  # fmt: skip
            assert (await get(api, f"{POOLS}?{query}"))[0] == 200, query
        for query in (
            "limit=x", "limit=-5", "timeoutSeconds=1.5", "continue=abc", "watch=maybe", "resourceVersion=" + "9" * 5000,
            "resourceVersionMatch=Newest", "watch=1&resourceVersion=%D9%A1", "allowWatchBookmarks=2",
        ):  # fmt: skip
            assert (await get(api, f"{POOLS}?{query}"))[0] == 400, query
        assert (await get(api, f"{POOLS}?watch=true&sendInitialEvents=true"))[0] == 422
        assert (await get(api, f"{POOLS}/policy?propagationPolicy=Sideways", "DELETE"))[0] == 400
        dry = "dryRun=All&fieldManager=kubectl&fieldValidation=Strict&propagationPolicy=Background&gracePeriodSeconds=0"
        assert (await get(api, f"{POOLS}/policy?{dry}", "DELETE"))[0] == 200
        assert (await get(api, f"{POOLS}/policy?dryRun=Some", "DELETE"))[0] == 400


def test_every_parameter_of_ours_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
    families = (logs, endpoints, rollouts, sessions)
    names = {n for f in families for r in f.routes() for n in getattr(r.handler, "query_parameters", ())}
    assert {"follow", "url", "namespace", "trajectories"} <= names
    assert [name for name in names if f"`{name}`" not in text] == []
