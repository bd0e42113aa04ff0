"""A trainer without an adapter: plain HTTP, and a token."""

from __future__ import annotations

from itertools import chain

import aiohttp
import pytest

from rollyard.client import AsyncClient
from tests.support.compatibility import PARTS, Compatibility
from tests.support.yard import Yard

pytestmark = pytest.mark.asyncio(loop_scope="package")

TASK = {"kind": "math", "problem": "Please tell me the value of 8 * 9", "answer": "72"}
FIELDS = {"tokens": "token_ids", "mask": "loss_mask", "logprobs": "logprobs", "versions": "weights_version"}


async def test_plain_http_gives_a_group_with_the_stored_arrays(
    served: tuple[Yard, AsyncClient], compatibility: Compatibility
) -> None:
    _, client = served
    headers = {"Authorization": f"Bearer {client.context.token}"}
    connector = aiohttp.TCPConnector(ssl=client.context.tls())
    async with aiohttp.ClientSession(client.context.current_url(), headers=headers, connector=connector) as http:
        request = {"id": "plain", "pool": "demo", "n": 2, "task": TASK}
        async with http.post("/v1/rollouts", json={"rollouts": [request]}) as answer:
            assert answer.status == 202, await answer.text()
            ids = [row["id"] for row in (await answer.json())["rollouts"]]
        assert len(ids) == 2
        for id in ids:
            found = None
            while found is None:
                async with http.get(f"/v1/rollouts/{id}?wait=30") as answer:
                    found = (await answer.json())["trajectory"]
            _, stored = await client.rollout_columns(id)
            assert stored is not None
            (trajectory,) = stored.trajectories()
            compatibility.same("rewards", found["reward"], stored.rewards.tolist()[0])
            compatibility.same("groups", found["group"], trajectory.group)
            for part in PARTS[:4]:
                field = FIELDS[part]
                mine = list(chain(*(segment[field] for segment in found["segments"])))
                compatibility.same(part, mine, list(chain(*(getattr(s, field) for s in trajectory.segments))))
    compatibility.row(
        "plain HTTP", "any client", start="`POST /v1/rollouts`", page="api.md",
        ran="a group of two rollouts, submitted and read as JSON; the same as arrays",
    )  # fmt: skip
