"""Batches and datasets over HTTP, with the client that people write against."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollyard.client.async_client import AsyncClient
from rollyard.client.batch_progress import BatchProgress, progress_line
from rollyard.client.kubeconfig import Context
from rollyard.core.aio import running
from rollyard.core.errors import BadRequest, Conflict, Expired, Invalid, NotFound
from rollyard.kinds.batch import BatchFilter, BatchRequest, BatchStatus, DatasetRef
from rollyard.kinds.rollout import RolloutRequest, Status
from rollyard.kinds.task import Task
from rollyard.server.batches import service
from rollyard.server.batches.batch_view import view
from rollyard.store.batch_records import BatchRecord, LengthSums
from tests.api.test_rollouts_waiting import pool
from tests.support.outside_api import Api, Serve
from tests.support.played_pool import Played, PlayedPool


def tasks(count: int) -> list[dict[str, Any]]:
    return [{"kind": "math", "problem": f"{i}+0=?", "answer": str(i)} for i in range(count)]


def client_of(api: Api) -> AsyncClient:
    return AsyncClient(Context(url=api.url, token=api.admin, ca_pem=None, namespace="default", endpoint_file=None))


async def played(api: Api) -> int:
    return await PlayedPool(api.parts).play(lambda record: Played(reward=float(record.sample_index % 2)))


async def test_a_batch_is_iterated_to_its_target(serving: Serve, tmp_path: Path) -> None:
    async with serving() as api, client_of(api) as client:
        await pool(api)
        (tmp_path / "d.jsonl").write_text("\n".join(map(json.dumps, tasks(20))) + "\n\n")
        uploaded = await client.put_dataset("d", tmp_path / "d.jsonl")
        assert (uploaded.tasks, uploaded.kinds) == (20, ["math"])
        assert await client.put_dataset("d", [Task.model_validate(t) for t in tasks(20)]) == uploaded
        blank, text = "\n" * 100_000, (tmp_path / "d.jsonl").read_text()
        (tmp_path / "blank.jsonl").write_text(blank + text.replace("\n", blank))
        assert await client.put_dataset("d", tmp_path / "blank.jsonl") == uploaded, "empty lines are not tasks"
        request = BatchRequest(id="b", pool="swe", n=4, target=3, dataset=DatasetRef(name="d"))
        batch = client.batch(request)
        made = await client.create_batch(request)
        assert made.status is BatchStatus.RUNNING
        async with running(played(api)) as playing:
            groups = [group async for group in batch]
            await playing
        assert [g.delivery for g in groups] == [1, 2, 3]
        assert all(g.rewards == [0.0, 1.0, 0.0, 1.0] for g in groups)
        assert groups[0].rollouts[0].segments[0].loss_mask == [0, 1]
        assert batch.view is not None
        assert batch.view.status is BatchStatus.COMPLETED
        assert [g.delivery async for g in client.batch("b", after=1)] == [2, 3], "in a process that goes on"
        assert [(b.id, b.reward_mean) for b in await client.batches()] == [("b", 0.5)]
        assert (await client.acknowledge("b", 3)).acknowledged == 3


async def test_groups_stream_as_events_that_resume(serving: Serve) -> None:
    async with serving() as api, client_of(api) as client:
        await pool(api)
        await client.create_batch(
            BatchRequest(id="b", pool="swe", n=2, tasks=tasks(3), filter=BatchFilter(kind="none"))  # type: ignore[arg-type]
        )
        await played(api)

        async def events(headers: dict[str, str]) -> list[str]:
            async with api.http.get(f"{api.url}/v1/batches/b/stream", headers=headers) as answer:
                text = (await answer.read()).decode()
            return [line for line in text.splitlines() if line.startswith(("id: ", "event: "))]

        group = "event: group"
        assert await events({}) == ["id: 1", group, "id: 2", group, "id: 3", group, "event: end"]
        assert await events({"Last-Event-ID": "2"}) == ["id: 3", group, "event: end"]
        status, answer = await api.ask("GET", "/v1/batches/b/groups?after=7")
        assert (status, answer["reason"]) == (410, "Expired")


async def test_groups_are_the_same_as_columns_and_as_json(serving: Serve) -> None:
    async with serving() as api, client_of(api) as client:
        await pool(api)
        given: Any = tasks(3)
        await client.create_batch(BatchRequest(id="b", pool="swe", n=2, tasks=given, filter=BatchFilter(kind="none")))
        await played(api)
        page = await client.groups("b", limit=2)
        assert [len(group.rollouts) for group in page.groups] == [2, 2]
        _, told = await api.ask("GET", "/v1/batches/b/groups?limit=2")
        for group, found in zip(page.groups, told["groups"], strict=True):
            assert [rollout.model_dump(mode="json") for rollout in group.rollouts] == found.pop("rollouts")
            assert {name: getattr(group, name) for name in found} == found
        assert (page.next, page.batch.model_dump(mode="json")) == (told["next"], told["batch"])
        columns = await client.groups_columns("b", after=page.next)
        assert columns.rewards.tolist() == [0.0, 1.0]
        assert [group["rollouts"] for group in columns.about["groups"]] == [2]
        assert (await client.groups("b", after=3)).last


async def test_the_rollouts_of_acknowledged_groups_are_deleted(serving: Serve) -> None:
    async with serving() as api, client_of(api) as client:
        await pool(api)
        given: Any = tasks(3)
        await client.create_batch(BatchRequest(id="b", pool="swe", n=2, tasks=given, filter=BatchFilter(kind="none")))
        await played(api)
        first, second, third = (await client.groups("b")).groups
        await client.acknowledge("b", 1)
        assert await api.store.batches.prune_acknowledged(before=0.0) == 0, "an hour later"
        assert await api.store.batches.prune_acknowledged(before=1e12) == 2
        await client.acknowledge("b", 2)
        assert await api.store.batches.prune_acknowledged(before=1e12) == 2, "each group once"
        for rollout in first.rollouts:
            with pytest.raises(NotFound):
                await client.rollout(rollout.id)
        with pytest.raises(Expired, match=r"delivery 1 of batch 'b' is deleted.*read the groups after 2"):
            await client.groups("b")
        assert [g.id for g in (await client.groups("b", after=2)).groups] == [third.id]
        assert (await client.get_batch("b")).acknowledged == 2
        assert second.id != third.id


async def test_a_refusal_says_what_one_can_do(serving: Serve) -> None:
    async with serving() as api, client_of(api) as client:
        await pool(api)
        for body, words in {
            '{"pool": "swe"}': "give exactly one of `tasks`, `dataset` and `source`",
            '{"pool": "swe", "dataset": {"name": "d"}}': "rollyard datasets put d FILE",
            '{"pool": "swe", "n": 1, "tasks": [{"kind": "math"}]}': "set `n` to 2 or more",
            '{"pool": "swe", "tasks": [{"kind": "math"}]}': "tasks[0]: the math task is invalid",
            '{"pool": "swe", "tasks": [{"kind": "code2"}]}': "unknown task kind 'code2'",
            '{"pool": "nope", "tasks": [{"kind": "math", "problem": "?", "answer": "1"}]}': "existing ones: swe",
            '{"pool": "swe", "tagret": 3}': "target",
        }.items():
            status, answer = await api.ask("POST", "/v1/batches", json.loads(body))
            assert status == 422, answer
            assert words in answer["message"], answer["message"]
        with pytest.raises(Invalid, match=r"line 2: .*valid JSON.*; line 3: the math task is invalid"):
            await _put(api, b'{"kind": "math", "problem": "?", "answer": "1"}\n{"kind"\n{"kind": "math"}\n')
        with pytest.raises(NotFound, match="batch 'x' not found"):
            await client.get_batch("x")
        with pytest.raises(NotFound, match="dataset 'x' not found"):
            await client.delete_dataset("x")
        await client.put_dataset("d", tasks(2))
        with pytest.raises(Conflict, match="rollyard datasets delete d"):
            await client.put_dataset("d", tasks(3))


async def _put(api: Api, body: bytes) -> None:
    async with client_of(api) as client:
        await client._http.json("PUT", "/v1/datasets/e", body=body)


async def test_cancel_ends_its_rollouts_on_request(serving: Serve) -> None:
    async with serving() as api, client_of(api) as client:
        await pool(api)
        await client.put_dataset("d", tasks(20))
        batch = client.batch(BatchRequest(id="b", pool="swe", n=2, target=3, dataset=DatasetRef(name="d")))
        await client.create_batch(BatchRequest(id="b", pool="swe", n=2, target=3, dataset=DatasetRef(name="d")))
        view = await batch.cancel(rollouts="cancel")
        assert view.status is BatchStatus.CANCELLED
        assert [group async for group in batch] == []
        assert {r.status async for r in client.rollouts()} == {Status.CANCELLED}


async def test_unfinished_rollouts_are_cancelled_by_group_and_by_pool(serving: Serve) -> None:
    async with serving() as api, client_of(api) as client:
        await pool(api)
        await client.put_dataset("d", tasks(20))
        await client.create_batch(BatchRequest(id="b", pool="swe", n=2, target=3, dataset=DatasetRef(name="d")))
        await client.submit([RolloutRequest(id=f"mine-{i}", pool="swe", task=Task(**tasks(1)[0])) for i in range(3)])
        assert await client.cancel_rollouts(group="d-g0") == 2
        assert (await client.get_batch("b")).faulty == 1
        live = [r async for r in client.rollouts(status=["Queued"])]
        assert await client.cancel_rollouts(pool="swe") == len(live)
        assert [r.group async for r in client.rollouts(status=["Queued"])], "the batch goes on with other tasks"
        with pytest.raises(BadRequest, match="`group`, `pool` or both"):
            await client.cancel_rollouts()


async def test_there_is_a_limit_of_running_batches(serving: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MAX_RUNNING", 1)
    async with serving() as api, client_of(api) as client:
        await pool(api)
        await client.put_dataset("d", tasks(20))
        request = BatchRequest(id="b", pool="swe", n=2, target=3, dataset=DatasetRef(name="d"))
        await client.create_batch(request)
        assert (await client.create_batch(request)).id == "b", "one that runs is attached to"
        status, answer = await api.ask("POST", "/v1/batches", {"id": "c", "pool": "swe", "dataset": {"name": "d"}})
        assert (status, answer["details"]["retryAfterSeconds"]) == (429, 10)
        assert "cancel some" in answer["message"]


def test_the_progress_line_says_what_a_trainer_waits_for() -> None:
    batch = replace(
        BatchRecord("default", "b", "", "", "swe", "d", 100.0), delivered=8, all_high=2, open=3,
        delivered_lengths=LengthSums(64, 6400, 64, 64.0), slots=8,
    )  # fmt: skip
    request = BatchRequest(pool="swe", target=32, dataset=DatasetRef(name="d"))
    line = progress_line(view(batch, None, request), now=110.0)
    assert line == "b: 8 of 32 groups delivered, 2 of 10 filtered, 3 in flight, 640 tokens/s, about 30 s left"
    early = replace(batch, delivered=0, delivered_lengths=LengthSums(8, 800, 8, 8.0))
    line = progress_line(view(early, None, request), now=100.01)
    assert line == "b: 0 of 32 groups delivered, 2 of 2 filtered, 3 in flight", "no rate of a hundredth of a second"
    many = replace(batch, delivered=18)
    assert "10% filtered" in progress_line(view(many, None, request), now=110.0)


def test_progress_in_a_pipe_is_a_line_at_the_beginning_and_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    batch, progress = BatchRecord("default", "b", "", "", "swe", "d", 100.0), BatchProgress()
    request = BatchRequest(pool="swe", target=32, dataset=DatasetRef(name="d"))
    for _ in range(3):
        progress.show(view(batch, None, request))
    progress.show(view(replace(batch, status=BatchStatus.COMPLETED, ended_at=160.0), None, request))
    progress.close()
    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith("b: 0 of 32 groups delivered, none filtered, 0 in flight")
    assert last.endswith(", Completed after 60 s")
