"""restart, history and undo on a real server. The pools are suspended; slurm_faults has a restart of running ones."""

from __future__ import annotations

from rollyard.client import AsyncClient
from rollyard.kinds.base import ObjectKey
from rollyard.kinds.rollout import RolloutRequest, Task
from rollyard.kinds.rollout_pool import RolloutPool
from tests.support.yard import Yard
from tests.support.yard import yard as yard

DEMO = ObjectKey(kind="RolloutPool", namespace="default", name="demo")


async def revisions(yard: Yard, client: AsyncClient, number: int) -> RolloutPool:
    """Wait until the pool has this revision."""

    async def look() -> RolloutPool | None:
        pool = await client.get(DEMO)
        assert isinstance(pool, RolloutPool)
        return pool if pool.status.revisions and pool.status.revisions[-1].number == number else None

    found = await yard.until(look)
    assert isinstance(found, RolloutPool)
    return found


async def test_a_template_is_restarted_shown_and_brought_back(yard: Yard) -> None:
    async with yard.client() as client:
        await yard.apply(client, demo={"suspend": True}, policy={"suspend": True})
        first = await revisions(yard, client, 1)
        _, err = await yard.rollyard("undo", "rp/demo", code=1)
        assert "rolloutpool/demo has no earlier revision" in err
        task = Task.model_validate({"kind": "math", "problem": "1 + 1?", "answer": "2"})
        (id,) = await client.submit([RolloutRequest(pool="demo", task=task)])
        described, _ = await yard.rollyard("describe", "rp/demo")
        waits = described.partition("Queued rollouts wait for:")[2].splitlines()[2]
        assert waits.split()[:3] == ["PoolSuspended", "1", f"{id}:"]
        await client.cancel(id)
        _, err = await yard.rollyard("history", "demo", code=2)
        assert "name an object as KIND/NAME, such as rp/demo" in err

        await yard.apply(client, demo={"suspend": True, "allocation": {"cpusPerTask": 7, "setup": "true"}})
        changed = await revisions(yard, client, 2)
        assert (await yard.rollyard("restart", "rp/demo"))[0] == (
            "rolloutpool/demo restarted; it has no allocations at present\n"
        )
        restarted = await revisions(yard, client, 3)
        assert restarted.metadata.generation > changed.metadata.generation, "so that a wait for Updated waits for this"
        await yard.apply(client, demo={"suspend": True, "allocation": {"cpusPerTask": 7, "setup": "true"}})
        assert (await revisions(yard, client, 3)).spec.restarted_at == restarted.spec.restarted_at, "apply keeps it"

        lines = (await yard.rollyard("history", "rp/demo"))[0].splitlines()
        assert [line.split()[0] for line in lines] == ["REVISION", "1", "2", "3"]
        assert [line.split("  ")[-1].strip() for line in lines[1:]] == [
            "the first",
            "allocation.cpusPerTask: (default) -> 7, allocation.setup: (default) -> true",
            f"restartedAt: (default) -> {restarted.spec.model_dump(mode='json')['restarted_at']}",
        ]
        assert "cpusPerTask: 7" in (await yard.rollyard("history", "rp/demo", "--revision", "2"))[0]

        assert "template of revision 1 again" in (await yard.rollyard("undo", "rp/demo", "--to-revision", "1"))[0]
        back = await revisions(yard, client, 4)
        assert back.spec == first.spec
        assert [r.number for r in back.status.revisions] == [2, 3, 4]
        assert (await yard.rollyard("history", "rp/demo"))[0].splitlines()[1].split()[-1] == "<unknown>"
        assert "skipped" in (await yard.rollyard("undo", "rp/demo", "--to-revision", "4"))[0]
        assert "template of revision 3 again" in (await yard.rollyard("undo", "rp/demo"))[0]
        assert (await revisions(yard, client, 5)).spec == restarted.spec
        _, err = await yard.rollyard("undo", "rp/demo", "--to-revision", "1", code=1)
        assert "rolloutpool/demo has no revision 1; it has 2, 4, 5" in err
