"""The whole service on real vLLM, built for CPUs: its weights change under load in each mode, and an engine is killed."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from rollyard.client import AsyncClient
from rollyard.kinds.rollout import RolloutRequest, Stage, Status
from rollyard.kinds.weights import Mode, WeightsUpdate
from rollyard.trajectory import Trajectory
from tests.support.live_weights import crossings, current_version, other_weights, pool_of, serves, versions
from tests.support.recompute import differences
from tests.support.yard import MODEL, Yard, requests

pytestmark = [pytest.mark.heavy, pytest.mark.slow(330)]

READY_SECONDS, END_SECONDS = 1200.0, 300.0
CLOSE = 0.02
MODES: dict[Mode, int] = {"Drain": 200, "Pause": 500, "Abort": 500}
"""How long turns are at least, so that some are still under way when the weights change. Drain waits for all of them."""
INTERRUPTING: set[Mode] = {"Pause", "Abort"}


async def load(client: AsyncClient, yard: Yard, prefix: str, tokens: int) -> list[str]:
    """Submit tasks of some turns each, and turns of so many tokens, until these are under way; return the ids.

    A busy machine may look only when they have ended. Then it submits them again.
    """
    ids: list[str] = []
    while True:
        sampling = {"temperature": 1.0, "min_tokens": tokens, "max_tokens": tokens + 200}
        one_turn = {"agent": {"max_turns": 1}, "sampling": sampling}
        long = await client.submit(requests(4, 0, prefix=f"{prefix}-{len(ids)}-long", **one_turn))
        ids += long + await client.submit(requests(1, 1, prefix=f"{prefix}-{len(ids)}"))
        if await yard.until(lambda long=long: at_work(client, long), END_SECONDS) == "at work":
            return ids


async def at_work(client: AsyncClient, long: list[str]) -> str:
    """Return "at work" if several turns are under way, two of `long` among them, and all engines have rollouts."""
    (pool,) = (await client.top()).inference_pools
    busy = (pool.load.running or 0) >= 4 and all(endpoint.sessions for endpoint in pool.endpoints)
    live = [r async for r in client.rollouts() if r.id in long and not r.status.terminal]
    if busy and sum(r.stage is Stage.RUN for r in live) >= 2:
        return "at work"
    return "" if len(live) >= 2 else "ended"


async def started(client: AsyncClient, yard: Yard, vllm_python: str, replicas: int) -> None:
    """Serve the policy by vLLM, in float32, as its logprobs are compared with those of the reference model."""
    vllm = {"python": vllm_python, "extraArgs": ["--dtype", "float32"]}
    policy = {"engine": {"embedded": None, "vllm": vllm}, "allocation": {"memory": "4G"}, "replicas": replicas}
    await yard.apply(client, policy=policy, demo={"replicas": 1, "stages": {"run": {"timeoutSeconds": 600}}})

    async def all_ready() -> bool:
        return (await pool_of(client)).status.replicas.ready == replicas

    await yard.until(all_ready, READY_SECONDS)
    await yard.ready(client)


async def killed(client: AsyncClient, yard: Yard, version: str, replicas: int) -> None:
    """Kill an engine, and wait until it is missed."""
    victim, *_ = yard.processes("vllm.entrypoints.cli.main", "--uds")
    os.kill(victim, signal.SIGKILL)

    async def seen() -> bool:
        return not await serves(client, version, replicas)

    await yard.until(seen)


@pytest.mark.usefixtures("long_leases")
@pytest.mark.parametrize("replicas", [1, pytest.param(2, marks=pytest.mark.long)])
async def test_weights_change_under_load_and_a_killed_engine_comes_back_with_them(
    vllm_python: str, yard: Yard, replicas: int, long_run: bool
) -> None:
    """With one replica what it was asked waits until it is back, with two the other one goes on with it.

    Drain, which never interrupts an engine, and the kill are in the long form only: a start of vLLM takes 25 s of CPU time.
    test_weights_follow.py has Drain under load, test_weight_updates.py a killed engine.
    """
    async with yard.client() as client:
        await started(client, yard, vllm_python, replicas)
        ids: list[str] = []
        folders, modes = {await current_version(client): MODEL}, dict[str, Mode]()
        ended: list[Trajectory] = []

        async def collect() -> None:
            async for _, trajectory in client.stream(pool="demo"):
                ended.append(trajectory)

        collecting = asyncio.create_task(collect())

        async def change(mode: Mode) -> str:
            """Serve other weights, which come in this mode under load; return their version."""
            version = f"v{len(folders) + 1}"
            folders[version] = other_weights(MODEL, yard.folder / version, seed=len(folders), amount=0.02)
            modes[version] = mode
            ids.extend(await load(client, yard, version, MODES[mode]))
            by_trainer = mode == "Abort"  # these engines were not started for that, and read the folder
            update = WeightsUpdate(version=version, path=str(folders[version]), mode=mode, transfer=by_trainer)
            await client.update_weights("default", "policy", update)

            async def served() -> bool:
                """Whether the version is served. Until then turns are under way, however long the engines prepare for it."""
                if not (done := await serves(client, version, replicas)):
                    long = [one for one in ids if "-long" in one]
                    if await at_work(client, long) == "ended":
                        ids.extend(await load(client, yard, f"{version}-{len(ids)}", MODES[mode]))
                return done

            await yard.until(served, END_SECONDS)
            operation = (await pool_of(client)).status.weights.operation
            assert operation is not None
            assert ("NoTransfer: write `--weight-transfer-config`" in operation.message) == by_trainer, (
                operation.message
            )
            return version

        try:
            for mode in MODES if replicas == 2 else sorted(INTERRUPTING):
                newest = await change(mode)
            if long_run:
                ids += await load(client, yard, "kill", 200)
                await killed(client, yard, newest, replicas)
            trajectories = await yard.gather(client, ids, READY_SECONDS + END_SECONDS)
            await yard.until(lambda: serves(client, newest, replicas), READY_SECONDS)
            for _ in range(3):  # a busy machine's turns may all have ended before an update came
                for mode in sorted(INTERRUPTING - interrupting(trajectories, modes)):
                    newest = await change(mode)
                    trajectories = await yard.gather(client, ids, END_SECONDS)
            last = await client.submit(requests(4, 0, prefix="last"))
            trajectories += await yard.gather(client, last, END_SECONDS)
            async with asyncio.timeout(END_SECONDS):
                while len(ended) < len(trajectories):
                    await asyncio.sleep(0.1)
        finally:
            collecting.cancel()
        assert sorted(t.id for t in ended) == sorted([*ids, *last]), "each ends once"
        assert {t.status for t in trajectories} <= {Status.COMPLETED, Status.TRUNCATED}
        assert {t.attempt for t in trajectories} == {1}, "neither other weights nor a dead engine are a new attempt"
        assert len(await yard.jobs()) == 1 + replicas, "it came back in its own job"
        order = list(folders)
        for trajectory in trajectories:
            found = [order.index(version) for version in versions(trajectory)]
            assert found == sorted(found)
        assert all(versions(t) == [newest] for t in trajectories[-len(last) :])
        assert interrupting(trajectories, modes) == INTERRUPTING, "Drain waits for a turn's end, the others do not"
        paused = {version for version, mode in modes.items() if mode == "Pause"}
        off = await asyncio.to_thread(differences, trajectories, folders, paused)
        assert len(off) >= 3_000
        assert max(off) < CLOSE
        interrupted = [t for t in trajectories if any(after in paused for _, after in crossings(t))]
        assert max(await asyncio.to_thread(differences, interrupted, folders)) > CLOSE, "Pause keeps keys and values"


@pytest.mark.long
@pytest.mark.usefixtures("long_leases")
async def test_a_server_that_was_down_during_an_update_comes_back_with_the_new_weights(
    vllm_python: str, yard: Yard
) -> None:
    """Both have a prompt of 2,000 tokens in their prefix caches, and turns are under way."""
    problem = " ".join(f"Remember that {n} + 1 = {n + 1}." for n in range(130)) + " What is 3 + 4?"

    async def ask(prefix: str) -> list[Trajectory]:
        """Ask each server, each twice: a group would go to one of them."""
        task = {"kind": "math", "problem": problem, "answer": "7"}
        greedy = {"temperature": 0, "min_tokens": 40, "max_tokens": 80}
        fields = {"pool": "demo", "task": task, "sampling": greedy, "agent": {"max_turns": 1}}
        found: list[Trajectory] = []
        while len({t.endpoint for t in found}) < 2 or len(found) < 8:
            asked = [RolloutRequest.model_validate({"id": f"{prefix}-{len(found) + n}", **fields}) for n in range(4)]
            found += await yard.gather(client, await client.submit(asked), END_SECONDS)
        return found

    async with yard.client() as client:
        await started(client, yard, vllm_python, 2)
        old = await current_version(client)
        before = await ask("before")
        assert min(t.segments[0].prompt_length for t in before) > 2000
        folders = {old: MODEL, "v2": other_weights(MODEL, yard.folder / "v2", amount=0.05)}
        ids = await load(client, yard, "meanwhile", 500)
        victim, *_ = yard.processes("vllm.entrypoints.cli.main", "--uds")
        os.kill(victim, signal.SIGKILL)
        await client.update_weights(
            "default", "policy", WeightsUpdate(version="v2", path=str(folders["v2"]), mode="Pause")
        )
        after = await ask("after")
        meanwhile = await yard.gather(client, ids, READY_SECONDS)
        await yard.until(lambda: serves(client, "v2", 2), READY_SECONDS)
        last = await ask("last")
        assert {t.attempt for t in [*before, *after, *meanwhile, *last]} == {1}
        assert [versions(t) for t in before] == [[old]] * len(before)
        assert [versions(t) for t in last] == [["v2"]] * len(last)
        assert max(await asyncio.to_thread(differences, [*before, *after, *meanwhile, *last], folders, {"v2"})) < CLOSE
        assert min(max(differences([t], MODEL)) for t in last) > CLOSE


def interrupting(trajectories: list[Trajectory], modes: dict[str, Mode]) -> set[Mode]:
    """Return the modes of the updates that came within a turn."""
    return {modes[after] for t in trajectories for _, after in crossings(t)}
