"""Weights change under load: nothing is lost, tokens say what made them, and what is killed comes back with what is current."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import pytest_asyncio

from rollyard.client import AsyncClient
from rollyard.client.sync_client import BlockingWeightsReceiver, Client
from rollyard.client.weights_receiver import WeightsReceiver
from rollyard.core.errors import Conflict, NotFound
from rollyard.kinds.rollout import Stage, Status
from rollyard.kinds.weights import Mode, WeightsUpdate
from rollyard.trajectory import Trajectory
from tests.support.live_weights import crossings, other_weights, pool_of, serves, versions
from tests.support.recompute import differences
from tests.support.yard import MODEL, Yard, kill, ready_yard, requests

pytestmark = [pytest.mark.slow(150), pytest.mark.asyncio(loop_scope="module")]

POLICY = {"replicas": 2, "autoscaling": None}
LONG = {"temperature": 100.0, "max_tokens": 2000}
"""Sampling for a turn that outlasts a change of the weights: any token follows, and one in a thousand ends it."""
CLOSE = 0.02


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Yard]:
    """A yard with two engines and a node agent. Each test begins with weights of its own name."""
    async with ready_yard(tmp_path_factory, policy=POLICY, demo={"replicas": 1}) as (yard, _):
        yield yard


@asynccontextmanager
async def begun_with(yard: Yard, version: str) -> AsyncIterator[AsyncClient]:
    """Open a client when both engines serve the pool's own model as this version."""
    async with yard.client() as client:
        await yard.until(lambda: serves_something(client, 2))
        await client.update_weights("default", "policy", WeightsUpdate(version=version, path=str(MODEL), mode="Abort"))
        await yard.until(lambda: serves(client, version, 2))
        yield client


@pytest.mark.long  # test_vllm.py pauses and aborts, and test_weights_follow.py drains; tests/engine does all three
@pytest.mark.parametrize("mode", ["Drain", "Pause", "Abort"])
async def test_an_update_under_load_loses_nothing(served: Yard, mode: Mode) -> None:
    yard, old = served, f"{mode}1"
    async with begun_with(yard, old) as client:
        newest, folders = old, {old: MODEL}
        before = await completed(client)
        ids = await client.submit(requests(3, 1, n=2, prefix=mode, sampling={"temperature": 1.0}))
        asked: dict[str, list[str]] = {}
        """Rollouts that asked for a version as their least, while it was on its way."""

        async def under_way() -> bool:
            live = [r async for r in client.rollouts() if r.id.startswith(f"{mode}-long") and not r.status.terminal]
            if not live:  # none was submitted yet, or a busy machine looks only when they have ended
                more = requests(
                    4, 0, prefix=f"{mode}-long-{len(ids)}", priority=1, sampling=LONG, agent={"max_turns": 1}
                )
                ids.extend(await client.submit(more))
            in_run = sum(r.stage is Stage.RUN for r in live)
            return in_run >= 2 and await completed(client) >= before + 2

        async def change() -> list[Trajectory]:
            """Serve other weights, which come under load; return all trajectories so far."""
            nonlocal newest
            newest = f"{mode}{len(folders) + 1}"
            folders[newest] = other_weights(MODEL, yard.folder / newest, seed=len(folders), amount=0.02)
            await yard.until(under_way)
            update = WeightsUpdate(version=newest, path=str(folders[newest]), mode=mode)
            begun = await client.update_weights("default", "policy", update)
            assert begun.operation is not None
            hot = {"temperature": 5.0, "max_tokens": 200}  # what it is sure of shows little of a small step
            after = requests(6, 0, prefix=f"after-{newest}", min_weights_version=newest, sampling=hot)
            asked[newest] = await client.submit(after)
            ids.extend(asked[newest])
            await yard.until(lambda: serves(client, newest, 2))
            return await yard.gather(client, ids)

        ended = await change()
        while mode != "Drain" and not any(crossings(t) for t in ended):
            ended = await change()  # all long turns had ended before the update came

        assert {t.status for t in ended} <= {Status.COMPLETED, Status.TRUNCATED}, [t.error for t in ended if t.error]
        found, order = {t.id: versions(t) for t in ended}, list(folders)
        runs = [[version] for version in order] + [list(pair) for pair in pairwise(order)]
        assert all(one in runs for one in found.values()), found
        assert [old] in found.values()
        assert all(found[id] == [version] for version, those in asked.items() for id in those), "they asked for it"
        crossed = {pair for t in ended for pair in crossings(t)}
        assert crossed == (set() if mode == "Drain" else {(order[-2], newest)})
        kept = {*folders} - {old} if mode == "Pause" else set()
        assert max(await asyncio.to_thread(differences, ended, folders, kept)) < CLOSE
        wrong = dict.fromkeys(folders, MODEL)
        assert max(await asyncio.to_thread(differences, ended, wrong, kept)) > CLOSE, "it would be seen"

        for pid in yard.processes("rollyard.engine.embedded"):
            kill(pid)

        async def gone() -> bool:
            return not await serves(client, newest, 2)

        await yard.until(gone)
        await yard.until(lambda: serves(client, newest, 2))
        last = await yard.gather(client, await client.submit(requests(2, 0, prefix=f"{mode}-last")))
        assert all(versions(t) == [newest] for t in last)


def halves(folder: Path) -> list[bytes]:
    """Two safetensors bodies, as a trainer that shards its model by tensors would send them."""
    raw = (folder / "model.safetensors").read_bytes()
    (size,) = struct.unpack_from("<Q", raw)
    head, bodies = json.loads(raw[8 : 8 + size]), []
    names = sorted(head.keys() - {"__metadata__"})
    for part in (names[::2], names[1::2]):
        data, made = b"", {}
        for name in part:
            begin, end = (8 + size + at for at in head[name]["data_offsets"])
            made[name] = {**head[name], "data_offsets": [len(data), len(data) + end - begin]}
            data += raw[begin:end]
        text = json.dumps(made).encode()
        bodies.append(struct.pack("<Q", len(text)) + text + data)
    return bodies


