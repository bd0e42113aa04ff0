"""A node agent with a valid token, which says what is not true. It changes nothing of the rollouts of others."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from rollyard.kinds.allocation import Allocation
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout import Status
from rollyard.server.rollouts import missing_images
from rollyard.trajectory.frames import framed, sealed
from rollyard.trust.bearer_tokens import Role
from rollyard.wire.base import WireMessage
from rollyard.wire.node import (  # fmt: skip
    HandBack,
    Heartbeat,
    Hello,
    ImageChanges,
    ImageFault,
    ImageStorage,
    KeptSandbox,
    KeptSandboxList,
    NewEndpoint,
    ResultHeader,
    SandboxCounts,
    ToolProofs,
)
from rollyard.wire.tool_proof import TemplateProof, ToolProof
from tests.api.test_columns import RUN, leased, node_agent
from tests.api.test_snapshots import header
from tests.support import make
from tests.support.make import allocation, identity, rollout_pool
from tests.support.outside_api import Api, Serve


class _NodeAgent:
    """A node agent of the pool `other`, which has no lease."""

    def __init__(self, api: Api, socket: aiohttp.ClientWebSocketResponse, token: str) -> None:
        self._api = api
        self._socket = socket
        self.headers = {"Authorization": f"Bearer {token}"}

    async def say(self, *messages: WireMessage | str, preparing: str = "") -> None:
        """Send messages, and wait until the server has read them."""
        for message in (*messages, Heartbeat(held=[], sent_at=7.0, preparing=preparing)):
            await self._socket.send_str(message if isinstance(message, str) else message.model_dump_json())
        while (await self._socket.receive_json(timeout=20)).get("sent_at") != 7.0:
            pass


@asynccontextmanager
async def hostile(api: Api) -> AsyncIterator[_NodeAgent]:
    await api.store.objects.create(rollout_pool("swe"))
    await api.store.objects.create(rollout_pool("other", inference={"policy": "own"}))
    made = await api.store.objects.create(allocation("other-0"))
    assert isinstance(made, Allocation)
    me = identity(made.metadata.name).model_copy(update={"uid": made.metadata.uid})
    token = api.parts.signer.issue(Role.NODE, made.metadata.uid)
    headers = {"Authorization": f"Bearer {token}"}
    async with api.http.ws_connect(f"{api.url}/v1/node/connect", headers=headers) as socket:
        await socket.send_str(Hello(identity=me).model_dump_json())
        assert (await socket.receive_json(timeout=20))["type"] == "welcome"
        yield _NodeAgent(api, socket, token)


async def test_leases_of_others_stay_with_their_holders(serving: Serve, tmp_path: Path) -> None:
    async with serving() as api, hostile(api) as agent, node_agent(api, tmp_path) as owner:
        ref = await leased(api, "r")
        api.parts.rollouts.leases.add(await api.parts.rollouts.get("default", "r"))
        forged = [ref, ref.model_copy(update={"fence": 10**30})]
        await agent.say(*(HandBack(lease=one, reason=why) for one in forged for why in ("Drain", "UnreadableLease")))
        body = NewEndpoint(lease=ref, role="policy", failed="e-1", why="I say so").model_dump_json()
        async with api.http.post(f"{api.url}/v1/node/endpoint", data=body, headers=agent.headers) as answer:
            assert answer.status == 409, await answer.text()  # an endpoint has a token
        for path in ("run", "fork", "fork/snapshot"):
            async with api.http.get(f"{api.url}/v1/node/{path}?id=r&fence=1", headers=agent.headers) as answer:
                assert answer.status == 409
        record = await api.parts.rollouts.get("default", "r")
        assert (record.status, record.holder, record.fence) == (Status.RUNNING, "u/i", 1)
        assert api.parts.rollouts.leases.get(record.key) is not None
        forged_header = header(ref, 1).model_dump_json().replace('"turn":1,', f'"turn":{10**30},').encode()
        upload = sealed(forged_header) + b"\na turn that no database holds"
        headers = {"Authorization": "Bearer " + api.parts.signer.issue(Role.NODE, "u")}
        async with api.http.put(f"{api.url}/v1/node/snapshot", data=upload, headers=headers) as answer:
            assert answer.status == 422
        await owner.run(ref, RUN)


@pytest.mark.parametrize("false", [{"tokens": -1}, {"turns": -1}, {"sampled": 10**30}, {"timings": {"run": -1.0}}])
async def test_a_result_with_counts_that_nobody_can_have_counted_is_refused(
    serving: Serve, tmp_path: Path, false: dict[str, object]
) -> None:
    async with serving() as api, node_agent(api, tmp_path) as owner:
        ref = await leased(api, "r")
        headers = {"Authorization": "Bearer " + api.parts.signer.issue(Role.NODE, "u")}
        told = ResultHeader(lease=ref, status="Completed", reward=1.0).model_dump(mode="json") | false
        body = framed(json.dumps(told).encode() + b"\n")
        async with api.http.put(f"{api.url}/v1/node/results", data=body, headers=headers) as answer:
            (refusal,) = (await answer.json())["results"]
            assert refusal["code"] == 422, refusal
        assert (await api.parts.rollouts.get("default", "r")).status is Status.RUNNING
        await owner.run(ref, RUN)


async def test_a_kept_sandbox_of_another_pools_rollout_is_not_believed(serving: Serve) -> None:
    async with serving() as api, hostile(api) as agent:
        ref = await leased(api, "r")
        await agent.say(KeptSandboxList(kept=[KeptSandbox(lease=ref, until=2e9)]))
        record = await api.parts.rollouts.get("default", "r")
        assert api.parts.node_agents.kept(record.key, record.pool_key) is None


async def test_a_proof_about_another_pools_model_is_not_believed(serving: Serve) -> None:
    async with serving() as api, hostile(api) as agent:
        folder = str(api.model)
        spec = make.inference_pool(model={"path": folder}).spec
        for name in ("own", "policy"):
            key = PoolKey("default", name)
            api.endpoints.add_external(key, make.endpoint(name, "http://e", tokenizer=folder), 1.0)
            api.endpoints.follow_spec(key, spec)
        proof = ToolProof(status="False", reason="NoParser", message="m" * 10_000)
        await agent.say(ToolProofs(proofs=[TemplateProof(tokenizer=folder, proof=proof)] * 300))
        assert api.endpoints.proofs(PoolKey("default", "policy")) == []
        (believed,) = api.endpoints.proofs(PoolKey("default", "own"))
        assert (believed.status, len(believed.message)) == ("False", 2000)


async def test_floods_of_names_and_impossible_numbers(serving: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(missing_images, "MOST_READY", 100)
    monkeypatch.setattr(missing_images, "MOST_MISSING", 10)
    async with serving() as api, hostile(api) as agent:
        names = [f"docker://r/{i}" for i in range(300)]
        faults = [ImageFault(image=name, message="m" * 100) for name in names]
        for start in range(0, 300, 100):
            await agent.say(ImageChanges(ready=names[start : start + 100], failed=faults[start : start + 100]))
        (found,) = api.parts.node_agents.all()
        assert len(found.ready_images) == 100
        missing = await api.store.rollouts.missing_images(found.pool)
        assert len(missing) <= 10
        counts = {"ready": -5, "warm": 10**400, "cold": 10**400, "unused": -(10**400)}
        images = ImageStorage.model_validate({"images": 10**400, "bytes": -1, "evicted_bytes": 10**400})
        beat = Heartbeat(held=[], sandboxes=SandboxCounts.model_validate(counts), images=images).model_dump_json()
        await agent.say(beat, "not json", '{"type": "heartbeat", "held": [{"fence": "x"}]}', '{"type": "new"}')
        async with api.http.get(f"{api.url}/metrics") as answer:
            assert answer.status == 200
            text = await answer.text()
            assert "rollyard_sandboxes" in text
            assert 'rollyard_image_cache_bytes{what="stored"} 0.0' in text
