"""The route of a pool's weights, for a pool that does not exist."""

from __future__ import annotations

from tests.support.outside_api import Serve


async def test_a_wrong_pool_is_answered_with_the_existing_ones(serving: Serve) -> None:
    async with serving() as api:
        path = f"{api.url}/apis/rollyard.dev/v1alpha1/namespaces/default/inferencepools/polcy/weights"
        for answer in (api.http.get(path), api.http.post(path, json={"version": "v1", "path": "/w"})):
            async with answer as found:
                assert found.status == 404
                body = await found.json()
                assert body["reason"] == "NotFound"
                assert "no InferencePool 'polcy'" in body["message"]
                assert body["message"].endswith("existing ones: policy")