async def test_a_trainer_moves_the_weights_and_an_engine_that_is_killed_meanwhile_gets_them_all_the_same(
    served: Yard,
) -> None:
    yard = served
    async with begun_with(yard, "moved1") as client:
        before = await completed(client)
        ids = await client.submit(requests(4, 1, n=2, prefix="moved", sampling={"temperature": 1.0}))

        async def under_way() -> bool:
            return await completed(client) >= before + 3

        await yard.until(under_way)
        folder, groups = other_weights(MODEL, yard.folder / "moved2", amount=0.02), list[Sequence[WeightsReceiver]]()

        async def send(receivers: Sequence[WeightsReceiver]) -> None:
            groups.append(receivers)
            for receiver in receivers:
                await receiver.call("start_weight_update")
                for number, half in enumerate(halves(folder)):
                    await receiver.call("update_weights", half)
                    if len(groups) == 1 and receiver is receivers[-1] and number == 0:
                        kill(*yard.engines(receiver.id))  # the second half finds it dead, or without the first
                await receiver.call("finish_weight_update")

        update = WeightsUpdate(version="moved2", path=str(folder), mode="Pause", transfer=True)
        ended = await client.transfer_weights("default", "policy", update, send)
        assert ended.operation is not None
        assert ended.operation.phase == "Complete", ended.operation.message
        assert "without a transfer" not in ended.operation.message
        assert len(groups[0]) == 2, "all at once"
        assert len(groups) > 1, "who was killed has waited once more"
        await yard.until(lambda: serves(client, "moved2", 2))
        trajectories = await yard.gather(client, ids)
        assert {t.status for t in trajectories} <= {Status.COMPLETED, Status.TRUNCATED}
        found = [versions(t) for t in trajectories]
        assert all(runs in (["moved1"], ["moved2"], ["moved1", "moved2"]) for runs in found), found
        last = await yard.gather(client, await client.submit(requests(2, 0, prefix="moved-last")))
        assert all(versions(t) == ["moved2"] for t in last)
        await asyncio.to_thread(move_back, yard.data / "admin.kubeconfig")
        await yard.until(lambda: serves(client, "moved3", 2))
        engine = groups[0][0]
        with pytest.raises(Conflict, match="this engine expects no transfer now"):
            await engine.call("start_weight_update")
        with pytest.raises(NotFound, match="has no engine 'policy-9'"):
            await replace(engine, id="default/policy-9").call("start_weight_update")
        with pytest.raises(NotFound):
            await engine.call("collective_rpc", {"method": "x"})


def move_back(kubeconfig: Path) -> None:
    """By a trainer without an event loop."""

    def send(receivers: Sequence[BlockingWeightsReceiver]) -> None:
        for receiver in receivers:
            receiver.call("start_weight_update")
            for half in halves(MODEL):
                receiver.call("update_weights", half)
            receiver.call("finish_weight_update")

    with Client(kubeconfig=kubeconfig) as client:
        update = WeightsUpdate(version="moved3", path=str(MODEL), mode="Abort", transfer=True)
        ended = client.transfer_weights("default", "policy", update, send)
        listed = next(client.rollouts(pool="demo"))
        assert client.rollout_history(listed.id).id == listed.id
    assert ended.operation is not None
    assert ended.operation.message.startswith("moved3 was served by 2 of 2 endpoints"), ended.operation.message
    assert "without a transfer" not in ended.operation.message


async def serves_still(client: AsyncClient, version: str, count: int) -> bool:
    """After an update that failed."""
    pool = await pool_of(client)
    return [e.weights_version for e in pool.status.endpoints if e.ready] == [version] * count


async def serves_something(client: AsyncClient, count: int) -> bool:
    return sum(e.ready for e in (await pool_of(client)).status.endpoints) == count


async def completed(client: AsyncClient) -> int:
    return (await client.counts(pool="demo"))["Completed"]


async def test_a_server_that_is_killed_goes_on_with_the_update(served: Yard) -> None:
    yard = served
    async with begun_with(yard, "v1") as client:
        update = WeightsUpdate(version="v2", path=str(other_weights(MODEL, yard.folder / "v2", amount=0.02)))
        await client.update_weights("default", "policy", update)
        yard.kill()
        yard.start()
    async with yard.client() as client:
        await yard.until(lambda: serves(client, "v2", 2))
        shown, _ = await yard.rollyard("weights", "policy")
        assert "update to v2 complete: v2 was served by 2 of 2 endpoints" in shown
        assert "update to v2 complete" in (await yard.rollyard("describe", "inferencepool", "policy"))[0]
        assert " v2 " in (await yard.rollyard("get", "inferencepools"))[0]
        v3 = other_weights(MODEL, yard.folder / "v3", amount=0.02)
        ordered = ["weights", "policy", "--path", str(v3), "--wait", "--version"]
        assert "update to v3 complete" in (await yard.rollyard(*ordered, "v3"))[0]
        with pytest.raises(AssertionError, match="use another version name for other weights"):
            await yard.rollyard("weights", "policy", "--version", "v2", "--path", "/elsewhere")
        with pytest.raises(AssertionError, match=r"update to v4 failed: .*is not a folder on this node"):
            await yard.rollyard("weights", "policy", "--version", "v4", "--path", "/nowhere", "--wait")
        await yard.until(lambda: serves_still(client, "v3", 2))
        assert "update to v5 complete" in (await yard.rollyard(*ordered, "v5"))[0], "no failure of v4 counts against it"
