"""Pools whose model's calls are read, are not read, or have no tools at all: what is served, and what is refused before."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from rollyard.client import AsyncClient
from rollyard.core.errors import Invalid
from rollyard.kinds.base import ObjectKey, get_condition
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.rollout import RolloutRequest, Status
from tests.support.chat_templates import CHATML
from tests.support.yard import MODEL, ROOT, Yard, requests

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow(40)]

STRANGE = (MODEL / "chat_template.jinja").read_text().replace("tool_call>", "act>").replace('{"name": "', "do ")
STRANGE = STRANGE.replace('", "arguments": ', " with ")
"""Template of a family that no parser reads: `<act>do bash with {…}</act>`."""
GAME = {"kind": "env", "framework": "class", "env": "tests.support.small_games:Sums", "seed": 1}


class Served:
    """A yard with one RolloutPool, and one InferencePool with one embedded engine at a time."""

    def __init__(self, yard: Yard, client: AsyncClient) -> None:
        self.yard, self.client = yard, client

    async def model(self, folder: Path, **model: Any) -> None:
        await self.yard.apply(
            self.client,
            policy={"replicas": 1, "model": {"path": str(folder), **model}},
            demo={"replicas": 1},
        )

    async def alone(self) -> None:
        """Wait until the engine of the present spec is the pool's only one, so that rollouts get this engine."""

        async def look() -> bool:
            endpoints = (await self.pool()).status.endpoints
            return len(endpoints) == 1 and endpoints[0].ready

        await self.yard.ready(self.client)
        await self.yard.until(look)

    async def pool(self) -> InferencePool:
        found = await self.client.get(ObjectKey(kind="InferencePool", namespace="default", name="policy"))
        assert isinstance(found, InferencePool)
        return found

    async def tool_calls(self, status: str) -> str:
        """Return reason and message of ToolCalls once the present spec has this status."""

        async def look() -> str | None:
            pool = await self.pool()
            found = get_condition(pool.status.conditions, "ToolCalls")
            settled = found is not None and found.observed_generation == pool.metadata.generation
            return (
                f"{found.reason}: {found.message}" if found is not None and settled and found.status == status else None
            )

        return str(await self.yard.until(look))


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    made = Yard(tmp_path_factory.mktemp("yard"))
    made.env["PYTHONPATH"] = os.pathsep.join([os.environ["PYTHONPATH"], str(ROOT)])
    try:
        made.start()
        async with made.client() as client:
            yield Served(made, client)
    finally:
        await made.clean_up()


def model(folder: Path, template: str) -> Path:
    made = Path(shutil.copytree(MODEL, folder))
    (made / "chat_template.jinja").write_text(template)
    return made


def game(id: str) -> RolloutRequest:
    return RolloutRequest.model_validate({"id": id, "pool": "demo", "task": GAME})


async def test_calls_that_no_parser_reads_are_refused_at_submit_and_before_the_first_model_call(
    served: Served, tmp_path: Path
) -> None:
    await served.model(model(tmp_path / "strange", STRANGE))
    told = await served.tool_calls("False")
    assert told.startswith("NoParser: no parser fits the model's chat template")
    assert "<act>" in told
    assert "name a parser in the pool's `spec.model.toolParser`" in told
    with pytest.raises(Invalid, match="tool calls of InferencePool 'policy' would not be read: no parser fits"):
        await served.client.submit(requests(1, 0, prefix="refused"))
    await served.alone()
    out, _ = await served.yard.rollyard("get", "ip")
    assert "AllReady,ToolCalls=False" in out
    own = requests(1, 0, prefix="own", agent={"tool_parser": "mistral"})
    (ended,) = await served.yard.gather(served.client, await served.client.submit(own))
    assert (ended.status, ended.reward, ended.turns) == (Status.FAILED, None, [])
    assert ended.error is not None
    assert (ended.error.reason, ended.attempt) == ("ToolCallsUnreadable", 1)


async def test_a_template_without_tools_serves_a_task_without_tools(served: Served, tmp_path: Path) -> None:
    await served.model(model(tmp_path / "plain", CHATML))
    assert (await served.tool_calls("False")).startswith("NoTools: ")
    await served.alone()
    (ended,) = await served.yard.gather(served.client, await served.client.submit([game("plain")]))
    assert ended.status in (Status.COMPLETED, Status.TRUNCATED), ended.error
    assert ended.reward is not None
    assert ended.turns


async def test_a_parser_named_in_the_pool_is_used_without_a_new_engine_and_proven_by_the_node_agent(
    served: Served,
) -> None:
    await served.model(MODEL, toolParser="mistral")
    assert (await served.tool_calls("False")).startswith("CallsUnreadable: the parser mistral reads 0 of 1 calls")
    await served.alone()
    engines = {a.metadata.uid for a in await served.yard.allocations(served.client)}
    await served.model(MODEL, toolParser="hermes")
    assert (await served.tool_calls("Unknown")).startswith("NotProven: ")
    (ended,) = await served.yard.gather(served.client, await served.client.submit(requests(1, 0, prefix="named")))
    assert ended.status in (Status.COMPLETED, Status.TRUNCATED), ended.error
    assert ended.reward is not None
    assert (await served.tool_calls("True")).startswith("ReadBack: the parser hermes reads the calls")
    assert {a.metadata.uid for a in await served.yard.allocations(served.client)} <= engines
