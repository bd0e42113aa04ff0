"""Requests that drain an allocation, right and wrong ones, at the real API."""

from __future__ import annotations

from typing import Any

import pytest

from rollyard.kinds.allocation import DRAINED_BY, Allocation
from tests.support.make import allocation
from tests.support.outside_api import Api, Serve

NAMESPACE = "/apis/rollyard.dev/v1alpha1/namespaces/default"
DRAIN = f"{NAMESPACE}/allocations/demo-0/drain"
WHOLE = "graceSeconds must be a whole number from 0 to 2592000; leave it out for the pool's"


async def post(api: Api, path: str, data: Any) -> tuple[int, str]:
    async with api.http.post(f"{api.url}{path}", data=data, headers={"Content-Type": "application/json"}) as answer:
        told = await answer.json()
        return answer.status, str(told.get("message"))


@pytest.mark.parametrize(
    ("data", "code", "words"),
    [
        (b"soon", 400, "JSON"),
        (b"[300]", 400, "the body must be a JSON object"),
        (b'{"grace": 300}', 400, "unknown field 'grace'; the only field is graceSeconds, in whole seconds"),
        (b'{"graceSeconds": 5, "force": true}', 400, "unknown field 'force'"),
        *((b'{"graceSeconds": %s}' % wrong, 422, WHOLE) for wrong in (b"-1", b"1.5", b'"5m"', b"true", b"2592001")),
    ],
)
async def test_a_wrong_drain_changes_nothing_and_is_told_what_can_be_done(
    serving: Serve, data: bytes, code: int, words: str
) -> None:
    async with serving() as api:
        made = await api.parts.store.objects.create(allocation("demo-0"))
        status, told = await post(api, DRAIN, data)
        assert (status, words in told) == (code, True), told
        assert await api.parts.store.objects.get(made.key, Allocation) == made


async def test_a_drain_is_stored_with_its_grace_and_who_asked_for_it(serving: Serve) -> None:
    async with serving() as api:
        made = await api.parts.store.objects.create(allocation("demo-0"))
        assert (await post(api, f"{DRAIN}?dryRun=All", b'{"graceSeconds": 7}'))[0] == 200
        assert await api.parts.store.objects.get(made.key, Allocation) == made
        assert (await post(api, DRAIN, b'{"graceSeconds": 7}'))[0] == 200
        assert (await post(api, DRAIN, b""))[0] == 200, "again, with the grace that it has"
        found = await api.parts.store.objects.get(made.key, Allocation)
        assert (found.spec.drain, found.spec.drain_timeout_seconds) == (True, 7)
        assert found.metadata.annotations == {DRAINED_BY: "admin"}
        assert (await post(api, f"{NAMESPACE}/allocations/demo-9/drain", b""))[0] == 404
        status, told = await post(api, f"{NAMESPACE}/inferencepools/policy/drain", b"")
        assert (status, "suspend or scale 'policy'" in told) == (404, True)
