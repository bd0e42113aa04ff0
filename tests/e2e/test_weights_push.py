"""A trainer pushes weights from memory: whole folders only, numbered on over restarts, served before the call returns."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rollyard.client import AsyncClient
from rollyard.core.errors import Conflict, NoProgress
from tests.support.lazy_module import LazyModule
from tests.support.live_weights import current_version, serves, versions
from tests.support.yard import MODEL, Yard, requests

if TYPE_CHECKING:
    import safetensors.torch as safetensors_torch
else:
    safetensors_torch = LazyModule("safetensors.torch")

pytestmark = pytest.mark.slow(40)


class SavedModel:
    """A model of a trainer as far as a push needs it."""

    def __init__(self, tensors: dict[str, Any]) -> None:
        self.tensors = tensors

    def save_pretrained(self, folder: Path) -> None:
        safetensors_torch.save_file(self.tensors, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text((MODEL / "config.json").read_text())


async def one_engine(yard: Yard, client: AsyncClient) -> None:
    await yard.apply(client, policy={"replicas": 1, "autoscaling": None}, demo={"replicas": 1})
    await yard.ready(client)

    async def known() -> bool:
        return await serves(client, await current_version(client), 1)

    await yard.until(known)


async def test_weights_are_pushed_from_memory_and_numbered_on_by_the_next_trainer(yard: Yard) -> None:
    tensors = safetensors_torch.load_file(MODEL / "model.safetensors")
    folder = yard.folder / "weights"
    async with yard.client() as client:
        await one_engine(yard, client)
        async with client.weights("policy", folder=folder) as weights:
            assert await weights.push(tensors) == "step1"
            assert await serves(client, "step1", 1)
            assert await weights.push(SavedModel({n: t * 1.001 for n, t in tensors.items()})) == "step2"
            assert await weights.push({n: t.float().numpy() for n, t in tensors.items()}) == "step3"
        assert sorted(f.name for f in folder.iterdir()) == ["step2", "step3"], "the newest two are kept"

        (folder / ".writing-step4-1-dead").mkdir()
        (folder / "step4").mkdir()  # a trainer that died before it named the folder to the server
        async with client.weights("policy", folder=folder) as weights:
            assert weights.step == 3
            with pytest.raises(Conflict, match="choose another version"):
                await weights.push(tensors, "step2")
            wrong = dict(tensors) | {"lm_head.weight": tensors["lm_head.weight"][:7]}
            with pytest.raises(NoProgress, match="WrongShape"):
                await weights.push(wrong)
            assert await weights.push(tensors, "final") == "final"
        ids = await client.submit(requests(2, 0, min_weights_version="final"))
        ended = await client.wait_many(ids)
        assert [t.id for t in ended] == ids
        assert all(t.status.scored and versions(t) == ["final"] for t in ended)
        assert {t.id async for t in client.as_completed(ids)} == set(ids)
