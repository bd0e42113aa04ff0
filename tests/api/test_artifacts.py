"""The artifact of a rollout can be read as long as it is stored, and then it is told where it went."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollyard.core.errors import Expired, NotFound
from rollyard.kinds.pool import PoolKey
from tests.api.test_columns import RUN, a_client, leased, node_agent
from tests.support.outside_api import Serve


async def test_an_artifact_is_read_until_it_is_deleted(serving: Serve, tmp_path: Path) -> None:
    async with serving() as api, node_agent(api, tmp_path) as uploads, a_client(api) as client:
        ref = await leased(api, "r")
        with pytest.raises(NotFound, match="has no artifact: it has not come to the end of RUN"):
            await client.artifact("r")
        assert (await client.rollout("r"))[0].artifact is None
        await uploads.run(ref, RUN)
        assert await client.artifact("r") == RUN.artifact
        assert await api.store.rollouts.prune_artifacts({PoolKey("default", "swe"): float("inf")}) == 0, "EVAL needs it"
        await uploads.result(ref, RUN.outcome)
        view, trajectory = await client.rollout("r")
        assert (view.artifact, await client.artifact("r")) == ("Kept", RUN.artifact)
        assert await api.store.rollouts.prune_artifacts({PoolKey("default", "swe"): float("inf")}) == 1
        assert await client.rollout("r") == (view.model_copy(update={"artifact": "Deleted"}), trajectory)
        with pytest.raises(
            Expired, match=r"artifactTtlSecondsAfterFinished has passed.*submit the task under another id"
        ):
            await client.artifact("r")
        with pytest.raises(NotFound, match="rollout 'other' not found"):
            await client.artifact("other")
